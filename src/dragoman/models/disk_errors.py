"""What errors of the disk mean to those who download or create models."""

from __future__ import annotations

import errno

from dragoman.errors import Unavailable

NO_SPACE = "There is no space left on the disk."
NOT_WRITABLE = "The models directory is not writable. Choose another with --models-dir."


def convert_disk_error(error: BaseException) -> Unavailable | None:
    """Return an error that clients may see; None if the cause is not the disk."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Unavailable(NO_SPACE)
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unavailable(NOT_WRITABLE)
    return None
