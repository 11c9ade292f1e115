"""Models as Ollama's API lists and describes them. Blocks: files are read."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.description import (
    FileMetadata,
    ModelDescription,
    describe_model,
    read_metadata,
)
from dragoman.models.management.model_name import add_tag
from dragoman.models.management.service import ModelManager
from dragoman.models.memory import MemoryPlanner
from dragoman.models.model import Model
from dragoman.models.registry import ModelEntry, ModelRegistry
from dragoman.protocols.ollama import installed_models as wire
from dragoman.types.bounded_cache import BoundedCache

MAX_CACHED = 64  # descriptions, whose making reads the whole header of a file


class ModelDescriber:
    """Makes what lists and descriptions of models show."""

    def __init__(self, registry: ModelRegistry, manager: ModelManager) -> None:
        self._registry = registry
        self._manager = manager
        self._cache = BoundedCache[tuple[object, ...], ModelDescription](max_entries=MAX_CACHED)

    def list_installed(self, owner: str) -> list[wire.OllamaModel]:
        """List the models that an owner may use, under each name that was given to them."""
        self._manager.catalog.refresh()
        return [
            wire.OllamaModel(
                name=add_tag(name),
                model=add_tag(name),
                modified_at=wire.format_time(source.created),
                size=source.size,
                digest=self._manager.digests.compute(source),
                details=make_details(source),
            )
            for source in self._registry.names.list_usable(owner)
            for name in self._manager.catalog.list_main_names(source)
        ]

    def list_running(self, entries: Iterable[ModelEntry]) -> list[wire.OllamaRunningModel]:
        return [self._make_running(entry) for entry in entries if entry.state == "ready"]

    def _make_running(self, entry: ModelEntry) -> wire.OllamaRunningModel:
        source = self._registry.catalog.find(entry.id) or ModelSource(id=entry.id)
        info = entry.info
        size = info.memory or info.size
        expires_at = entry.expires_at
        if expires_at is None and entry.keep_alive is not None and entry.keep_alive >= 0:
            expires_at = time.time() + entry.keep_alive  # it is in use
        planner = self._registry.planner
        gpu_memory = 0 if planner is None else planner.machine.gpu_memory
        return wire.OllamaRunningModel(
            name=add_tag(entry.id),
            model=add_tag(entry.id),
            size=size,
            digest=self._manager.digests.compute(source),
            details=make_details(source),
            expires_at=wire.format_expiry(expires_at),
            size_vram=0 if source.options.gpu_layers == 0 else min(size, gpu_memory),
            context_length=info.context or 0,
        )

    def describe(
        self, source: ModelSource, entry: ModelEntry, *, verbose: bool
    ) -> wire.OllamaModelDescription:
        """Describe a model, as far as possible without loading it."""
        known, files = self._describe_source(source, entry.model), read_files(source, verbose)
        stop = known.stop
        details = make_details(source)
        details.context_length = source.context or UNSET
        details.embedding_length = known.embedding_length or UNSET
        shown = wire.OllamaModelDescription(
            license=known.license or UNSET,
            modelfile="",
            parameters=wire.format_parameters(known.sampling, stop) or UNSET,
            template=known.template or UNSET,
            system=known.system or UNSET,
            details=details,
            messages=[wire.OllamaMessageExample(item.role, item.content) for item in known.messages]
            or UNSET,
            model_info=files.model,
            projector_info=files.projector or UNSET,
            tensors=[wire.OllamaTensor(*item) for item in files.tensors] or UNSET,
            capabilities=wire.list_capabilities(known.capabilities, known.modalities),
            modalities=list(known.modalities),
            modified_at=wire.format_time(source.created),
            memory=entry.info.memory or UNSET,
            digest=self._manager.digests.compute(source),
        )
        shown.modelfile = wire.format_modelfile(add_tag(source.id), shown)
        return shown

    def _describe_source(self, source: ModelSource, model: Model | None) -> ModelDescription:
        key = source.key, source.stamp
        description = self._cache.get(key)
        if description is None:
            planner = self._registry.planner or MemoryPlanner()
            description = describe_model(source, planner)
            self._cache.put(key, description)
        return description if model is None else add_loaded(description, model)


def read_files(source: ModelSource, verbose: bool) -> FileMetadata:
    try:
        return read_metadata(source, is_complete=verbose)
    except ModelBroken:
        return FileMetadata()


def add_loaded(description: ModelDescription, model: Model) -> ModelDescription:
    """Add what only the loaded model tells, such as the capabilities of its engine."""
    return replace(
        description,
        template=description.template or model.template_source,
        capabilities=tuple(dict.fromkeys((*description.capabilities, *model.info.capabilities))),
        modalities=model.info.modalities,
        system=description.system or model.preset.system,
    )


def make_details(source: ModelSource) -> wire.OllamaDetails:
    family = source.architecture or ""
    return wire.OllamaDetails(
        parent_model=source.options.parent or "",
        format=source.kind,
        family=family,
        families=[family] if family else [],
        parameter_size=source.parameters or "",
        quantization_level=source.quantization or "",
    )
