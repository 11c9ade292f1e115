"""A client for the native server's private socket: HTTP/1.1, one connection for each request.

The server speaks plain HTTP over a unix socket that only this process can reach. `Reply` is the
parser: bytes in, body out, no input or output of its own. Closing a connection half way is how a
request is cancelled, so nothing is kept open for later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dragoman.errors import EngineFailed

PIECE = 1 << 16
BROKEN = "The engine failed while it worked on this request."


class ResponseParser:
    """Reads one response: status line, headers, and a body that is chunked or has a length."""

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self._buffer = b""
        self._left: int | None = None  # bytes of the body, or of the chunk, that are still to come
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """What the data adds to the body."""
        self._buffer += data
        if not self.status and not self._head():
            return b""
        return self._chunks() if self._chunked else self._plain()

    def _head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split(b" ", 2)[1])
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._chunked = headers.get(b"transfer-encoding") == b"chunked"
        if not self._chunked and b"content-length" in headers:
            self._left = int(headers[b"content-length"])
        self._buffer = rest
        return True

    def _plain(self) -> bytes:
        data, self._buffer = self._buffer, b""
        if self._left is not None:
            self._left -= len(data)
            self.is_complete = self._left <= 0
        return data

    def _chunks(self) -> bytes:
        parts = []
        while not self.is_complete:
            if self._left is None:
                line, found, rest = self._buffer.partition(b"\r\n")
                if not found:
                    break
                self._left, self._buffer = int(line.split(b";")[0], 16), rest
            if len(self._buffer) < self._left + 2:
                break
            parts.append(self._buffer[: self._left])
            self._buffer = self._buffer[self._left + 2 :]
            self.is_complete = self._left == 0
            self._left = None
        return b"".join(parts)


class EventSplitter:
    """Cuts a body of server-sent events into their data."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return [event[6:] for event in events if event.startswith(b"data: ")]


class EventStream:
    """A response that comes in events."""

    def __init__(self, reader: asyncio.StreamReader, reply: ResponseParser, first: bytes) -> None:
        self._reader = reader
        self._reply = reply
        self._events = EventSplitter()
        self._ready = self._events.feed(first)

    async def read_events(self) -> list[bytes]:
        """Events that have come, at least one; none when the response is over."""
        ready, self._ready = self._ready, []
        while not ready and not self._reply.is_complete:
            data = await self._reader.read(PIECE)
            if not data:
                break
            ready = self._events.feed(self._reply.feed(data))
        return ready


class NativeClient:
    """Asks one server; `address` is the path of its socket."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._key = key.encode()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of the whole response."""
        async with self._connected(path, body) as (reader, reply, first):
            return reply.status, await _rest(reader, reply, first)

    @asynccontextmanager
    async def stream(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[EventStream | bytes, None]:
        """The response as events, or the body of one that was refused. Leaving cancels it."""
        async with self._connected(path, body) as (reader, reply, first):
            if reply.status == 200:
                yield EventStream(reader, reply, first)
            else:
                yield await _rest(reader, reply, first)

    @asynccontextmanager
    async def _connected(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, ResponseParser, bytes], None]:
        """Send a request; reader, parser and the first of the body once the status is there."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._address)
        except OSError:
            raise EngineFailed(BROKEN) from None
        try:
            writer.write(self._request(path, msgspec.json.encode(body)))
            await writer.drain()
            reply, first = ResponseParser(), b""
            while not reply.status:
                data = await reader.read(PIECE)
                if not data:
                    raise EngineFailed(BROKEN)
                first = reply.feed(data)
            yield reader, reply, first
        except (ConnectionError, ValueError, IndexError):
            raise EngineFailed(BROKEN) from None
        finally:
            writer.transport.abort()

    def _request(self, path: str, body: bytes) -> bytes:
        return (
            b"POST %s HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        ) % (path.encode(), self._key, len(body), body)


async def _rest(reader: asyncio.StreamReader, reply: ResponseParser, first: bytes) -> bytes:
    parts = [first]
    while not reply.is_complete:
        data = await reader.read(PIECE)
        if not data:
            break
        parts.append(reply.feed(data))
    return b"".join(parts)
