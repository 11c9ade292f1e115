"""The digest of a model, which Ollama's API shows.

It is the digest of a manifest, as in Ollama: of the kind of the model, its options and its files.
A file is not read as a whole, which takes minutes for a large one: its digest is that of its size,
its beginning, which holds the header, and its end. It is cached until the file changes, and is the
same on every machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from dragoman.models.catalog import FileStamp, ModelSource, read_stamp
from dragoman.models.management.deletion import list_files
from dragoman.types.bounded_cache import BoundedCache

SAMPLE = 1 << 20  # bytes at either end of a file
MAX_FILES = 10_000


class ManifestDigests:
    """Computes the digests of models. Blocks; use it in a thread."""

    def __init__(self) -> None:
        self._files = BoundedCache[FileStamp, str](max_entries=MAX_FILES)

    def compute(self, source: ModelSource) -> str:
        """Return 64 hexadecimal digits."""
        files = [] if source.broken is not None else self._list_digests(source)
        options = msgspec.json.encode(source.options, order="deterministic").decode()
        manifest = msgspec.json.encode([source.kind, files or source.real_path, options])
        return hashlib.sha256(manifest).hexdigest()

    def _list_digests(self, source: ModelSource) -> list[str]:
        try:
            return [self._digest_file(path) for path in list_files(source) if path.is_file()]
        except OSError:  # deleted meanwhile
            return []

    def _digest_file(self, path: Path) -> str:
        stamp = read_stamp(path)
        digest = self._files.get(stamp)
        if digest is None:
            digest = _digest_samples(path, stamp[2])
            self._files.put(stamp, digest)
        return digest


def _digest_samples(path: Path, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE))
        file.seek(max(SAMPLE, size - SAMPLE))
        digest.update(file.read(SAMPLE))
    return digest.hexdigest()
