"""Starts vLLM in this process, which must be a child of the server."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path

from msgspec import Struct

from dragoman.engines.system_memory import read_available_memory
from dragoman.engines.vllm.native import Native
from dragoman.engines.vllm.settings import (
    VllmSettings,
    build_arguments,
    check_directory,
)
from dragoman.engines.vllm.statistics import SchedulerStatistics
from dragoman.errors import DragomanError, ModelBroken, OutOfMemory
from dragoman.types import Json

log = logging.getLogger("dragoman.vllm")


class LoadedLlm(Struct, frozen=True):
    """A started `AsyncLLM`, and what is known about it."""

    llm: Native
    config: Native  # vLLM's `VllmConfig`
    arguments: dict[str, Json]
    statistics: SchedulerStatistics


async def start_llm(settings: VllmSettings) -> LoadedLlm:
    """Start vLLM, or raise an error that says what is wrong."""
    check_directory(Path(settings.path))
    return await asyncio.to_thread(_start, settings)


def _start(settings: VllmSettings) -> LoadedLlm:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    arguments = build_arguments(
        settings, known, on_cpu=current_platform.is_cpu(), available=read_available_memory()
    )
    statistics = SchedulerStatistics()
    try:
        # without a context, vLLM sizes its batches for a small GPU
        config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, TypeError) as error:
        raise _explain_rejection(error) from None
    try:
        llm = AsyncLLM.from_vllm_config(
            config, stat_loggers=[statistics.make_logger], disable_log_stats=True
        )
    except DragomanError:
        raise
    except Exception as error:
        raise _explain_failure(error) from error
    return LoadedLlm(llm, config, arguments, statistics)


def _explain_rejection(error: Exception) -> ModelBroken:
    """Explain why vLLM does not take its arguments. The message is for the operator."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "validation error" in lines[0] and len(lines) > 1:  # of pydantic
        lines = lines[1:]
    return ModelBroken(f"vLLM rejects its settings: {' '.join(lines[:2])[:400]}")


def _explain_failure(error: Exception) -> DragomanError:
    log.error("vLLM failed to start", exc_info=error)
    if "memory" in str(error).lower():
        return OutOfMemory(
            "vLLM has too little memory for this model: lower `--context`, or set "
            "`gpu_memory_utilization` or `kv_cache_memory_bytes` with --engine-arg."
        )
    return ModelBroken("vLLM could not load the model; the log of the engine says why.")
