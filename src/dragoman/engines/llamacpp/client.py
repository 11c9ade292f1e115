"""A client for the native server's private socket: HTTP/1.1, one connection for each request.

The server speaks plain HTTP over a unix socket that only this process can reach. `ResponseParser`
does no input or output: bytes in, body out. A request is cancelled by closing its connection, so no
connection is reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from dragoman.engines import EngineDied
from dragoman.errors import ENGINE_FAILURE, EngineFailed
from dragoman.types import Json

READ_BYTES = 1 << 16


class ResponseParser:
    """Parses one response: status line, headers, and a body that is chunked or has a length."""

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self._buffer = b""
        self._missing: int | None = None  # bytes of the body, or of the chunk, still to come
        self._is_chunked = False

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that the data contains."""
        self._buffer += data
        if not self.status and not self._parse_head():
            return b""
        return self._take_chunks() if self._is_chunked else self._take_plain()

    def _parse_head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        status_line, *lines = head.split(b"\r\n")
        self.status = int(status_line.split(b" ", 2)[1])
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._is_chunked = headers.get(b"transfer-encoding") == b"chunked"
        if not self._is_chunked and b"content-length" in headers:
            self._missing = int(headers[b"content-length"])
        self._buffer = rest
        return True

    def _take_plain(self) -> bytes:
        data, self._buffer = self._buffer, b""
        if self._missing is not None:
            self._missing -= len(data)
            self.is_complete = self._missing <= 0
        return data

    def _take_chunks(self) -> bytes:
        chunks = []
        while not self.is_complete:
            if self._missing is None:
                line, separator, rest = self._buffer.partition(b"\r\n")
                if not separator:
                    break
                self._missing, self._buffer = int(line.split(b";")[0], 16), rest
            if len(self._buffer) < self._missing + 2:
                break
            chunks.append(self._buffer[: self._missing])
            self._buffer = self._buffer[self._missing + 2 :]
            self.is_complete = self._missing == 0
            self._missing = None
        return b"".join(chunks)


class EventSplitter:
    """Splits a body of server-sent events into the data of each event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return [event[6:] for event in events if event.startswith(b"data: ")]


class NativeResponse:
    """A response whose status has arrived. Closing it cancels the request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: ResponseParser
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = parser
        self._splitter = EventSplitter()
        self._first_data = b""

    @property
    def status(self) -> int:
        return self._parser.status

    async def read_status(self) -> None:
        """Wait for the status, which comes with the first part of the body."""
        while not self._parser.status:
            data = await self._read()
            if not data:
                raise EngineFailed(ENGINE_FAILURE)
            self._first_data = self._parse(data)

    async def read_events(self) -> list[bytes]:
        """Wait for at least one server-sent event; an empty list when the response is over."""
        ready = self._splitter.feed(self._take_first_data())
        while not ready and not self._parser.is_complete:
            data = await self._read()
            if not data:
                break
            ready = self._splitter.feed(self._parse(data))
        return ready

    async def read_body(self) -> bytes:
        """Return all of the body."""
        parts = [self._take_first_data()]
        while not self._parser.is_complete:
            data = await self._read()
            if not data:
                break
            parts.append(self._parse(data))
        return b"".join(parts)

    def close(self) -> None:
        self._writer.transport.abort()

    def _take_first_data(self) -> bytes:
        data, self._first_data = self._first_data, b""
        return data

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(READ_BYTES)
        except ConnectionError:
            raise EngineFailed(ENGINE_FAILURE) from None

    def _parse(self, data: bytes) -> bytes:
        try:
            return self._parser.feed(data)
        except (ValueError, IndexError):
            raise EngineFailed(ENGINE_FAILURE) from None


class NativeClient:
    """A client of one native server; `address` is the path of its socket."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._key = key.encode()

    async def post(self, path: str, body: Mapping[str, Json]) -> tuple[int, bytes]:
        """Return status and body of the whole response."""
        return await self._fetch(path, body)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of the whole response to a request without a body."""
        return await self._fetch(path, None)

    async def _fetch(self, path: str, body: Mapping[str, Json] | None) -> tuple[int, bytes]:
        response = await self.open(path, body)
        try:
            return response.status, await response.read_body()
        finally:
            response.close()

    async def open(self, path: str, body: Mapping[str, Json] | None) -> NativeResponse:
        """Send a request and wait until the server responds.

        Raises `EngineDied` if there is no server, after its directory was deleted for example.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(self._address)
        except (FileNotFoundError, ConnectionRefusedError):  # nothing will ever answer again
            raise EngineDied("the socket of the native server is gone") from None
        except OSError:
            raise EngineFailed(ENGINE_FAILURE) from None
        response = NativeResponse(reader, writer, ResponseParser())
        try:
            writer.write(self._build_request(path, body))
            await writer.drain()
            await response.read_status()
        except BaseException as error:
            response.close()
            if isinstance(error, ConnectionError):
                raise EngineFailed(ENGINE_FAILURE) from None
            raise
        return response

    def _build_request(self, path: str, body: Mapping[str, Json] | None) -> bytes:
        method = b"GET" if body is None else b"POST"
        content = b"" if body is None else msgspec.json.encode(body)
        return (
            b"%s %s HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        ) % (method, path.encode(), self._key, len(content), content)
