"""The process an engine lives in: `python -m dragoman.engines.subprocess.child FD PARENT`.

It makes the engine it is told to, runs jobs as they come, and sends what moved once for each step
of the engine: the jobs of one step move within a moment of each other, which is waited for. While
the parent does not read, what waits is merged, so that an engine is never held up and memory stays
bounded by the answers. It ends when it is told to, and when the parent is gone: the socket closes,
and where the system can, the kernel ends it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from dragoman.engines import capabilities_of
from dragoman.engines.step_queue import MERGE_THRESHOLD, merge_steps
from dragoman.engines.subprocess import messages
from dragoman.errors import (
    DragomanError,
    ModelBroken,
    SerializedError,
    Unsupported,
    serialize_error,
)
from dragoman.types import Job, Step

log = logging.getLogger("dragoman.isolated")

PR_SET_PDEATHSIG = 1
MOMENT = 0.001  # seconds in which the jobs of one step of an engine move
MAX_BUFFERED_BYTES = 1 << 18  # bytes that may wait in the socket before steps are merged instead


class StepSender:
    """Collects what moved and sends it once for each step of the engine."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._moved: dict[int, list[Step]] = {}
        self._ended: list[tuple[int, SerializedError | None]] = []
        self._planned = False
        self._drained: asyncio.Task[None] | None = None
        self.jobs = 0  # how many run

    def add(self, number: int, step: Step) -> None:
        waiting = self._moved.setdefault(number, [])
        waiting.append(step)
        if len(waiting) > MERGE_THRESHOLD:
            self._moved[number] = merge_steps(waiting)
        self._plan()

    def end(self, number: int, note: SerializedError | None) -> None:
        self._ended.append((number, note))
        self._plan()

    def drop(self, number: int) -> None:
        """Nobody wants this job's steps any more."""
        self._moved.pop(number, None)

    def send(self, message: messages.ToParent) -> None:
        self._writer.write(messages.encode_message(message))

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            loop = asyncio.get_running_loop()
            if self.jobs > 1:
                loop.call_later(MOMENT, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._writer.transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            self._drained = asyncio.ensure_future(self._wait())
            return
        self._planned = False
        moved, ended = list(self._moved.items()), self._ended
        self._moved, self._ended = {}, []
        self.send(messages.StepBatch(moved, ended))

    async def _wait(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._flush()


class Child:
    """Does what the parent says."""

    def __init__(self, engine: Any, outbox: StepSender) -> None:
        self._engine = engine
        self._outbox = outbox
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def handle(self, message: messages.ToChild) -> bool:
        """False when it is time to go."""
        match message:
            case messages.StartJob(number, job):
                self._begin(number, self._run(number, job))
            case messages.AdmitJob() | messages.EmbedInputs() | messages.TokenizeText():
                self._begin(message.number, self._answer(message))
            case messages.CancelCall(number):
                self._cancel(number)
            case messages.Ping():
                self._outbox.send(messages.Pong())
            case messages.Shutdown():
                return False
            case messages.LoadEngine():
                log.warning("a second greeting is ignored")
        return True

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = getattr(self._engine, "aclose", None)
        if closing is not None:
            await closing()

    def _begin(self, number: int, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks[number] = task
        self._outbox.jobs = len(self._tasks)
        task.add_done_callback(lambda _: self._finished(number))

    def _finished(self, number: int) -> None:
        self._tasks.pop(number, None)
        self._outbox.jobs = len(self._tasks)

    def _cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
        self._outbox.drop(number)

    async def _run(self, number: int, job: Job) -> None:
        note = None
        try:
            async with aclosing(self._engine.generate(job)) as steps:
                async for step in steps:
                    self._outbox.add(number, step)
        except Exception as error:
            note = told(error, f"job {job.id}")
        self._outbox.end(number, note)

    async def _answer(self, question: messages.Call) -> None:
        number = question.number
        try:
            answer = messages.CallResult(number, await ask(self._engine, question))
        except Exception as error:
            answer = messages.CallResult(number, None, told(error, type(question).__name__.lower()))
        self._outbox.send(answer)


async def ask(engine: Any, question: messages.Call) -> Any:
    """Put a question to the engine's own methods."""
    match question:
        case messages.AdmitJob(_, job):
            return await engine.admit(job)
        case messages.EmbedInputs(_, inputs, adapters):
            extra = [adapters] if adapters else []
            return await _method(engine, "embed")(inputs, *extra)
        case messages.TokenizeText(_, text, special):
            return await _method(engine, "tokenize")(text, special)


def _method(engine: Any, name: str) -> Any:
    function = getattr(engine, name, None)
    if function is None:
        raise Unsupported(f"This model's engine cannot {name}.")
    return function


def told(error: Exception, where: str) -> SerializedError:
    """The error as the parent hears it; what is none of ours goes to the log in full."""
    if not isinstance(error, DragomanError):
        log.error("%s failed", where, exc_info=error)
    return serialize_error(error)


async def make(hello: messages.LoadEngine) -> Any:
    """The engine that `module:function` makes of the settings."""
    module, _, function = hello.factory.partition(":")
    made = getattr(importlib.import_module(module), function)(**hello.settings)
    return await made if inspect.isawaitable(made) else made


async def serve(sock: socket.socket) -> int:
    """Make the engine and work until told to stop; what the process should exit with."""
    reader, writer = await asyncio.open_connection(sock=sock)
    frames, outbox = messages.Frames(), StepSender(writer)
    child: Child | None = None
    while data := await reader.read(1 << 16):
        for body in frames.feed(data):
            message = messages.child_decoder.decode(body)
            if child is None:
                child = await _greet(message, outbox)
                if child is None:
                    await writer.drain()
                    writer.close()
                    return 1
            elif not child.handle(message):
                await child.close()
                return 0
    return 1  # the parent is gone


async def _greet(message: messages.ToChild, outbox: StepSender) -> Child | None:
    if not isinstance(message, messages.LoadEngine):
        raise messages.BadFrame("the first message is no greeting")
    try:
        engine = await make(message)
    except Exception as error:
        note = told(error, message.factory)
        if not isinstance(error, DragomanError):
            note = serialize_error(ModelBroken("The engine could not be started."))
        outbox.send(messages.LoadFailed(note))
        return None
    outbox.send(messages.EngineReady(capabilities_of(engine), os.getpid()))
    return Child(engine, outbox)


def die_with(parent: int) -> None:
    """Be ended with the parent, where the system can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def quickest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    die_with(parent)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code = 1
    try:
        with asyncio.Runner(loop_factory=quickest_loop()) as runner:
            code = runner.run(serve(socket.socket(fileno=descriptor)))
    except ConnectionError:
        pass
    except Exception:
        log.exception("the engine's process ends")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # native threads may still run: they are not waited for


if __name__ == "__main__":
    main()
