"""The process that runs an engine: `python -m dragoman.engines.subprocess.child PARENT`.

It creates the engine that the parent names, runs jobs, and sends their steps once for each step of
the engine: the jobs of one engine step yield within a millisecond of each other, so the child waits
that long. An engine with `steps_together` puts all of them in one iteration of the event loop; one
with `push_steps(job, put)` calls `put` with each step, so that no task is woken for it. While the
parent does not read, waiting steps are merged, so that the engine is never slowed down and memory
stays bounded by the answers. The process ends when the parent asks it to, when its engine dies, or
when the parent is gone: the socket closes, and where supported, the kernel kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import NoReturn, Protocol, TypeAlias

from dragoman.engines import EngineDied, get_capabilities
from dragoman.engines.factory_import import import_factory
from dragoman.engines.step_queue import MERGE_THRESHOLD, merge_steps
from dragoman.engines.subprocess import messages
from dragoman.errors import (
    DragomanError,
    ModelBroken,
    SerializedError,
    Unsupported,
    serialize_error,
)
from dragoman.processes.child import die_with_parent, ignore_interrupts, open_parent_connection
from dragoman.processes.framing import FrameDecoder, FramingError, encode_frame
from dragoman.types import Engine, Job, Step
from dragoman.types.cache_scope import restore_cache_scope

log = logging.getLogger("dragoman.engines.child")

PushSteps: TypeAlias = Callable[[Job, Callable[[Step], None]], Awaitable[None]]
COLLECT_SECONDS = 0.001  # within which all jobs of one engine step yield
MAX_BUFFERED_BYTES = 1 << 18  # in the socket, before steps are merged instead
READ_BYTES = 1 << 16
# A library of the system that an engine's wheel needs, and how to install it.
MISSING_LIBRARY = re.compile(r"(lib[\w.+-]{1,100}\.so[.\d]*): cannot open shared object file")
INSTALL_HINTS = {"libgomp.so.1": " On Debian and Ubuntu: apt install libgomp1."}


class _Transport(Protocol):
    def get_write_buffer_size(self) -> int: ...


class FrameWriter(Protocol):
    """The methods of `asyncio.StreamWriter` that `StepSender` calls."""

    @property
    def transport(self) -> _Transport: ...
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class StepSender:
    """Collects steps and sends them in one message for each step of the engine."""

    def __init__(self, writer: FrameWriter) -> None:
        self.steps_together = False  # the engine puts all steps of an engine step at once
        self._writer = writer
        self._steps: dict[int, list[Step]] = {}
        self._ended: list[tuple[int, SerializedError | None]] = []
        self._is_scheduled = False
        self._drain_task: asyncio.Task[None] | None = None
        self.running_jobs = 0

    def add(self, number: int, step: Step) -> None:
        waiting = self._steps.setdefault(number, [])
        waiting.append(step)
        if len(waiting) > MERGE_THRESHOLD:
            self._steps[number] = merge_steps(waiting)
        self._schedule()

    def end(self, number: int, error: SerializedError | None) -> None:
        self._ended.append((number, error))
        self._schedule()

    def discard(self, number: int) -> None:
        """Drop the waiting steps of a cancelled job."""
        self._steps.pop(number, None)

    def send(self, message: messages.LoadReport | messages.ToParent) -> None:
        self._writer.write(encode_frame(messages.encode_message(message)))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            if self.running_jobs > 1 and not self.steps_together:
                loop.call_later(COLLECT_SECONDS, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._writer.transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            self._drain_task = asyncio.ensure_future(self._drain())
            return
        self._is_scheduled = False
        batch = messages.StepBatch(list(self._steps.items()), self._ended)
        self._steps, self._ended = {}, []
        self.send(batch)

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._flush()


class EngineServer:
    """Runs the engine as the parent's messages request."""

    def __init__(self, engine: Engine, sender: StepSender) -> None:
        self._engine = engine
        self._sender = sender
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._push_steps: PushSteps | None = getattr(engine, "push_steps", None)
        sender.steps_together = bool(getattr(engine, "steps_together", False))

    def handle(self, message: messages.ToChild) -> bool:
        """Handle a message; return False when the process must end."""
        match message:
            case messages.StartJob(number, job):
                self._create_task(number, self._run_job(number, job))
            case messages.CancelCall(number):
                self._cancel(number)
            case messages.Ping():
                if getattr(self._engine, "has_died", False):
                    raise EngineDied("the engine has died")
                self._sender.send(messages.Pong(self._read_statistics()))
            case messages.Shutdown():
                return False
            case messages.LoadEngine():
                log.warning("ignored a second request to load an engine")
            case _:
                self._create_task(message.number, self._answer(message))
        return True

    async def aclose(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        close = getattr(self._engine, "aclose", None)
        if close is not None:
            await close()

    def _create_task(self, number: int, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[number] = task
        self._sender.running_jobs = len(self._tasks)
        task.add_done_callback(lambda _: self._remove_task(number))

    def _remove_task(self, number: int) -> None:
        self._tasks.pop(number, None)
        self._sender.running_jobs = len(self._tasks)

    def _cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
        self._sender.discard(number)

    def _read_statistics(self) -> dict[str, float]:
        read = getattr(self._engine, "read_statistics", None)
        return {} if read is None else read()

    async def _run_job(self, number: int, job: Job) -> None:
        restore_cache_scope(job.cache_scope)
        failure = None
        try:
            if self._push_steps is not None:
                await self._push_steps(job, partial(self._sender.add, number))
            else:
                async with aclosing(self._engine.generate(job)) as steps:
                    async for step in steps:
                        self._sender.add(number, step)
        except EngineDied as error:
            self._end_process(error)
            return
        except Exception as error:
            failure = _log_and_serialize(error, f"job {job.id}")
        self._sender.end(number, failure)

    async def _answer(self, call: messages.EngineCall) -> None:
        try:
            result = messages.CallResult(call.number, await _call_engine(self._engine, call))
        except EngineDied as error:
            self._end_process(error)
            return
        except Exception as error:
            failure = _log_and_serialize(error, type(call).__name__)
            result = messages.CallResult(call.number, None, failure)
        self._sender.send(result)

    def _end_process(self, error: EngineDied) -> None:
        """End at once: the parent fails all jobs and starts another child."""
        log.error("%s", error)
        end_process(1)  # exit code 1: closing the connection alone would look like a kill


async def _call_engine(engine: Engine, call: messages.EngineCall) -> object:
    """Call the engine's method that the message names."""
    match call:
        case messages.AdmitJob(_, job):
            restore_cache_scope(job.cache_scope)
            await engine.admit(job)
            return None
        case messages.EmbedInputs(_, inputs, adapters):
            extra = [adapters] if adapters else []
            return await _get_method(engine, "embed")(inputs, *extra)
        case messages.ScorePairs(_, pairs):
            return await _get_method(engine, "score")(pairs)
        case messages.TokenizeText(_, text, special):
            return await _get_method(engine, "tokenize")(text, special)
        case messages.CountPrompt(_, prompt, media, scope):
            restore_cache_scope(scope)
            return await _get_method(engine, "count_prompt")(prompt, media)
        case messages.ProbeEngine():
            return await _get_method(engine, "probe")()
        case messages.LoadAdapter(_, name, path):
            return await _get_method(engine, "load_adapter")(name, path)
        case messages.UnloadAdapter(_, name):
            return await _get_method(engine, "unload_adapter")(name)
        case messages.SleepEngine():
            return await _get_method(engine, "sleep")()
        case messages.WakeEngine():
            return await _get_method(engine, "wake")()


def _get_method(engine: Engine, name: str) -> Callable[..., Awaitable[object]]:
    method: Callable[..., Awaitable[object]] | None = getattr(engine, name, None)
    if method is None:
        raise Unsupported(f"This model's engine does not support `{name}`.")
    return method


def _log_and_serialize(error: Exception, where: str) -> SerializedError:
    """Serialize an error for the parent; log one that is not ours, whose details stay here."""
    if not isinstance(error, DragomanError):
        log.error("%s failed", where, exc_info=error)
    return serialize_error(error)


async def create_engine(message: messages.LoadEngine) -> Engine:
    """Call `module:function` with the settings; the function may be async."""
    created = import_factory(message.factory)(**message.settings)
    return await created if inspect.isawaitable(created) else created


async def serve(connection: socket.socket) -> int:
    """Create the engine and serve the parent until it sends `Shutdown`; return the exit code."""
    reader, writer = await asyncio.open_connection(sock=connection)
    decoder, sender = FrameDecoder(messages.MAX_MESSAGE_BYTES), StepSender(writer)
    server: EngineServer | None = None
    while data := await reader.read(READ_BYTES):
        for body in decoder.feed(data):
            message = messages.child_decoder.decode(body)
            if server is None:
                server = await _load(message, sender)
                if server is None:
                    await writer.drain()
                    writer.close()
                    return 1
            elif not server.handle(message):
                await server.aclose()
                return 0
    return 1  # the parent is gone


async def _load(message: messages.ToChild, sender: StepSender) -> EngineServer | None:
    """Create the engine and report the outcome to the parent; None if it cannot be created."""
    if not isinstance(message, messages.LoadEngine):
        raise FramingError(f"the first message is {type(message).__name__}, not LoadEngine")
    try:
        engine = await create_engine(message)
    except DragomanError as error:
        sender.send(messages.LoadFailed(serialize_error(error)))
        return None
    except Exception as error:
        sender.send(messages.LoadFailed(serialize_error(_explain_load_error(error, message))))
        return None
    has_probe = callable(getattr(engine, "probe", None))
    sender.send(messages.EngineReady(get_capabilities(engine), has_probe))
    return EngineServer(engine, sender)


def _explain_load_error(error: Exception, message: messages.LoadEngine) -> ModelBroken:
    """Explain an error that is not ours. Only a missing library can be named."""
    missing = MISSING_LIBRARY.search(str(error)) if isinstance(error, ImportError) else None
    if missing is None:
        log.error("%s failed", message.factory, exc_info=error)
        return ModelBroken("The engine could not be started.")
    hint = INSTALL_HINTS.get(missing[1], "")
    return ModelBroken(
        f"The engine needs the system library {missing[1]}, which is not installed.{hint}"
    )


def _get_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def main() -> None:
    connection = open_parent_connection()
    ignore_interrupts()
    die_with_parent(int(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code = 1
    try:
        with asyncio.Runner(loop_factory=_get_loop_factory()) as runner:
            code = runner.run(serve(connection))
    except ConnectionError:
        pass
    except Exception:
        log.exception("the engine process failed")
    end_process(code)


def end_process(code: int) -> NoReturn:
    """End this process, whatever its native threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
