"""Reads a model's header and decides how to load it, in the process that runs the engine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from msgspec.structs import replace

from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.loading.devices import list_gpu_memory, make_machine
from dragoman.engines.llamacpp.loading.memory_plan import make_plan
from dragoman.engines.llamacpp.loading.model_shape import ModelShape, read_shape
from dragoman.engines.llamacpp.loading.native_params import LoadPlan
from dragoman.engines.llamacpp.loading.server import set_environment
from dragoman.engines.llamacpp.loading.settings import LlamaCppSettings
from dragoman.engines.llamacpp.media.projector import Projector, find_projector, read_projector
from dragoman.errors import ModelBroken

# What llama.cpp tolerates between the vocabularies of a model and of its draft model.
FIRST_COMPARED_TOKEN, MAX_VOCABULARY_DIFFERENCE = 5, 128
TOKENIZER_KIND = "tokenizer.ggml.model"

log = logging.getLogger("dragoman.llamacpp")


def make_load_plan(settings: LlamaCppSettings) -> LoadPlan:
    """Return everything that decides how a model is loaded, or raise a `ModelBroken`."""
    set_environment()
    import xllamacpp

    header = gguf.read_header(settings.path)
    shape = read_shape(header, measure_files(Path(settings.path)))
    if settings.speculation == "draft-simple" and settings.draft_model is not None:
        check_draft_vocabulary(header, gguf.read_header(settings.draft_model))
    projector = choose_projector(settings, shape)
    if projector is not None:
        shape = replace(shape, weights=shape.weights + projector.size)
    draft = read_draft_shape(settings.draft_model)
    gpu_memory = sum(list_gpu_memory(xllamacpp))
    memory = make_plan(shape, settings, make_machine(settings.memory, gpu_memory), draft)
    for warning in memory.warnings:
        log.warning("%s", warning)
    return LoadPlan(
        settings=settings,
        header=header,
        shape=shape,
        memory=memory,
        threads=settings.threads or count_cores(),
        on_gpu=gpu_memory > 0 and settings.gpu_layers != 0,
        projector=projector,
    )


def choose_projector(settings: LlamaCppSettings, shape: ModelShape) -> Projector | None:
    """Return the projector of a model, which is checked before the library sees the file."""
    path = find_projector(Path(settings.path), settings.mmproj)
    if path is None:
        return None
    for name in ("context_shift", "cache_reuse"):
        if getattr(settings, name):
            raise ModelBroken(
                f"`{name}` cannot be combined with a projector (`mmproj`), with which the model "
                "reads pictures or sound. Set `mmproj: none` to serve text only."
            )
    return read_projector(path, shape.embedding or None)


def read_draft_shape(path: str | None) -> ModelShape | None:
    return None if path is None else read_shape(gguf.read_header(path, arrays=False))


def check_draft_vocabulary(header: gguf.GgufHeader, draft: gguf.GgufHeader) -> None:
    """Raise a `ModelBroken` for a draft model with other tokens: its drafts are never used."""
    tokens, others = header.tokens, draft.tokens
    shared = slice(FIRST_COMPARED_TOKEN, min(len(tokens), len(others)))
    is_same_kind = header.get_text(TOKENIZER_KIND) == draft.get_text(TOKENIZER_KIND)
    is_near = abs(len(tokens) - len(others)) <= MAX_VOCABULARY_DIFFERENCE
    if not (is_same_kind and is_near and tokens[shared] == others[shared]):
        raise ModelBroken(
            "The draft model has another vocabulary than the model; it must be a smaller model of "
            "the same family."
        )


def measure_files(path: Path) -> int:
    """Return the bytes of all files of a model."""
    return sum(file.stat().st_size for file in gguf.list_split_files(path))


def count_cores() -> int:
    """Count the physical cores that this process may use."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
