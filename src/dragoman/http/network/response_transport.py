"""How a response is written to the transport of its connection.

uvicorn's response cycle writes through a `CycleTransport`, and the chunks of a stream bypass the
cycle through a `DirectWriter`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

STATUS_LINE_START = b"HTTP/1.1 "
CHUNK_SIZE_START = b"0"


class Closable(Protocol):
    """A connection that knows how it must be closed."""

    @property
    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class DirectWriter:
    """Writes chunks of a started, chunked response straight to the transport.

    This saves most of the cost of a token on its way through `send`. It never waits: while `ready`
    is False, use `send`, which does.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        transport = cycle.transport
        # one call less for each chunk
        inner = transport.inner if isinstance(transport, CycleTransport) else transport
        self._write = inner.write

    @property
    def ready(self) -> bool:
        cycle = self._cycle
        return not (self._flow.write_paused or cycle.disconnected) and bool(cycle.chunked_encoding)

    def write(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


class CycleTransport(asyncio.Transport):
    """The transport as uvicorn's response cycle sees it: `close` is that of our connection."""

    def __init__(self, inner: asyncio.Transport, connection: Closable) -> None:
        super().__init__()
        self.inner = inner
        self._connection = connection
        self._sent_early = 0  # bytes of the status line that were sent as probes
        self._has_probed_chunk = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._sent_early:
            data, self._sent_early = data[self._sent_early :], 0
        self.inner.write(data)

    def write_probe(self, cycle: RequestResponseCycle) -> None:
        """Send a byte of whatever comes next in any case, see `half_close`.

        There is nothing to send if other bytes are on their way.
        """
        if self.inner.get_write_buffer_size() or cycle.response_complete:
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
        self._connection.close()
