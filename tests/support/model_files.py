"""Small model files for tests."""

from __future__ import annotations

import struct
from pathlib import Path

from dragoman.models.catalog import ModelCatalog
from dragoman.models.mapping import ModelOptions


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf_bytes(size: int, said: dict[str, str]) -> bytes:
    """A small valid file; underscores in names stand for dots."""
    pairs = {"general_architecture": "llama"} | said
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs))
    for key, value in pairs.items():
        head += text(key.replace("_", ".", 1)) + struct.pack("<I", 8) + text(value)
    head += text("t") + struct.pack("<IQIQ", 1, 8 * size, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(32 * size)


def put(path: Path, data: bytes | None = None, size: int = 1, **said: str) -> Path:
    """Write bytes, or a valid file of so many blocks that says so much of itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(size, said) if data is None else data)
    return path


def catalog(root: Path, yaml: str | None = None, base: ModelOptions | None = None) -> ModelCatalog:
    """The index of a models directory, with a mapping file if one is given."""
    mapping = root / "models.yaml"
    if yaml is not None:
        mapping.write_text(yaml)
    made = ModelCatalog(root, mapping, base)
    made.refresh()
    return made


def found(made: ModelCatalog, name: str) -> str | None:
    source = made.find(name)
    return source.path.name if source is not None else None
