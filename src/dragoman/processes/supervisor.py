"""One child process, from its start to its exit.

`ChildProcess` runs on the event loop's callbacks and has no task of its own. The parent and the
child share a socket pair, of which the child gets one end as its standard input (see `child`); both
sides send frames over it. The child's standard output and standard error are logged line by line,
and the last lines are stored for an error report.

The first frame from a child means that it is ready. A child whose connection is lost, or that sends
something that is not a frame, is killed. It has exited once the process is gone and everything it
sent and printed has been read; if another process holds its output open, the wait is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from dragoman.processes.child import STANDARD_ERROR, STANDARD_OUTPUT
from dragoman.processes.framing import FrameDecoder, encode_frame

LAST_LINES = 40
MAX_LINE_BYTES = 2000
OUTPUT_GRACE = 1.0  # seconds to read the rest of the output after the process has ended


class ChildProcess(asyncio.SubprocessProtocol):
    """A child process and the framed connection to it.

    `on_frame` is called with each frame after the first, and `on_disconnect` once when no more
    frames can come.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        frame_limit: int,
        on_frame: Callable[[bytes], None],
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bytes | None] = loop.create_future()  # None: it exited before
        self.exited: asyncio.Future[None] = loop.create_future()
        self.returncode: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log = logger
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._lines = {STANDARD_OUTPUT: b"", STANDARD_ERROR: b""}  # unfinished ones
        self._process: asyncio.SubprocessTransport | None = None
        self._has_ended = False
        self._connection = _ChildProtocol(frame_limit, self._receive, self._disconnect)
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.get_pid()

    @property
    def read_count(self) -> int:
        """How often data has arrived from the child; a growing number means that it is alive."""
        return self._connection.read_count

    async def start(self, command: Sequence[str]) -> None:
        """Start the process; `OSError` or `ValueError` if the system cannot.

        If this is cancelled, the process has exited when it returns.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            await self._spawn(command, theirs)
            await loop.create_connection(lambda: self._connection, sock=ours)
        except BaseException:
            ours.close()
            self._connection.connection_lost(None)  # which kills the child
            if self._process is None:
                self._end_process()
            await asyncio.shield(self.exited)
            raise
        finally:
            theirs.close()

    async def _spawn(self, command: Sequence[str], connection: socket.socket) -> None:
        """Create the process; one that is being created when this is cancelled is known then."""
        spawning = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *command,
                stdin=connection.fileno(),
                start_new_session=True,  # signals of the terminal are for the parent
            )
        )
        try:
            await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await asyncio.wait({spawning})
            raise

    def send(self, body: bytes) -> None:
        """Send a frame without waiting; nothing happens when the connection is lost."""
        self._connection.send(body)

    async def drain(self) -> None:
        """Wait until the child has read most of the sent data, or the connection is lost."""
        await self._connection.writable.wait()

    def kill(self) -> None:
        """Kill the process and its own children."""
        self._is_killed = True
        process = self._process
        if process is None or process.get_returncode() is not None:
            return
        self._kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.get_pid(), signal.SIGKILL)  # the event loop reaps it

    def _kill_group(self) -> None:
        """Kill the processes of the child's session; its id is not reused while one is left."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGKILL)

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)
        if self._is_killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._lines[fd] + data).split(b"\n")
        self._lines[fd] = rest[-MAX_LINE_BYTES:]
        for line in lines:
            self._log_line(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._log_line(self._lines.pop(fd, b""))

    def process_exited(self) -> None:
        self._kill_group()  # its own children, which may hold memory or a GPU
        asyncio.get_running_loop().call_later(OUTPUT_GRACE, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended and its output is read."""
        if self._process is not None:
            self.returncode = self._process.get_returncode()
            self._process.close()
            self._process = None  # break the reference cycle
        self._end_process()

    def _close(self) -> None:
        """Stop reading, in case another process holds the child's output or socket open."""
        if self._process is not None:
            for fd in (STANDARD_OUTPUT, STANDARD_ERROR):
                pipe = self._process.get_pipe_transport(fd)
                if pipe is not None:
                    pipe.close()
        self._connection.close()

    def _log_line(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            self.last_lines.append(text)
            self._log.debug("%s", text)

    def _receive(self, body: bytes) -> None:
        if self.ready.done():
            self._on_frame(body)
        else:
            self.ready.set_result(body)

    def _disconnect(self, error: Exception | None) -> None:
        if error is not None:
            self._log.error("killing the child process, because it sent invalid data: %r", error)
        self.kill()
        if not self.ready.done():
            self.ready.set_result(None)
        on_disconnect, self._on_disconnect = self._on_disconnect, None  # likely refers to this
        self._on_frame = _ignore
        try:
            if on_disconnect is not None:
                on_disconnect()
        finally:
            self._report_exit()  # else the child would never be replaced

    def _end_process(self) -> None:
        self._has_ended = True
        self._report_exit()

    def _report_exit(self) -> None:
        if self._has_ended and self._connection.is_lost and not self.exited.done():
            self.exited.set_result(None)


class _ChildProtocol(asyncio.Protocol):
    """The parent's end of the socket."""

    def __init__(
        self,
        frame_limit: int,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self.read_count = 0
        self.is_lost = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._decoder = FrameDecoder(frame_limit)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None

    def send(self, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.read_count += 1
        try:
            for body in self._decoder.feed(data):
                self._on_frame(body)
        except Exception as error:  # a handler that cannot decode a body is the same failure
            self._error = error
            self.close()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.writable.set()
            on_lost, self._on_lost, self._on_frame = self._on_lost, _ignore, _ignore
            on_lost(self._error)


def _ignore(_: object) -> None:
    pass
