"""Describes a model for `dragoman show` and `/api/show`. Nothing is loaded.

A GGUF file is described from its header, a directory of safetensors from its tokenizer files, and a
model of an upstream server from what that server says. What depends on more than the file (formats,
context, sampling defaults) is computed by the code that a loader would use, so it is the same when
the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from dragoman.detection import detect
from dragoman.detection.sources import read_template_source
from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.loading.memory_plan import MemoryPlan
from dragoman.engines.llamacpp.media.projector import find_projector
from dragoman.engines.llamacpp.pooling.head import read_head
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.assemble import choose_chat_template, show_chat_template
from dragoman.models.loaders.gguf import (
    read_chat_template,
    read_model_header,
    read_special_tokens,
)
from dragoman.models.memory import MemoryPlanner
from dragoman.models.output_format import apply_override, resolve_overrides
from dragoman.models.projectors import list_modalities
from dragoman.models.recommended_sampling import find_recommended_sampling
from dragoman.models.upstream.discover import Discovery, discover
from dragoman.presets import ExampleMessage, parse_preset
from dragoman.prompt.go_template import writes_suffix
from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from dragoman.types import Json

MAX_LISTED = 5  # values of a list in the metadata that are shown
LICENSE_KEYS = ("general.license", "general.license.name", "general.license.link")


class ModelDescription(Struct, frozen=True, kw_only=True):
    """A description of a model, as far as it is known without loading the model."""

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
    messages: tuple[ExampleMessage, ...] = ()  # before those of each conversation
    plan: MemoryPlan | None = None  # context, slots and memory when it is loaded here
    error: str | None = None  # why it cannot be loaded
    upstream: Discovery | None = None  # the server that runs it, if it is another one


def describe_model(source: ModelSource, planner: MemoryPlanner, key: str = "") -> ModelDescription:
    """Describe a model; one that cannot be loaded is described as far as possible.

    A server that runs the model is asked, with `key` if it has no key file of its own.
    """
    if source.kind == "remote":
        return describe_upstream_model(source, key)
    if source.broken is not None or source.kind not in ("gguf", "safetensors"):
        return ModelDescription(source=source, error=source.broken, license=source.options.license)
    if source.kind == "safetensors":
        return _describe_directory(source)
    try:
        header = read_model_header(source.path)
        template = read_chat_template(source, header)
    except ModelBroken as broken:
        return ModelDescription(source=source, error=broken.message)
    plan, error = _plan_memory(source, planner)
    tools, reasoning = _find_formats(source, template, read_special_tokens(header))
    recommended = find_recommended_sampling(source.path.parent, header.metadata)
    preset = parse_preset(source.options)
    defaults = preset.get_sampling(recommended.sampling)
    is_preset = bool(preset.sampling.names or preset.forced_sampling.names)
    return ModelDescription(
        source=source,
        metadata={key: _shorten(value) for key, value in header.metadata.items()},
        template=show_chat_template(source, template),
        tool_format=tools,
        reasoning_format=reasoning,
        capabilities=_list_capabilities(source, header, (tools, reasoning, template)),
        modalities=list_modalities(source),
        layers=header.get_number(f"{header.architecture}.block_count"),
        embedding_length=header.embedding_length,
        vocabulary=len(header.tokens) or None,
        license=source.options.license
        or next((text for key in LICENSE_KEYS if (text := header.get_text(key))), None),
        sampling=msgspec.to_builtins(defaults),
        sampling_source=f"options and {recommended.source}" if is_preset else recommended.source,
        system=preset.system,
        stop=preset.stop or (),
        messages=source.options.messages,
        plan=plan,
        error=error,
    )


def _describe_directory(source: ModelSource) -> ModelDescription:
    """Describe a directory of safetensors from its tokenizer files."""
    try:
        found = read_template_source(source.path)
        template = choose_chat_template(source, None if found is None else found.template)
    except ModelBroken as broken:
        return ModelDescription(source=source, error=broken.message)
    specials = frozenset() if found is None else found.vocabulary
    tools, reasoning = _find_formats(source, template, specials)
    recommended = find_recommended_sampling(source.path, {})
    preset = parse_preset(source.options)
    names = {"chat": template, "tools": tools, "thinking": reasoning, "lora": source.options.lora}
    return ModelDescription(
        source=source,
        template=show_chat_template(source, template),
        tool_format=tools,
        reasoning_format=reasoning,
        capabilities=("completion", *(name for name, value in names.items() if value)),
        modalities=list_modalities(source),
        license=source.options.license,
        sampling=msgspec.to_builtins(preset.get_sampling(recommended.sampling)),
        sampling_source=recommended.source,
        system=preset.system,
        stop=preset.stop or (),
        messages=source.options.messages,
    )


class FileMetadata(Struct, frozen=True, kw_only=True):
    """What the files of a GGUF model say about themselves."""

    model: dict[str, Json] = {}
    projector: dict[str, Json] = {}
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # names, types and shapes


def read_metadata(source: ModelSource, *, is_complete: bool) -> FileMetadata:
    """Read the metadata of a model; unless it `is_complete`, without tensors and long lists."""
    if source.kind != "gguf" or source.broken is not None or not source.path.is_file():
        known = {"general.architecture": source.architecture} if source.architecture else {}
        return FileMetadata(model={**known})
    header = gguf.read_header(source.path)
    tensors = header.tensors
    projector = find_projector(source.path, source.options.mmproj)
    others = {} if projector is None else gguf.read_header(projector).metadata
    parameters: dict[str, Json] = {"general.parameter_count": tensors.parameters}
    return FileMetadata(
        model=_convert_metadata(header.metadata, with_lists=is_complete) | parameters,
        projector=_convert_metadata(others, with_lists=is_complete),
        tensors=_list_tensors(tensors) if is_complete else (),
    )


def _list_tensors(summary: gguf.TensorSummary) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple(
        (gguf.replace_invalid(name), summary.kinds[name], shape)
        for name, shape in summary.shapes.items()
    )


def _convert_metadata(metadata: Mapping[str, object], *, with_lists: bool) -> dict[str, Json]:
    converted: dict[str, Json] = {}
    for name, value in metadata.items():
        key = gguf.replace_invalid(name)
        if isinstance(value, str | int | float | bool):
            converted[key] = _repair(value)
            continue
        items = [*map(_repair, value)] if isinstance(value, Iterable) else [str(value)]
        converted[key] = items if with_lists or len(items) <= MAX_LISTED else []
    return converted


def _repair(value: Json) -> Json:
    return gguf.replace_invalid(value) if isinstance(value, str) else value


def describe_upstream_model(source: ModelSource, key: str = "") -> ModelDescription:
    """Describe a model that another server runs, as that server and its tokenizer describe it."""
    try:
        found = discover(source.options, key)
        template = choose_chat_template(source, found.template)
    except DragomanError as error:
        return ModelDescription(source=source, error=error.message)
    info, tools, reasoning = found.info, None, None
    if template is not None and found.api != "chat":
        specials = frozenset() if found.tokenizer is None else frozenset(found.tokenizer.specials)
        detected = detect(template, specials)
        tools, reasoning = detected.tools, detected.reasoning
    described = msgspec.structs.replace(
        source,
        parameters=info.parameters,
        quantization=info.quantization,
        context=info.trained_context or info.context,
    )
    return ModelDescription(
        source=described,
        upstream=found,
        template=show_chat_template(source, template),
        tool_format=tools,
        reasoning_format=reasoning,
        vocabulary=info.vocabulary_size,
        modalities=("text",),
    )


def _plan_memory(
    source: ModelSource, planner: MemoryPlanner
) -> tuple[MemoryPlan | None, str | None]:
    """Return how the model would run on this machine, or why it would not."""
    try:
        return planner.plan(source), None
    except ModelBroken as error:
        return None, error.message


def _find_formats(
    source: ModelSource, template: str | None, special_tokens: frozenset[str]
) -> tuple[str | None, str | None]:
    """Return the tool and reasoning format: the operator's, else those of the template."""
    tools, reasoning = resolve_overrides((source.options.format, source.options.reasoning_format))
    if template is None:
        return apply_override(tools, None), apply_override(reasoning, None)
    detected = detect(template, special_tokens)
    return apply_override(tools, detected.tools), apply_override(reasoning, detected.reasoning)


def _list_capabilities(
    source: ModelSource, header: gguf.GgufHeader, formats: tuple[str | None, str | None, str | None]
) -> tuple[str, ...]:
    tools, reasoning, template = formats
    head = read_head(header)
    embeds = bool(source.options.embeddings) or not head.generates
    supported = {
        "completion": head.generates,
        "chat": head.generates and template is not None,
        "tools": tools is not None,
        "thinking": reasoning is not None,
        "embedding": embeds and head.embeds,
        "rerank": head.ranks,
        "infill": vocabulary_from_gguf(header.metadata).infill is not None
        or writes_suffix(template),
        "lora": bool(source.options.lora),
    }
    return tuple(name for name, is_supported in supported.items() if is_supported)


def _shorten(value: object) -> Json:
    """Return a metadata value as plain data; of a long list, its length."""
    if isinstance(value, str | int | float | bool):
        return _repair(value)
    items = [*map(_repair, value)] if isinstance(value, Iterable) else [str(value)]
    return items if len(items) <= MAX_LISTED else f"{len(items):,} values"
