"""One worker's process, as the workshop sees it: from its start to its death.

It is a protocol of the event loop's, without a task of its own: what the process says and that it
ends are calls. A process that has ended counts as gone once all that it said was heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from typing import cast

from dragoman.grammar.compiler.worker import (
    HEAD,
    MAX_FRAME_BYTES,
    CompileResult,
    frame,
    result_decoder,
)

log = logging.getLogger("dragoman.constraint")

START_TIMEOUT = 60.0  # seconds for a process to import what it needs
LAST_LINES, LONGEST_LINE = 20, 2000


class WorkerProcess(asyncio.SubprocessProtocol):
    """A place where one order at a time is worked on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = loop.create_future()  # False: it never will be
        self.exited: asyncio.Future[None] = loop.create_future()
        self.stderr_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.timed_out = False
        self.was_used = False
        self.exit_code: int | None = None  # what it ended with
        self._killed = False
        self._received = bytearray()
        self._reply: asyncio.Future[bytes | None] | None = None
        self._process: asyncio.SubprocessTransport | None = None

    @property
    def pid(self) -> int | None:
        return self._process.get_pid() if self._process is not None else None

    async def start(self, command: list[str]) -> bool:
        """Whether it runs and can take orders."""
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *command,
                start_new_session=True,  # signals of the terminal are for the parent
            )
        except (OSError, ValueError) as error:
            log.error("a worker for constraints cannot be started: %r", error)
            self.exited.set_result(None)
        ready = await self.receive(START_TIMEOUT) is not None
        if not ready:
            self.kill()
        self.ready.set_result(ready)
        return ready

    async def compile(self, data: bytes, seconds: float) -> CompileResult | None:
        """Its answer to an order; None if it died over it or was killed for being late."""
        if self._process is not None and not self.exited.done():
            pipe = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))
            pipe.write(frame(data))
        heard = await self.receive(seconds)
        return None if heard is None else result_decoder.decode(heard)

    async def receive(self, seconds: float) -> bytes | None:
        """The next frame it sends."""
        if self.exited.done():
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._reply = answer
        self._deliver_frame()
        await asyncio.wait({answer}, timeout=seconds)
        if not answer.done():
            self.timed_out = True
            self.kill()
        return await answer

    def kill(self) -> None:
        self._killed = True
        process = self._process
        if process is not None and process.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.get_pid(), signal.SIGKILL)  # leaves the reaping to the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)
        if self._killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._received += data
            self._deliver_frame()
        else:
            for line in data.splitlines():
                text = line[:LONGEST_LINE].decode(errors="replace")
                self.stderr_lines.append(text)
                log.debug("%s", text)

    def connection_lost(self, error: Exception | None) -> None:
        """The process has ended, and all that it said was heard."""
        if self._process is not None:
            self.exit_code = self._process.get_returncode()
            self._process.close()
        self.exited.set_result(None)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)

    def _deliver_frame(self) -> None:
        size = int.from_bytes(self._received[:HEAD], "big")
        if size > MAX_FRAME_BYTES:
            self.kill()
        elif len(self._received) >= HEAD + size and self._reply is not None:
            body = bytes(self._received[HEAD : HEAD + size])
            del self._received[: HEAD + size]
            if not self._reply.done():
                self._reply.set_result(body)
