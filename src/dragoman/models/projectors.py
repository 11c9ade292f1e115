"""Finds the projector files of models on disk, and which models read media. Nothing is loaded."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dragoman.engines.llamacpp.media.projector import Projector, find_projector, read_projector
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource, read_stamp


def read_model_projector(source: ModelSource) -> Projector | None:
    """Return the projector of a GGUF model, if it has one; a broken one is a `ModelBroken`."""
    if source.kind != "gguf" or source.broken is not None:
        return None
    path = find_projector(source.path, source.options.mmproj)
    if path is None:
        return None
    width = source.shape.embedding if source.shape is not None else None
    return _read(path, read_stamp(path)[1:], width or None)


@lru_cache(maxsize=256)
def _read(path: Path, _stamp: tuple[int, int], width: int | None) -> Projector:
    return read_projector(path, width)


def list_modalities(source: ModelSource) -> tuple[str, ...]:
    """List what a model reads, as far as its files say it."""
    if source.kind != "gguf":
        return source.modalities
    with suppress(ModelBroken):
        projector = read_model_projector(source)
        if projector is not None:
            return ("text", *projector.modalities)
    return ("text",)
