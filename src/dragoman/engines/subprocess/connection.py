"""The connection to one engine process.

Every wait on the child (steps in queues, results in futures) is registered here, so that all of
them fail together the moment the connection is lost. A lost connection is never repaired: its owner
opens another one, with another child. `watch` knows all calls, too, and whether they make progress.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from dragoman.engines.step_queue import StepQueue
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.interpreter import Interpreter
from dragoman.engines.subprocess.progress import ProgressWatch, RunningCall, make_call
from dragoman.errors import (
    DragomanError,
    EngineDown,
    EngineFailed,
    ModelBroken,
    SerializedError,
    deserialize_error,
    serialize_error,
)
from dragoman.processes.supervisor import ChildProcess
from dragoman.types import Job

T = TypeVar("T")
CHILD_MODULE = "dragoman.engines.subprocess.child"


class ChildConnection:
    """One engine process and everything that waits on it."""

    def __init__(self, logger: logging.Logger, hang_timeout: float) -> None:
        self.process = ChildProcess(
            logger,
            frame_limit=messages.MAX_MESSAGE_BYTES,
            on_frame=self._receive,
            on_disconnect=self._disconnect,
        )
        self.watch = ProgressWatch(hang_timeout)
        self._log = logger
        self.queues: dict[int, StepQueue] = {}
        self.error: DragomanError | None = None  # why the connection is closed
        self.statistics: dict[str, float] = {}  # the latest ones that the child sent
        self.on_close: Callable[[], None] | None = None
        self._is_loaded = False
        self._numbers = itertools.count(1)
        self._results: dict[int, asyncio.Future[object]] = {}

    @classmethod
    async def open(
        cls,
        load: messages.LoadEngine,
        interpreter: Interpreter,
        logger: logging.Logger,
        hang_timeout: float,
    ) -> ChildConnection:
        """Start a child and have it create its engine, without waiting for that."""
        connection = cls(logger, hang_timeout)
        await connection.process.start(interpreter.make_command(CHILD_MODULE, os.getpid()))
        connection.post(load)
        return connection

    async def wait_ready(self) -> messages.EngineReady:
        """Wait until the engine is created; `ModelBroken` when it cannot be."""
        body = await asyncio.shield(self.process.ready)
        if body is None:
            raise self.error or _make_loading_error()
        try:
            message = messages.load_decoder.decode(body)
        except msgspec.DecodeError as error:
            self._log.error("the engine's process sent an invalid first message: %r", error)
            raise _make_loading_error() from None
        if isinstance(message, messages.LoadFailed):
            self.close(deserialize_error(message.error))
            raise deserialize_error(message.error)
        if self.error is not None:  # it died before this task read its message
            raise self.error
        self._is_loaded = True
        self.watch.has_probe = message.has_probe
        return message

    async def send(self, message: messages.ToChild) -> None:
        body = messages.encode_message(message)
        if self.error is not None:
            raise self.error
        self.process.send(body)
        await self.process.drain()

    def post(self, message: messages.ToChild) -> None:
        """Send without waiting; for short messages."""
        if self.error is None:
            self.process.send(messages.encode_message(message))

    @contextmanager
    def open_queue(self, job: Job) -> Iterator[tuple[int, StepQueue]]:
        """Register a job; yield its number and the queue of its steps. Leaving cancels it."""
        number, queue = next(self._numbers), StepQueue()
        self.queues[number] = queue
        self.watch.add(make_call(number, "generate", job, queue))
        try:
            yield number, queue
        finally:
            del self.queues[number]
            self.watch.remove(number, is_cancelled=not queue.has_ended)
            if not queue.has_ended:
                self.post(messages.CancelCall(number))

    async def call(
        self, make_message: Callable[[int], messages.EngineCall], result_type: type[T]
    ) -> T:
        """Call a method of the engine and return its result; cancelling cancels it in the child."""
        number = next(self._numbers)
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._results[number] = result
        message = make_message(number)
        if (call := _make_running_call(message)) is not None:
            self.watch.add(call)
        try:
            await self.send(message)
            return _convert(await result, result_type)
        finally:
            self.watch.remove(number, is_cancelled=not result.done())
            if self._results.pop(number, None) is not None and not result.done():
                self.post(messages.CancelCall(number))
            if not result.done():
                result.cancel()
            del result  # its error leads here: break the reference cycle

    def fail_call(self, number: int, error: DragomanError) -> None:
        """Fail one call and cancel it in the child."""
        self.post(messages.CancelCall(number))
        if number in self.queues:
            self.queues[number].end(error)
        else:
            self._set_result(number, None, error)

    async def wait_exited(self) -> None:
        """Wait until the child has exited and everything it sent is read."""
        await asyncio.shield(self.process.exited)

    def close(self, error: DragomanError) -> None:
        """Fail everything that waits on the child; the first error counts."""
        if self.error is not None:
            return
        self.error = error
        serialized = serialize_error(error)  # an exception must not be raised in two places
        for queue in self.queues.values():
            queue.end(deserialize_error(serialized))
        for result in self._results.values():
            if not result.done():
                result.set_exception(deserialize_error(serialized))
        on_close, self.on_close = self.on_close, None  # it refers to this: a reference cycle
        if on_close is not None:
            on_close()

    def _receive(self, body: bytes) -> None:
        message = messages.parent_decoder.decode(body)
        match message:
            case messages.StepBatch(batches, ended):
                for number, steps in batches:
                    if number in self.queues:
                        self.queues[number].put(steps)
                for number, error in ended:
                    if number in self.queues:
                        self.queues[number].end(_deserialize(error))
            case messages.CallResult(number, value, error):
                self._set_result(number, value, _deserialize(error))
            case messages.Pong(statistics):
                self.statistics = statistics

    def _set_result(self, number: int, value: object, error: DragomanError | None) -> None:
        result = self._results.get(number)
        if result is None or result.done():
            return
        if error is None:
            self.watch.record_result(number)
            result.set_result(value)
        else:
            result.set_exception(error)

    def _disconnect(self) -> None:
        if not self._is_loaded:
            self.close(_make_loading_error())
            return
        self.close(
            EngineDown(
                "The engine stopped unexpectedly while it worked on this request. "
                "It is being restarted.",
                retry_after=1,
            )
        )


def _make_running_call(message: messages.EngineCall) -> RunningCall | None:
    """Return the entry of a call whose progress is watched; None for a probe, which watches."""
    match message:
        case messages.ProbeEngine():
            return None
        case (
            messages.LoadAdapter(number)
            | messages.UnloadAdapter(number)
            | messages.SleepEngine(number)
            | messages.WakeEngine(number)
        ):
            return RunningCall(number, "control", 0)
        case messages.AdmitJob(number, job):
            return make_call(number, "admit", job)
        case messages.EmbedInputs(number) | messages.ScorePairs(number):
            return make_call(number, "embed", message)
        case messages.TokenizeText(number) | messages.CountPrompt(number):
            return make_call(number, "tokenize", message)


def _make_loading_error() -> ModelBroken:
    return ModelBroken("The engine stopped while it loaded the model.")


def _deserialize(error: SerializedError | None) -> DragomanError | None:
    return None if error is None else deserialize_error(error)


def _convert(value: object, result_type: type[T]) -> T:
    try:
        return msgspec.convert(value, result_type)
    except msgspec.ValidationError:
        raise EngineFailed("The engine returned a value of the wrong type.") from None
