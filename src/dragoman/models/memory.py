"""Plans how much memory each model needs when it is loaded on this machine.

The registry reserves it before a load, loaders run the engine with the context and slots that were
planned, and lists show both before anything is loaded.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec.structs import replace

from dragoman.engines.llamacpp.loading.devices import (
    make_machine,
    probe_gpu_memory,
    start_gpu_probe,
)
from dragoman.engines.llamacpp.loading.load_plan import read_draft_shape
from dragoman.engines.llamacpp.loading.memory_plan import Machine, MemoryPlan, make_plan
from dragoman.engines.llamacpp.loading.model_shape import ModelShape
from dragoman.engines.llamacpp.loading.settings import check_options
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.model import ModelInfo
from dragoman.models.projectors import list_modalities, read_model_projector
from dragoman.options import InvalidOption


def prepare_planning() -> None:
    """Start to look for GPUs in the background, which planners wait for."""
    start_gpu_probe()


class MemoryPlanner:
    """Plans models against the memory that was available when the server started, or a limit."""

    def __init__(self, limit: int = 0) -> None:
        self.machine: Machine = make_machine(limit, probe_gpu_memory())
        self._drafts: dict[str, ModelShape | None] = {}

    def plan(self, source: ModelSource) -> MemoryPlan | None:
        """Plan a model, or raise a `ModelBroken`; None if nothing is known about its memory."""
        if source.shape is None:
            return None
        try:
            check_options(source.options)
        except InvalidOption as error:
            raise ModelBroken(f"Its options are invalid: {error}.") from None
        shape, projector = source.shape, read_model_projector(source)
        if projector is not None:
            shape = replace(shape, weights=shape.weights + projector.size)
        return make_plan(
            shape, source.options, self.machine, self._read_draft(source.options.draft_model)
        )

    def _read_draft(self, path: str | None) -> ModelShape | None:
        if path is not None and path not in self._drafts and os.path.isfile(path):
            self._drafts[path] = read_draft_shape(path)
        return None if path is None else self._drafts.get(path)


def make_info(source: ModelSource, planner: MemoryPlanner | None) -> ModelInfo:
    """Describe a model that is not loaded, with the context and memory that are planned."""
    plan = None
    if planner is not None and source.broken is None:
        with suppress(ModelBroken):
            plan = planner.plan(source)
    return ModelInfo(
        architecture=source.architecture,
        parameters=source.parameters,
        quantization=source.quantization,
        context=plan.context if plan is not None else source.options.context or source.context,
        trained_context=source.context,
        size=source.size,
        memory=plan.memory.total if plan is not None else None,
        modalities=list_modalities(source),
        lora=tuple(source.options.lora),
        created=source.created,
    )
