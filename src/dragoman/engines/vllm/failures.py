"""Converts the exceptions of vLLM to our errors.

They are recognized by the names of their classes, which moved between modules from one version of
vLLM to another. Their messages go to the log, since they can contain paths.
"""

from __future__ import annotations

import logging

from dragoman.engines import EngineDied
from dragoman.errors import (
    ENGINE_FAILURE,
    AdapterNotFound,
    BadRequest,
    DragomanError,
    EngineFailed,
    Overloaded,
    Unavailable,
    convert_engine_exception,
)

log = logging.getLogger("dragoman.vllm")

QUEUE_FULL = ("QueueOverflowError", "MaxQueuedTokensError")
# vLLM's names of parameters -> those of clients
PARAMETERS = {"structured_outputs": "grammar", "lora_request": "lora"}


def convert_failure(error: BaseException) -> DragomanError | EngineDied:
    """Return the error that a request fails with."""
    if isinstance(error, DragomanError | EngineDied):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    if "EngineDeadError" in names:
        return EngineDied("the engine core of vLLM has ended")
    if names.intersection(QUEUE_FULL):
        return Overloaded("The queue of this model's engine is full.", retry_after=1)
    if "RetryableRequestError" in names or "GracefulHTTPError" in names:
        return Unavailable("The engine cannot run this request now.", retry_after=1)
    if "LoRAAdapterNotFoundError" in names:
        return AdapterNotFound("This model has no such adapter.", param="lora")
    if "VLLMClientError" in names or type(error) is ValueError:
        return _convert_rejection(error)
    if "EngineGenerateError" in names and error.__cause__ is not None:
        return convert_failure(error.__cause__)
    log.error("vLLM failed", exc_info=error)
    return convert_engine_exception(error)


def _convert_rejection(error: BaseException) -> DragomanError:
    """Convert the error of a request that vLLM does not accept."""
    log.warning("vLLM rejected a request: %s", error)
    parameter = getattr(error, "parameter", None)
    if not isinstance(parameter, str):
        return BadRequest("The engine rejects this request.")
    param = PARAMETERS.get(parameter, parameter)
    return BadRequest(f"The engine rejects the value of `{param}`.", param=param)


def make_finish_error(reason: str) -> DragomanError:
    """Return the error of an answer that vLLM ended by itself."""
    if reason == "abort":
        return Unavailable("The engine aborted this request.", retry_after=1)
    return EngineFailed(ENGINE_FAILURE)
