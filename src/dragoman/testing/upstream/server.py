"""A small HTTP/1.1 server on loopback that can break its connections in the middle of anything.

It has keep-alive, chunked streams and TLS, and nothing else. A handler gets the `WorkerRequest` and
sends its response itself, byte by byte if it likes. A connection that is lost cancels its handler,
as a real server ends a request whose client has gone.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, cast

import httptools
import msgspec

from dragoman.types import Json

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


class WorkerRequest:
    """A request, and the ways to answer it."""

    def __init__(self, connection: WorkerConnection) -> None:
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self._connection = connection

    def read_json(self) -> Json:
        return msgspec.json.decode(self.body) if self.body else {}

    def send_json(
        self, content: Json, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        body = msgspec.json.encode(content)
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        self._send_head(status, fields | dict(headers or {}))
        self.send_raw(body)

    def start_stream(self) -> None:
        self._send_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    async def send_frames(self, frames: Iterable[bytes]) -> None:
        """Send server-sent events, and wait while the client does not read."""
        data = b"".join([b"data: " + frame + b"\n\n" for frame in frames])
        if data:
            self.send_raw(b"%x\r\n%b\r\n" % (len(data), data))
            await self._connection.drain()

    def end_stream(self) -> None:
        self.send_raw(b"0\r\n\r\n")

    def send_raw(self, data: bytes) -> None:
        if self._connection.transport is not None:
            self._connection.transport.write(data)

    def abort(self) -> None:
        """Break the connection."""
        if self._connection.transport is not None:
            self._connection.transport.abort()

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.send_raw("\r\n".join([*lines, "", ""]).encode())


Handler: TypeAlias = Callable[[WorkerRequest], Awaitable[None]]


class WorkerConnection(asyncio.Protocol):
    """One connection, which answers one request after the other."""

    def __init__(self, server: LoopbackServer) -> None:
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._request = WorkerRequest(self)
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def drain(self) -> None:
        await self._may_write.wait()

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._server.accepted += 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._may_write.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # called by the parser

    def on_url(self, url: bytes) -> None:
        self._request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._request.body += data

    def on_message_complete(self) -> None:
        request, self._request = self._request, WorkerRequest(self)
        self.task = self._server.start_task(self._answer(request))

    async def _answer(self, request: WorkerRequest) -> None:
        try:
            await self._server.handle(request)
        except Exception:
            request.abort()
            raise
        finally:
            self.task = None


class LoopbackServer:
    """Listens on 127.0.0.1. While it is stopped, its port refuses connections."""

    def __init__(self, handle: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.handle = handle
        self.port = port  # 0 is any
        self.accepted = 0  # connections so far
        self.connections: set[WorkerConnection] = set()
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start; a server that was stopped listens on the same port again."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: WorkerConnection(self), "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections from now on, and break all that there are."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in [*self.connections]:
            if connection.transport is not None:
                connection.transport.abort()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_idle(self) -> None:
        """Close the connections that wait for a request, as servers do after a while."""
        for connection in [*self.connections]:
            if connection.task is None and connection.transport is not None:
                connection.transport.abort()

    def start_task(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
