"""Makes a `Model` from its engine, its tokenizer and what its files say, for every loader."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.engines import get_capabilities
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.model_preset import check_public_prompts, make_preset
from dragoman.models.model import Model, ModelInfo, UpstreamSummary, list_capabilities
from dragoman.models.output_format import check_names, detect_output_format
from dragoman.models.recommended_sampling import (
    RecommendedSampling,
    find_recommended_sampling,
)
from dragoman.presets import PresetError
from dragoman.prompt.go_template import convert_go_template, is_go_template
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.tokenizer import AnyTokenizer, verify_tokenizer
from dragoman.types import Engine

if TYPE_CHECKING:
    from dragoman.engines.subprocess.engine import SubprocessEngine

log = logging.getLogger("dragoman.models")

MAX_TEMPLATE = 4 << 20


class ModelDetails(Struct, frozen=True, kw_only=True):
    """What the files of a model say about it."""

    directory: Path  # of its files
    template: str | None = None  # its own chat template
    architecture: str | None = None
    parameters: str | None = None
    quantization: str | None = None
    context: int | None = None
    metadata: Mapping[str, object] = {}  # of a GGUF file
    upstream: UpstreamSummary | None = None  # the server that runs it, if it is another one
    recommended: RecommendedSampling | None = None  # instead of what its files recommend


def check_format_names(source: ModelSource) -> None:
    """Raise `ModelBroken` if the options of a model name a format that does not exist."""
    try:
        check_names(source.options.format, source.options.reasoning_format)
    except ValueError as error:
        raise ModelBroken(f"Its options name an {error}.") from None


async def check_tokenizer(
    tokenizer: AnyTokenizer | None, engine: SubprocessEngine
) -> AnyTokenizer | None:
    """Return the tokenizer if it agrees with the engine's, else the engine's."""
    if tokenizer is None or not get_capabilities(engine).tokenize:
        return tokenizer
    return await verify_tokenizer(tokenizer, engine)


def make_model(
    source: ModelSource,
    engine: Engine,
    tokenizer: AnyTokenizer | None,
    details: ModelDetails,
) -> Model:
    """Make the model around its engine. A chat template with errors makes the model broken."""
    capabilities = get_capabilities(engine)
    template = choose_chat_template(source, details.template)
    formats = source.options.format, source.options.reasoning_format
    try:
        findings = detect_output_format(template, tokenizer, formats, source.id)
        renderer = PromptRenderer(template, tokenizer, reasoning=findings.reasoning_options)
        renderer.reads_media_as_text = capabilities.reads_media_as_text
        preset = make_preset(source.options, renderer, source.id)
        check_public_prompts(source.options, capabilities)
    except DragomanError as error:
        raise ModelBroken(error.message) from None
    except PresetError as error:
        raise ModelBroken(f"Its options are invalid: {error}.") from None
    info = ModelInfo(
        architecture=details.architecture,
        parameters=details.parameters,
        quantization=details.quantization,
        context=capabilities.context or details.context,
        trained_context=capabilities.trained_context or source.context,
        size=source.size,
        memory=source.plan.memory.total if source.plan is not None else None,
        modalities=capabilities.modalities,
        capabilities=list_capabilities(capabilities, template, findings.output_format, tokenizer),
        lora=capabilities.lora,
        created=source.created,
        upstream=details.upstream,
    )
    recommended = details.recommended or find_recommended_sampling(
        details.directory, details.metadata
    )
    log.info("%s: sampling defaults from %s", source.id, recommended.source)
    return Model(
        id=source.id,
        engine=engine,
        info=info,
        path=source.path,
        capabilities=capabilities,
        tokenizer=tokenizer,
        template_source=template,
        defaults=recommended.sampling,
        defaults_source=recommended.source,
        greedy_defaults=recommended.greedy,
        preset=preset,
        output_format=findings.output_format,
        renderer=renderer,
        shares_cache=bool(source.options.shared_cache),
        public_prompts=source.options.public_prompt,
    )


def choose_chat_template(source: ModelSource, own: str | None) -> str | None:
    """Return the operator's template, else the model's own."""
    file = source.options.chat_template
    if file is None:
        return own
    try:
        return read_chat_template_file(Path(file))
    except (OSError, ValueError) as error:
        log.error("cannot read the chat template of %s: %r", source.id, error)
        raise ModelBroken("The chosen chat template cannot be read.") from None


def show_chat_template(source: ModelSource, template: str | None) -> str | None:
    """Return a template as its author wrote it: one in Go's language is used as Jinja."""
    file = source.options.chat_template
    return template if file is None else _read_text(Path(file))


def read_chat_template_file(path: Path) -> str:
    """Return the template in a file as Jinja; files may also be in Go's language."""
    text = _read_text(path)
    return convert_go_template(text) if is_go_template(text) else text


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEMPLATE:
        raise ModelBroken("The chosen chat template is too large.")
    return path.read_text(encoding="utf-8-sig")
