"""Loads a model file: header, tokenizer, engine, template.

The header is checked before any native code sees the file, and the engine runs in a process of its
own, so a file that breaks it takes nobody else along. The tokenizer is rebuilt while the engine
starts, and then proved against it. If anything fails or the load is cancelled, the engine is closed
again before the error goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import msgspec

from dragoman.engines import get_capabilities, get_factory
from dragoman.engines.llamacpp import gguf
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.model import (
    Model,
    ModelInfo,
    list_capabilities,
    report_progress,
)
from dragoman.models.output_format import check_names, detect_output_format
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.tokenizer import AnyTokenizer, tokenizer_from_gguf, verify_tokenizer
from dragoman.types import Sampling

log = logging.getLogger("dragoman.models")

DEFAULT_ENGINE = "llamacpp"
SAFETENSORS_EXTRA = "vllm"  # runs models that are stored as safetensors
MAX_TEMPLATE = 4 << 20
# names in a generation_config.json, and in a GGUF file, of our sampling fields
GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
}
METADATA_FIELDS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}


async def load(source: ModelSource) -> Model:
    """Load whatever kind of model it is."""
    if source.kind == "gguf":
        return await load_gguf(source)
    raise ModelBroken(
        f"It is stored as safetensors, which needs an extra: pip install 'dragoman[{SAFETENSORS_EXTRA}]'"
    )


async def load_gguf(source: ModelSource) -> Model:
    """Load a GGUF file into an engine of its own."""
    try:
        check_names(source.options.format, source.options.reasoning_format)
    except ValueError as error:
        raise ModelBroken(f"It was given an {error}.") from None
    report_progress("reading the file", 0.02)
    header = await asyncio.to_thread(read_model_header, source.path)
    report_progress("starting the engine", 0.1)
    engine = make_engine(source)
    try:
        tokenizer, _ = await asyncio.gather(
            asyncio.to_thread(tokenizer_from_gguf, header.metadata, engine), engine.start()
        )
        report_progress("proving the tokenizer", 0.9)
        tokenizer = await check_tokenizer(tokenizer, engine)
        return await asyncio.to_thread(make_model, source, header, engine, tokenizer)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise


def make_engine(source: ModelSource) -> Any:
    """An engine in a process of its own; not started yet."""
    from dragoman.engines.subprocess.engine import SubprocessEngine

    chosen = source.options
    settings: dict[str, Any] = {
        "path": str(source.path),
        "context": chosen.context or None,
        "slots": chosen.slots or None,
        "threads": chosen.threads or None,
        "gpu_layers": chosen.gpu_layers if (chosen.gpu_layers or 0) >= 0 else None,
        "lora": chosen.lora,
        "embeddings": chosen.embeddings,
    }
    said = {name: value for name, value in settings.items() if value is not None}
    try:
        made_by = get_factory(chosen.engine or DEFAULT_ENGINE)
    except ValueError as error:
        raise ModelBroken(str(error)) from None
    return SubprocessEngine(made_by, said, name=source.id)


def read_model_header(path: Path) -> gguf.GgufHeader:
    """The header of a file that an engine may be given."""
    for file in gguf.list_split_files(path):
        if file != path:
            gguf.read_header(file, arrays=False)
    header = gguf.read_header(path)
    if header.kind != "model" or not header.tensors.count:
        raise ModelBroken("The file holds no model of its own.")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(set(tokens) - {""}) + tokens.count("") != len(tokens):
        raise ModelBroken("Two tokens of its vocabulary have the same text.")
    return header


async def check_tokenizer(tokenizer: AnyTokenizer | None, engine: Any) -> AnyTokenizer | None:
    if tokenizer is None or not get_capabilities(engine).tokenize:
        return tokenizer
    return await verify_tokenizer(tokenizer, engine)


def make_model(
    source: ModelSource, header: gguf.GgufHeader, engine: Any, tokenizer: AnyTokenizer | None
) -> Model:
    """The model around its engine. A template that cannot be used is the model's fault."""
    can = get_capabilities(engine)
    template = read_chat_template(source, header)
    formats = source.options.format, source.options.reasoning_format
    try:
        known = detect_output_format(template, tokenizer, formats, source.id)
        renderer = PromptRenderer(template, tokenizer, reasoning=known.reasoning_options)
    except DragomanError as error:
        raise ModelBroken(error.message) from None
    info = ModelInfo(
        architecture=header.architecture,
        parameters=header.parameters,
        quantisation=header.quantisation,
        context=can.context or header.context_length,
        size=source.size,
        modalities=can.modalities,
        capabilities=list_capabilities(can, template, known.output_format),
        lora=can.lora,
        created=source.created,
    )
    beside = read_generation_config(source.path.parent / "generation_config.json")
    return Model(
        id=source.id,
        engine=engine,
        info=info,
        path=source.path,
        capabilities=can,
        tokenizer=tokenizer,
        template_source=template,
        defaults=source.options.defaults.with_defaults(
            beside.with_defaults(parse_sampling(header.metadata, METADATA_FIELDS))
        ),
        output_format=known.output_format,
        renderer=renderer,
    )


def read_chat_template(source: ModelSource, header: gguf.GgufHeader) -> str | None:
    """The operator's template, else the model's own."""
    file = source.options.chat_template
    if file is None:
        return header.chat_template
    try:
        if Path(file).stat().st_size > MAX_TEMPLATE:
            raise ModelBroken("The chat template that was chosen for it is too large.")
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        log.error("the chat template of %s cannot be read: %r", source.id, error)
        raise ModelBroken("The chat template that was chosen for it cannot be read.") from None


def read_generation_config(file: Path) -> Sampling:
    """Sampling defaults that the model's author wrote down, if there are any."""
    try:
        said = json.loads(file.read_bytes()[: 1 << 20])
    except FileNotFoundError:
        return Sampling()
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is ignored: %r", file.name, error)
        return Sampling()
    return parse_sampling(said, GENERATION_FIELDS) if isinstance(said, dict) else Sampling()


def parse_sampling(said: dict[str, Any], names: dict[str, str]) -> Sampling:
    """Fields that have a usable value; the others count as not said."""
    found = Sampling()
    for theirs, ours in names.items():
        value = said.get(theirs)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        try:
            found = msgspec.convert({ours: value}, Sampling).with_defaults(found)
        except msgspec.ValidationError:
            log.warning("the model's default %s is ignored: it is not a number", theirs)
    return found
