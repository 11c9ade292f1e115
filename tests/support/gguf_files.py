"""Writes what a `GGUFWriter` holds to its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf import GGUFWriter


def finish_file(writer: GGUFWriter, path: Path) -> Path:
    """Write header, metadata and tensors, and return the path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
