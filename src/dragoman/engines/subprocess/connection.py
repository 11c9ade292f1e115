"""The line to one child process: from its start to its death.

Everything that waits on the child (jobs in mailboxes, questions in futures) is here, so that one
place can fail all of it the moment the line breaks. A broken line is never mended: whoever owns it
makes another one with another child.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.engines.step_queue import StepQueue
from dragoman.engines.subprocess import messages
from dragoman.errors import (
    DragomanError,
    EngineDown,
    EngineFailed,
    ModelBroken,
    deserialize_error,
    serialize_error,
)

LAST_LINES = 40
LONGEST_LINE = 2000
MODULE = "dragoman.engines.subprocess.child"


class ChildConnection:
    """One child and all that waits on it."""

    def __init__(self, process: asyncio.subprocess.Process, logger: logging.Logger) -> None:
        self.process = process
        self.queues: dict[int, StepQueue] = {}
        self.down: DragomanError | None = None
        self.on_down: Callable[[], None] | None = None
        self.heard = 0  # how often anything came
        self.said: deque[str] = deque(maxlen=LAST_LINES)
        self._log = logger
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[messages.EngineReady] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def open(cls, hello: messages.LoadEngine, logger: logging.Logger) -> ChildConnection:
        """Start a child; it has not made its engine yet."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the parent
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        line = cls(process, logger)
        reader, line._writer = await asyncio.open_connection(sock=ours)
        line._tasks.append(asyncio.create_task(line._read(reader)))
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                line._tasks.append(asyncio.create_task(line._listen(stream)))
        line.post(hello)
        return line

    async def ready(self) -> messages.EngineReady:
        """What the child says once its engine is made; `ModelBroken` when it could not be."""
        return await asyncio.shield(self._ready)

    async def send(self, message: messages.ToChild) -> None:
        data = messages.encode_message(message)
        if self._writer is None or self.down is not None:
            raise self.down or EngineDown("The engine is not running.")
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):  # the reader sees the same, and tells why
            await self._writer.drain()

    def post(self, message: messages.ToChild) -> None:
        """Send without waiting; for short messages."""
        if self._writer is not None and self.down is None:
            self._writer.write(messages.encode_message(message))

    def number(self) -> int:
        return next(self._numbers)

    async def ask(self, make: Callable[[int], messages.Call]) -> Any:
        """Ask a question and wait for its answer; giving up cancels it over there."""
        number = self.number()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self.send(make(number))
            return await answer
        finally:
            if self._answers.pop(number, None) is not None and not answer.done():
                self.post(messages.CancelCall(number))
            if answer.cancelled() or not answer.done():
                answer.cancel()

    async def finished(self) -> None:
        """Wait until the line is broken and the child is gone."""
        await asyncio.wait(self._tasks[:1])
        await self.process.wait()
        _, silent = await asyncio.wait(self._tasks, timeout=1.0)
        for task in silent:  # somebody else holds the child's output open
            task.cancel()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)  # leaves the reaping to the loop

    def fail(self, error: DragomanError) -> None:
        """Nothing more comes from the child: tell everybody who waits."""
        if self.down is not None:
            return
        self.down = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # whoever asks is told; nobody asking is no mistake
        note = serialize_error(error)
        for box in self.queues.values():
            box.end(deserialize_error(note))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(deserialize_error(note))
        if self.on_down is not None:
            self.on_down()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = messages.Frames()
        try:
            while data := await reader.read(1 << 16):
                self.heard += 1
                for body in frames.feed(data):
                    self._handle(messages.parent_decoder.decode(body))
        except ConnectionError:
            pass
        except Exception as error:
            self._log.error("the engine's process sent something that cannot be read: %r", error)
        self.kill()  # a child without a line is of no use
        self.fail(self._cause())

    def _handle(self, message: messages.ToParent) -> None:
        match message:
            case messages.StepBatch(moved, ended):
                for number, steps in moved:
                    if number in self.queues:
                        self.queues[number].put(steps)
                for number, note in ended:
                    if number in self.queues:
                        self.queues[number].end(None if note is None else deserialize_error(note))
            case messages.CallResult(number, value, note):
                self._answer(number, value, None if note is None else deserialize_error(note))
            case messages.EngineReady():
                if not self._ready.done():
                    self._ready.set_result(message)
            case messages.LoadFailed(note):
                self.fail(deserialize_error(note))
            case messages.Pong():
                pass

    def _answer(self, number: int, value: Any, error: DragomanError | None) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def _cause(self) -> DragomanError:
        if not self._ready.done():
            return ModelBroken("The engine stopped while it loaded the model.")
        return EngineDown(
            "The engine stopped unexpectedly while it worked on this request. "
            "It is being restarted.",
            retry_after=1,
        )

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        """Put what the child prints into the log, line by line."""
        rest = b""
        while data := await stream.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            for line in lines:
                self._tell(line)
        if rest:
            self._tell(rest)

    def _tell(self, line: bytes) -> None:
        text = line[:LONGEST_LINE].decode(errors="replace").rstrip()
        if text:
            self.said.append(text)
            self._log.debug("%s", text)


def checked(value: Any, kind: Any) -> Any:
    """An answer as what it should be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise EngineFailed("The engine gave an answer of the wrong kind.") from None
