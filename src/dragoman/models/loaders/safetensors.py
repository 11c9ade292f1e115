"""Loads a directory of safetensors: config, tokenizer, chat template, engine.

The engine runs in a child process of the Python that has it, which need not be ours.
"""

from __future__ import annotations

import asyncio
import logging

from dragoman.detection.sources import read_template_source
from dragoman.engines import get_factory
from dragoman.engines.options import EngineOptions
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.interpreter import Interpreter
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.engines.vllm.settings import VllmSettings, list_variables, parse_settings
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.assemble import (
    ModelDetails,
    check_format_names,
    check_tokenizer,
    make_model,
)
from dragoman.models.model import Model, report_progress
from dragoman.tokenizers.tokenizer import tokenizer_from_directory

log = logging.getLogger("dragoman.models")

ENGINE = "vllm"
# options that this engine honours, and those that the server does
USED_OPTIONS = ("context", "slots", "threads", "shared_cache")


async def load(source: ModelSource, interpreter: Interpreter, hang_timeout: float) -> Model:
    """Load a directory into its own engine."""
    check_format_names(source)
    report_progress("reading the files", 0.02)
    template = await asyncio.to_thread(read_template_source, source.path)
    report_progress("starting the engine", 0.1)
    engine = make_engine(source, interpreter, hang_timeout)
    try:
        tokenizer, _ = await asyncio.gather(
            asyncio.to_thread(tokenizer_from_directory, source.path, engine), engine.start()
        )
        report_progress("checking the tokenizer", 0.9)
        tokenizer = await check_tokenizer(tokenizer, engine)
        details = ModelDetails(
            template=None if template is None else template.template,
            architecture=source.architecture,
            parameters=source.parameters,
            quantization=source.quantization,
            context=source.context,
            directory=source.path,
        )
        return await asyncio.to_thread(make_model, source, engine, tokenizer, details)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise


def make_engine(
    source: ModelSource, interpreter: Interpreter, hang_timeout: float
) -> SubprocessEngine:
    """Make an engine in a child process, which is not started yet."""
    settings = make_settings(source)
    parsed = parse_settings(settings)
    started_by = Interpreter(
        python=interpreter.python, variables=list_variables(parsed) | interpreter.variables
    )
    return SubprocessEngine(
        get_factory(ENGINE),
        settings,
        name=source.id,
        timing=Timing(hang_timeout=hang_timeout),
        interpreter=started_by,
    )


def make_settings(source: ModelSource) -> dict[str, object]:
    """Return the settings of the engine; log the options that it does not use."""
    options = source.options
    unused = [
        name
        for name in EngineOptions.__struct_fields__
        if getattr(options, name) is not None and name not in USED_OPTIONS
    ]
    for name in unused:
        log.warning(
            "%s: vLLM has no option `%s`; use its own names with --engine-arg", source.id, name
        )
    names = [name for name in VllmSettings.__struct_fields__ if hasattr(options, name)]
    values = {name: value for name in names if (value := getattr(options, name)) is not None}
    return values | {"path": str(source.path)}
