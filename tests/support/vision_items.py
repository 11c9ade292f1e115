"""Media items as the stage `media` makes them, for tests of what comes after it."""

from __future__ import annotations

import hashlib

from dragoman.types import MediaItem


def make_item(data: bytes) -> MediaItem:
    kind = "audio" if data.startswith(b"RIFF") else "image"
    digest = hashlib.sha256(data).hexdigest()
    return MediaItem(kind=kind, data=data, digest=digest)  # type: ignore[arg-type]
