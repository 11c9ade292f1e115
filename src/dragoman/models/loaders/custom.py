"""Loads a model into an engine that the operator names by an import string."""

from __future__ import annotations

import asyncio

from dragoman.detection.sources import read_template_source
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.assemble import (
    ModelDetails,
    check_format_names,
    check_tokenizer,
    make_model,
)
from dragoman.models.loaders.gguf import read_model_header
from dragoman.models.model import Model, report_progress
from dragoman.tokenizers.tokenizer import (
    AnyTokenizer,
    tokenizer_from_directory,
    tokenizer_from_gguf,
)


async def load(source: ModelSource, factory: str, hang_timeout: float) -> Model:
    """Load a file or directory; `factory` is `module:function`."""
    check_format_names(source)
    report_progress("starting the engine", 0.1)
    settings = {"path": str(source.path), **source.options.engine_arg}
    engine = SubprocessEngine(
        factory, settings, name=source.id, timing=Timing(hang_timeout=hang_timeout)
    )
    try:
        await engine.start()
        tokenizer, details = await asyncio.to_thread(_read_files, source, engine)
        tokenizer = await check_tokenizer(tokenizer, engine)
        return await asyncio.to_thread(make_model, source, engine, tokenizer, details)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise


def _read_files(
    source: ModelSource, engine: SubprocessEngine
) -> tuple[AnyTokenizer | None, ModelDetails]:
    """Return what the files say; an engine without token ids needs no tokenizer."""
    takes_ids = engine.capabilities.token_prompts
    if source.kind == "gguf":
        header = read_model_header(source.path)
        tokenizer = tokenizer_from_gguf(header.metadata, engine) if takes_ids else None
        template, directory = header.chat_template, source.path.parent
    else:
        found = read_template_source(source.path)
        tokenizer = tokenizer_from_directory(source.path, engine) if takes_ids else None
        template, directory = None if found is None else found.template, source.path
    return tokenizer, ModelDetails(
        template=template,
        architecture=source.architecture,
        parameters=source.parameters,
        quantization=source.quantization,
        context=source.context,
        directory=directory,
    )
