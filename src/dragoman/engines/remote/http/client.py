"""A client of one upstream server: a pool of connections that are kept alive.

A request takes an idle connection, or opens one. The pool counts its *epochs*: one ends when the
last open connection is lost. Within an epoch the same server process has answered; after it,
another one may listen at the address, so the engine checks the server's identity again.

Addresses are the operator's choice, so private ones are fine. Redirects are not followed. The API
key is sent to the configured address alone, and appears in no message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping

import msgspec

from dragoman._version import __version__
from dragoman.engines.remote.failures import DECODE_ERRORS, ConnectionFailure, StatusFailure
from dragoman.engines.remote.http.connection import UpstreamConnection
from dragoman.engines.remote.settings import PORTS, RemoteSettings, parse_url
from dragoman.types import Json

MAX_IDLE_SECONDS = 30.0  # an older connection may be dead without a sign
MAX_BODY = 64 << 20  # of a whole response
MAX_ERROR_BODY = 1 << 16


class WholeResponse:
    """Receives a response whose body is used as a whole."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limit = limit

    def take_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.status, self.headers = status, headers

    def take_data(self, data: bytes) -> None:
        if self.done.done():
            return
        if len(self.body) + len(data) <= self._limit:
            self.body += data
        else:
            self.fail(ConnectionFailure("invalid", "the response is too long"))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, failure: ConnectionFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)


class UpstreamClient:
    """A client of the server that the settings name."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.epoch = 0
        self._settings = settings
        settings.read_api_key()  # a wrong one is reported at the start
        url = parse_url(settings.url)
        self._host = str(url.hostname)
        self._port = url.port or PORTS[url.scheme]
        self._authority = url.netloc
        self._prefix = url.path.rstrip("/")
        self._tls = create_tls_context(settings.ca_file) if url.scheme == "https" else None
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._is_closed = False
        self._all_lost = asyncio.Event()  # while there is no open connection
        self._all_lost.set()

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    async def acquire(self, *, fresh: bool = False) -> UpstreamConnection:
        """Return an idle connection, or a new one; `fresh` is always a new one."""
        now = asyncio.get_running_loop().time()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < MAX_IDLE_SECONDS:
                return connection
            connection.abort()
        return await self._connect()

    def build_request(self, path: str, body: bytes | None) -> bytes:
        """Return the bytes of a request; one without a body is a GET.

        Raises a `ConnectionFailure` if the file with the key cannot be read.
        """
        lines = [
            f"{'GET' if body is None else 'POST'} {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            f"user-agent: dragoman/{__version__}",
            "accept: text/event-stream, application/json",
            "accept-encoding: identity",
        ]
        key = self._read_api_key()
        if key:
            lines.append(f"authorization: Bearer {key}")
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    def _read_api_key(self) -> str:
        """Return the key; its file may be away for a moment while the operator replaces it."""
        try:
            return self._settings.read_api_key()
        except ValueError as error:
            raise ConnectionFailure("refused", str(error)) from None

    async def fetch(self, path: str, body: Json = None, *, timeout: float | None = None) -> Json:
        """Return the JSON of a whole response; `body` makes it a POST.

        Raises an `UpstreamFailure`: `StatusFailure` if the status is not 200.
        """
        data = None if body is None else msgspec.json.encode(body)
        limit = self._settings.stall_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                response = await self._run(self.build_request(path, data))
        except TimeoutError:
            raise ConnectionFailure("stalled", f"no response to {path}") from None
        if response.status != 200:
            raise StatusFailure(response.status, bytes(response.body), response.headers)
        try:
            return msgspec.json.decode(response.body)
        except DECODE_ERRORS:
            raise ConnectionFailure("invalid", f"the response to {path} is not JSON") from None

    async def _run(self, request: bytes) -> WholeResponse:
        """Run a request, again on a new connection if a kept one turns out to be dead."""
        connection = await self.acquire()
        while True:
            response = WholeResponse()
            connection.send(request, response)
            try:
                await response.done
                return response
            except ConnectionFailure:
                is_stale = connection.is_reused and not connection.has_answered
                connection.abort()
                if not is_stale:
                    raise
            except BaseException:
                connection.abort()
                raise
            connection = await self.acquire(fresh=True)

    async def _connect(self) -> UpstreamConnection:
        if self._is_closed:
            raise ConnectionFailure("refused", "the client is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self._release),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls is not None else None,
                )
        except ssl.SSLError as error:
            raise ConnectionFailure("tls", f"TLS failed: {error}") from None
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise ConnectionFailure("refused", f"cannot connect: {reason}") from None
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open.add(connection)
        self._all_lost.clear()
        return connection

    def _release(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is over; forget one that is lost."""
        if connection.is_open:
            if self._is_closed or len(self._idle) >= self._settings.idle_connections:
                connection.abort()
            else:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            return
        if connection in self._idle:
            self._idle.remove(connection)
        if connection in self._open:
            self._open.remove(connection)
            if not self._open:
                self.epoch += 1
                self._all_lost.set()

    async def wait_all_lost(self) -> None:
        """Wait until there is no open connection."""
        await self._all_lost.wait()

    async def aclose(self) -> None:
        self._is_closed = True
        for connection in [*self._open]:
            connection.abort()
        await self.wait_all_lost()


def create_tls_context(ca_file: str) -> ssl.SSLContext:
    """Return the context that verifies a server, by our own authorities if there are some."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError):
        raise ValueError(f"cannot read certificates from {ca_file}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
