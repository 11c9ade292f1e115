"""Loads a model file: header, tokenizer, engine, chat template.

The header is checked before any native code sees the file, and the engine runs in a child process,
so a file that crashes it affects nothing else. The tokenizer is rebuilt while the engine starts and
is then checked against it. If anything fails or the load is cancelled, the engine is closed before
the error is raised.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.engines import get_capabilities, get_factory
from dragoman.engines.llamacpp import gguf
from dragoman.engines.options import EngineOptions
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.catalog import NOT_A_MODEL, ModelSource
from dragoman.models.model import (
    Model,
    ModelInfo,
    list_capabilities,
    report_progress,
)
from dragoman.models.model_preset import check_public_prompts, make_preset
from dragoman.models.output_format import check_names, detect_output_format
from dragoman.models.recommended_sampling import find_recommended_sampling
from dragoman.presets import PresetError
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.tokenizer import AnyTokenizer, tokenizer_from_gguf, verify_tokenizer

if TYPE_CHECKING:
    from dragoman.engines.subprocess.engine import SubprocessEngine

log = logging.getLogger("dragoman.models")

DEFAULT_ENGINE = "llamacpp"
SAFETENSORS_EXTRA = "vllm"  # runs safetensors
MAX_TEMPLATE = 4 << 20
HANG_TIMEOUT = 20.0  # seconds, where no setting says otherwise


async def load(source: ModelSource, hang_timeout: float = HANG_TIMEOUT) -> Model:
    """Load a model of any kind. An engine without progress for `hang_timeout` is restarted."""
    check_kind(source)
    return await load_gguf(source, hang_timeout)


def check_kind(source: ModelSource) -> None:
    """Check that there is an engine for this kind of model."""
    if source.kind != "gguf":
        raise ModelBroken(
            "It is stored as safetensors, which needs an extra: "
            f"pip install 'dragoman[{SAFETENSORS_EXTRA}]'"
        )


async def load_gguf(source: ModelSource, hang_timeout: float) -> Model:
    """Load a GGUF file into its own engine."""
    try:
        check_names(source.options.format, source.options.reasoning_format)
    except ValueError as error:
        raise ModelBroken(f"Its options name an {error}.") from None
    report_progress("reading the file", 0.02)
    header = await asyncio.to_thread(read_model_header, source.path)
    if source.plan is not None:
        log.info("%s: %s", source.id, source.plan.describe())
        for warning in source.plan.warnings:
            log.warning("%s: %s", source.id, warning)
    report_progress("starting the engine", 0.1)
    engine = make_engine(source, hang_timeout)
    try:
        tokenizer, _ = await asyncio.gather(
            asyncio.to_thread(tokenizer_from_gguf, header.metadata, engine), engine.start()
        )
        report_progress("checking the tokenizer", 0.9)
        tokenizer = await check_tokenizer(tokenizer, engine)
        return await asyncio.to_thread(make_model, source, header, engine, tokenizer)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise


def make_engine(source: ModelSource, hang_timeout: float = HANG_TIMEOUT) -> SubprocessEngine:
    """Make an engine in a child process, which is not started yet."""
    from dragoman.engines.subprocess.engine import SubprocessEngine, Timing

    options = source.options
    names = (*EngineOptions.__struct_fields__, "lora", "embeddings")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    settings["path"] = str(source.path)
    if source.plan is not None:
        plan = source.plan
        settings |= {"context": plan.context, "slots": plan.slots, "cache_ram": plan.cache_ram}
    try:
        factory = get_factory(options.engine or DEFAULT_ENGINE)
    except ValueError as error:
        raise ModelBroken(str(error)) from None
    timing = Timing(hang_timeout=hang_timeout)
    return SubprocessEngine(factory, settings, name=source.id, timing=timing)


def read_model_header(path: Path) -> gguf.GgufHeader:
    """Read and check the header of a file before an engine gets it."""
    for file in gguf.list_split_files(path):
        if file != path:
            gguf.read_header(file, arrays=False)
    header = gguf.read_header(path)
    if header.kind != "model" or not header.tensors.count:
        raise ModelBroken(NOT_A_MODEL)
    tokens = header.tokens
    if len(set(tokens) - {""}) + tokens.count("") != len(tokens):
        raise ModelBroken("Two tokens of its vocabulary have the same text.")
    return header


async def check_tokenizer(
    tokenizer: AnyTokenizer | None, engine: SubprocessEngine
) -> AnyTokenizer | None:
    if tokenizer is None or not get_capabilities(engine).tokenize:
        return tokenizer
    return await verify_tokenizer(tokenizer, engine)


def make_model(
    source: ModelSource,
    header: gguf.GgufHeader,
    engine: SubprocessEngine,
    tokenizer: AnyTokenizer | None,
) -> Model:
    """Make the model around its engine. A chat template with errors makes the model broken."""
    capabilities = get_capabilities(engine)
    template = read_chat_template(source, header)
    formats = source.options.format, source.options.reasoning_format
    try:
        findings = detect_output_format(template, tokenizer, formats, source.id)
        renderer = PromptRenderer(template, tokenizer, reasoning=findings.reasoning_options)
        preset = make_preset(source.options, renderer, source.id)
        check_public_prompts(source.options, capabilities)
    except DragomanError as error:
        raise ModelBroken(error.message) from None
    except PresetError as error:
        raise ModelBroken(f"Its options are invalid: {error}.") from None
    info = ModelInfo(
        architecture=header.architecture,
        parameters=header.parameters,
        quantization=header.quantization,
        context=capabilities.context or header.context_length,
        trained_context=capabilities.trained_context or source.context,
        size=source.size,
        memory=source.plan.memory.total if source.plan is not None else None,
        modalities=capabilities.modalities,
        capabilities=list_capabilities(capabilities, template, findings.output_format, tokenizer),
        lora=capabilities.lora,
        created=source.created,
    )
    recommended = find_recommended_sampling(source.path.parent, header.metadata)
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


def read_chat_template_file(path: Path) -> str:
    """Return the source in a template file."""
    if path.stat().st_size > MAX_TEMPLATE:
        raise ModelBroken("The chosen chat template is too large.")
    return path.read_text(encoding="utf-8-sig")


def read_chat_template(source: ModelSource, header: gguf.GgufHeader) -> str | None:
    """Return the operator's template, else the model's own."""
    file = source.options.chat_template
    if file is None:
        return header.chat_template
    try:
        return read_chat_template_file(Path(file))
    except (OSError, ValueError) as error:
        log.error("cannot read the chat template of %s: %r", source.id, error)
        raise ModelBroken("The chosen chat template cannot be read.") from None
