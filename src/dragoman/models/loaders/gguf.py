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

from dragoman.engines import get_factory
from dragoman.engines.llamacpp import gguf
from dragoman.engines.options import EngineOptions
from dragoman.errors import ModelBroken
from dragoman.models.catalog import NOT_A_MODEL, ModelSource
from dragoman.models.loaders.assemble import (
    ModelDetails,
    check_format_names,
    check_tokenizer,
    choose_chat_template,
    make_model,
)
from dragoman.models.model import Model, report_progress
from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from dragoman.tokenizers.tokenizer import tokenizer_from_gguf

if TYPE_CHECKING:
    from dragoman.engines.subprocess.engine import SubprocessEngine

log = logging.getLogger("dragoman.models")

ENGINE = "llamacpp"
HANG_TIMEOUT = 20.0  # seconds, where no setting says otherwise


async def load(source: ModelSource, hang_timeout: float = HANG_TIMEOUT) -> Model:
    """Load a file into its own engine, which is restarted after `hang_timeout` without progress."""
    check_format_names(source)
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
        details = ModelDetails(
            template=header.chat_template,
            architecture=header.architecture,
            parameters=header.parameters,
            quantization=header.quantization,
            context=header.context_length,
            directory=source.path.parent,
            metadata=header.metadata,
        )
        return await asyncio.to_thread(make_model, source, engine, tokenizer, details)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise


def make_engine(source: ModelSource, hang_timeout: float = HANG_TIMEOUT) -> SubprocessEngine:
    """Make an engine in a child process, which is not started yet."""
    from dragoman.engines.subprocess.engine import SubprocessEngine
    from dragoman.engines.subprocess.restart_schedule import Timing

    options = source.options
    names = (*EngineOptions.__struct_fields__, "lora", "embeddings")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    settings["path"] = str(source.path)
    if source.plan is not None:
        plan = source.plan
        settings |= {"context": plan.context, "slots": plan.slots, "cache_ram": plan.cache_ram}
    timing = Timing(hang_timeout=hang_timeout)
    return SubprocessEngine(get_factory(ENGINE), settings, name=source.id, timing=timing)


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


def read_special_tokens(header: gguf.GgufHeader) -> frozenset[str]:
    """Return the special tokens of a file, as a loaded model has them."""
    return frozenset(vocabulary_from_gguf(header.metadata).specials)


def read_chat_template(source: ModelSource, header: gguf.GgufHeader) -> str | None:
    """Return the operator's template, else the model's own."""
    return choose_chat_template(source, header.chat_template)
