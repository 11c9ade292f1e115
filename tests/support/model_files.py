"""Small model files for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from dragoman.models.catalog import ModelCatalog
from dragoman.models.mapping import ModelOptions

MetadataValue: TypeAlias = str | int | Sequence[str] | Sequence[int]


def encode_string(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def encode_value(value: MetadataValue) -> bytes:
    """Encode a value with its type: a number, a text, or an array of one of these."""
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + encode_string(value)
    kind = struct.unpack_from("<I", encode_value(value[0]))[0]
    items = b"".join(encode_value(item)[4:] for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items


def make_gguf(size: int, metadata: Mapping[str, MetadataValue]) -> bytes:
    """Make a small valid file. The first underscore of a metadata key becomes a dot."""
    pairs = {"general_architecture": "llama"} | dict(metadata)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs))
    for key, value in pairs.items():
        head += encode_string(key.replace("_", ".", 1)) + encode_value(value)
    head += encode_string("t") + struct.pack("<IQIQ", 1, 8 * size, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(32 * size)


def write_model_file(
    path: Path, data: bytes | None = None, size: int = 1, **metadata: MetadataValue
) -> Path:
    """Write these bytes, or a valid file with `size` blocks and this metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_gguf(size, metadata) if data is None else data)
    return path


def add_token_ids(path: Path, source: Path, ids: dict[str, int]) -> Path:
    """Copy a model file and add token ids to its metadata, as `tokenizer.ggml.NAME_token_id`."""
    data = source.read_bytes()
    added = b""
    for name, token in ids.items():
        added += encode_string(f"tokenizer.ggml.{name}_token_id") + struct.pack("<II", 4, token)
    # a text of the right length keeps the alignment of what follows
    added += encode_string("general.comment") + struct.pack("<I", 8)
    added += encode_string("x" * (-(len(added) + 8) % 32))
    count = struct.unpack_from("<Q", data, 16)[0] + len(ids) + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[:16] + struct.pack("<Q", count) + added + data[24:])
    return path


def make_catalog(
    root: Path, yaml: str | None = None, base: ModelOptions | None = None
) -> ModelCatalog:
    """Make the catalog of a models directory, with a mapping file if one is given."""
    mapping = root / "models.yaml"
    if yaml is not None:
        mapping.write_text(yaml)
    models = ModelCatalog(root, mapping, base)
    models.refresh()
    return models


def find_file(models: ModelCatalog, name: str) -> str | None:
    source = models.find(name)
    return source.path.name if source is not None else None


def write_long_context_model(path: Path, source: Path, context: int) -> Path:
    """Copy a model file whose header then claims to be trained for this context."""
    data = bytearray(source.read_bytes())
    key = encode_string("llama.context_length") + struct.pack("<I", 4)
    position = data.index(key, 0, 1 << 20) + len(key)
    struct.pack_into("<I", data, position, context)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
