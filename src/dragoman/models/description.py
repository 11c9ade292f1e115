"""Describes a model on disk for `dragoman show`, from its header and options. Nothing is loaded."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman.detection import detect
from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.loading.memory_plan import MemoryPlan
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.gguf import (
    read_chat_template,
    read_model_header,
    read_special_tokens,
)
from dragoman.models.memory import MemoryPlanner
from dragoman.models.output_format import apply_override, resolve_overrides
from dragoman.models.recommended_sampling import find_recommended_sampling
from dragoman.presets import parse_preset
from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from dragoman.types import Json

MAX_LISTED = 5  # values of a list in the metadata that are shown
LICENSE_KEYS = ("general.license", "general.license.name", "general.license.link")


class ModelDescription(Struct, frozen=True, kw_only=True):
    """What is known about a model before it is loaded."""

    source: ModelSource
    metadata: dict[str, Json] = {}  # of the file; long lists are cut
    template: str | None = None
    tool_format: str | None = None
    reasoning_format: str | None = None
    capabilities: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ("text",)
    layers: int | None = None
    embedding_length: int | None = None
    vocabulary: int | None = None
    license: str | None = None
    sampling: dict[str, Json] = {}  # defaults of requests
    sampling_source: str = ""
    system: str | None = None
    stop: tuple[str, ...] = ()
    plan: MemoryPlan | None = None  # context, slots and memory when it is loaded here
    error: str | None = None  # why it cannot be loaded


def describe_model(source: ModelSource, planner: MemoryPlanner) -> ModelDescription:
    """Describe a model; one that cannot be loaded is described as far as possible."""
    if source.broken is not None or source.kind != "gguf":
        return ModelDescription(source=source, error=source.broken)
    try:
        header = read_model_header(source.path)
        template = read_chat_template(source, header)
    except ModelBroken as broken:
        return ModelDescription(source=source, error=broken.message)
    plan, error = _plan(source, planner)
    tools, reasoning = _find_formats(source, template, header)
    recommended = find_recommended_sampling(source.path.parent, header.metadata)
    preset = parse_preset(source.options)
    defaults = preset.get_sampling(recommended.sampling)
    is_preset = bool(preset.sampling.names or preset.forced_sampling.names)
    return ModelDescription(
        source=source,
        metadata={key: _shorten(value) for key, value in header.metadata.items()},
        template=template,
        tool_format=tools,
        reasoning_format=reasoning,
        capabilities=_list_capabilities(source, header, (tools, reasoning, template)),
        layers=header.get_number(f"{header.architecture}.block_count"),
        embedding_length=header.embedding_length,
        vocabulary=len(header.tokens) or None,
        license=next((text for key in LICENSE_KEYS if (text := header.get_text(key))), None),
        sampling=msgspec.to_builtins(defaults),
        sampling_source=f"options and {recommended.source}" if is_preset else recommended.source,
        system=preset.system,
        stop=preset.stop or (),
        plan=plan,
        error=error,
    )


def _plan(source: ModelSource, planner: MemoryPlanner) -> tuple[MemoryPlan | None, str | None]:
    """Return how the model would run on this machine, or why it would not."""
    try:
        return planner.plan(source), None
    except ModelBroken as error:
        return None, error.message


def _find_formats(
    source: ModelSource, template: str | None, header: gguf.GgufHeader
) -> tuple[str | None, str | None]:
    """Return the tool and reasoning format: the operator's, else those of the template."""
    tools, reasoning = resolve_overrides((source.options.format, source.options.reasoning_format))
    if template is None:
        return apply_override(tools, None), apply_override(reasoning, None)
    detected = detect(template, read_special_tokens(header))
    return apply_override(tools, detected.tools), apply_override(reasoning, detected.reasoning)


def _list_capabilities(
    source: ModelSource, header: gguf.GgufHeader, formats: tuple[str | None, str | None, str | None]
) -> tuple[str, ...]:
    tools, reasoning, template = formats
    has_pooling = header.get_number(f"{header.architecture}.pooling_type") is not None
    supported = {
        "completion": True,
        "chat": template is not None,
        "tools": tools is not None,
        "thinking": reasoning is not None,
        "embedding": bool(source.options.embeddings) or has_pooling,
        "infill": vocabulary_from_gguf(header.metadata).infill is not None,
        "lora": bool(source.options.lora),
    }
    return tuple(name for name, is_supported in supported.items() if is_supported)


def _shorten(value: object) -> Json:
    """Return a metadata value as plain data; of a long list, its length."""
    if isinstance(value, str | int | float | bool):
        return value
    items = list(value) if hasattr(value, "__iter__") else [str(value)]
    return items if len(items) <= MAX_LISTED else f"{len(items):,} values"
