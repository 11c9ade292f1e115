"""How a response is written to the transport of its connection.

uvicorn's response cycle writes through a `CycleTransport`, and the chunks of a stream bypass the
cycle through a `DirectWriter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

STATUS_LINE_START = b"HTTP/1.1 "
CHUNK_SIZE_START = b"0"


class Closable(Protocol):
    """A connection that knows how it must be closed."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class UnknownLength(int):
    """The length of a body that ends with the connection: no number of bytes is too many."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> UnknownLength:
        return self


def end_with_connection(cycle: RequestResponseCycle) -> None:
    """Have a response end with its connection: clients of HTTP/1.0 know no chunks."""
    cycle.chunked_encoding = cycle.keep_alive = False
    cycle.expected_content_length = UnknownLength()


class DirectWriter:
    """Writes a response of any length, with chunked encoding, straight to the transport.

    This saves most of the cost of a token on its way through `send`. It never waits: where it
    refuses, use `send`, which does.
    """

    __slots__ = ("_cycle", "_flow", "_transport", "_write")

    def __init__(self, cycle: RequestResponseCycle, transport: CycleTransport) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = transport
        # one call less for each chunk
        self._write: Callable[[bytes], object] = transport.inner.write

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Write the headers of a response that has a body; False if that is left to `send`."""
        cycle = self._cycle
        is_ready = not (self._flow.write_paused or cycle.disconnected or cycle.response_started)
        if not is_ready or cycle.chunked_encoding is not None or cycle.access_log:
            return False
        headers = (*cycle.default_headers, *headers)
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            return False  # `send` rejects such values
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        self._transport.write(b"".join(lines))
        return True

    def end(self, frames: list[bytes]) -> bool:
        """Write the last frames and the end of the response; False if that is left to `send`."""
        if not self.write([*frames, b""]):
            return False
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    def write(self, frames: list[bytes]) -> bool:
        """Write each frame as a chunk, all in one system call; an empty one is the end.

        Return False if that needs waiting or makes no sense any more.
        """
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        if len(frames) == 1:  # the usual case
            self._write(b"%x\r\n%b\r\n" % (len(frames[0]), frames[0]))
        else:
            self._write(b"".join([b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]))
        return True

    def __enter__(self) -> None:
        """Collect what is sent inside this block, and write it at its end, in one system call."""
        self._write = self._transport.start_collecting()

    def __exit__(self, *_: object) -> None:
        self.write_collected()

    def hold_collected(self) -> None:
        """Write what was collected with what is sent next, at latest two turns of the loop later.

        A short answer ends in the turn after the one in which it begins, when its reader wakes up.
        So it takes one system call.
        """
        self._write = self._write_with_collected
        call_soon = self._transport.loop.call_soon  # looking the loop up costs a system call
        call_soon(call_soon, self.write_collected)

    def _write_with_collected(self, data: bytes) -> None:
        self._transport.write(data)
        self.write_collected()

    def write_collected(self) -> None:
        self._write = self._transport.inner.write
        self._transport.write_collected()


class HeldWrites:
    """Collects what is sent inside its block, and then holds it, see `hold_collected`."""

    __slots__ = ("_writer",)

    def __init__(self, writer: DirectWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._writer.__enter__()

    def __exit__(self, *_: object) -> None:
        self._writer.hold_collected()


class CycleTransport(asyncio.Transport):
    """The transport as uvicorn's response cycle sees it: `close` is that of our connection."""

    def __init__(self, inner: asyncio.Transport, connection: Closable) -> None:
        super().__init__()
        self.inner = inner
        self._connection = connection
        self._sent_early = 0  # bytes of the status line that were sent as probes
        self._has_probed_chunk = False
        self._collected: list[bytes | bytearray | memoryview] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._connection.loop

    def start_collecting(self) -> Callable[[bytes], object]:
        """Buffer what is written until `write_collected`; return a function that adds to it."""
        if self._collected is None:
            self._collected = []
        return self._collected.append

    def write_collected(self) -> None:
        collected, self._collected = self._collected, None
        if collected:
            self.inner.writelines(collected)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._sent_early:
            data, self._sent_early = data[self._sent_early :], 0
        if self._collected is None:
            self.inner.write(data)
        else:
            self._collected.append(data)

    def write_probe(self, cycle: RequestResponseCycle) -> None:
        """Send a byte of whatever comes next in any case, see `half_close`.

        There is nothing to send if other bytes are on their way.
        """
        if self._collected or self.inner.get_write_buffer_size() or cycle.response_complete:
            return
        sent = self._sent_early
        if not cycle.response_started and sent < len(STATUS_LINE_START):
            self.inner.write(STATUS_LINE_START[sent : sent + 1])
            self._sent_early += 1
        elif cycle.chunked_encoding and not self._has_probed_chunk:
            self._has_probed_chunk = True
            self.inner.write(CHUNK_SIZE_START)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self.write_collected()
        self._connection.close()


def make_cycle(connection: HttpToolsProtocol, transport: CycleTransport) -> RequestResponseCycle:
    """Make what sends the response to the request that a connection reads.

    Unlike uvicorn, it ends the connection unless the whole body is read before.
    """
    return RequestResponseCycle(
        scope=connection.scope,
        transport=transport,
        flow=connection.flow,
        logger=connection.logger,
        access_logger=connection.access_logger,
        access_log=connection.access_log,
        default_headers=connection.server_state.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=connection.expect_100_continue,
        keep_alive=False,
        on_response=connection.on_response_complete,
    )
