"""What belongs to a model on disk, for deleting it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.engines.llamacpp.gguf import parse_split_name

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource

DOWNLOAD_CACHE = ".cache"  # the directory that a download from Hugging Face leaves with the files


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path is below the root, also if the directories in between are links."""
    parent = Path(os.path.realpath(path.parent))
    return parent.is_relative_to(os.path.realpath(root))


def list_files(source: ModelSource) -> list[Path]:
    """List the files of a model; of a split one also if parts are missing."""
    if source.kind == "safetensors":
        return sorted(path for path in source.path.iterdir() if not path.is_dir())
    split = parse_split_name(source.path.stem)
    if split is None:
        return [source.path]
    stem, _, count = split
    parts = (
        source.path.with_name(f"{stem}-{part:05}-of-{count:05}{source.path.suffix}")
        for part in range(1, count + 1)
    )
    return [part for part in parts if os.path.lexists(part)]


def remove_empty_directories(directory: Path, root: Path) -> None:
    """Remove the directory of a model and those above it, as far as nothing else is in them."""
    while directory != root and root in directory.parents:
        if {path.name for path in directory.iterdir()} - {DOWNLOAD_CACHE}:
            return
        shutil.rmtree(directory / DOWNLOAD_CACHE, ignore_errors=True)
        directory.rmdir()
        directory = directory.parent
