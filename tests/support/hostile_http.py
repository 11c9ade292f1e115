"""A server under attack: sends requests and checks every response.

Whatever a client sends, an error has the error object of the wire API, shows no internals of the
server, and is no 5xx unless the test expects one; afterwards the server serves requests as before,
and its event loop was never blocked. `HostileServer` checks all of this, so a test states only what
is special about its case.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import httpx

from dragoman.errors import DragomanError
from dragoman.http.router import Route
from dragoman.telemetry.loop_lag import LAG_BOUNDS
from dragoman.testing import ScriptedEngine
from tests.support.loop_lag import (
    LAG_LIMIT,
    LagReport,
    measure_loop_lag,
)
from tests.support.serving import RunningServer, poll_until, serve_scripted
from tests.support.timing import freeze_objects

LEAKS = re.compile(
    r"0x[0-9a-f]{6,}|Traceback|site-packages|\.py\b|\bobject at\b|msgspec|Struct\b|sqlalchemy"
    r"|(?<![\w.])/(?:root|work|tmp|usr|home|etc|var|proc|opt|lib)/",
    re.IGNORECASE,
)
USER, OTHER, ADMIN = "user-key", "other-key", "admin-key"
KEYS: dict[str, Any] = {"api_key": (USER, OTHER), "admin_key": (ADMIN,)}
MAX_MESSAGE = 2000  # characters of an error message
FEW_CALLS = 8  # that may be late in a short test: one pause of the whole machine
HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


Headers: TypeAlias = Sequence[tuple[str, str | bytes]]


class RawResponse(NamedTuple):
    """A response as it came; status 0 where the server closed the connection without one."""

    status: int
    headers: dict[str, str]
    body: bytes


def make_path(route: Route, value: str = "some") -> str:
    """Make a path of a route, with a value for its parameters."""
    path = route.path.replace("{model...}", "scripted")
    return re.sub(r"\{(\w+)(?:\.\.\.)?\}", lambda match: f"{value}_{match[1]}", path)


def name_route(route: Route) -> str:
    return f"{route.method} {route.path}"


def check_no_leaks(text: str, sent: str = "") -> None:
    """Check that a text shows no internals, except for what the client sent itself."""
    for match in LEAKS.finditer(text):
        assert match[0] in sent, text[:500]


class HostileServer:
    """A running server, and a client that checks its responses."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.port = running.port
        self.url = f"http://127.0.0.1:{self.port}"
        self.routes = running.app.router.routes
        self.client = httpx.Client(base_url=self.url, timeout=60)

    @property
    def engine(self) -> ScriptedEngine:
        [model] = self.running.app.runtime.services.models.list_loaded()
        engine = model.engine
        assert isinstance(engine, ScriptedEngine)
        return engine

    def send(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        allowed: Collection[int] = (),
        **fields: Any,
    ) -> httpx.Response:
        """Send a request and check its response; `allowed` are 5xx statuses that are right."""
        if key is not None:
            fields["headers"] = {"authorization": f"Bearer {key}", **fields.get("headers", {})}
        response = self.client.request(method, path, **fields)
        request = response.request
        sent = request.content.decode("utf-8", "replace") if hasattr(request, "_content") else ""
        raw = RawResponse(response.status_code, dict(response.headers), response.content)
        self.check(raw, method, path, sent, allowed)
        return response

    def send_raw(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: Iterable[bytes] | bytes = b"",
        *,
        has_host: bool = False,
        allowed: Collection[int] = (),
    ) -> RawResponse:
        """Send a request byte by byte as given, and check its response.

        A `body` in parts is sent chunked. `has_host`: `headers` have the Host header.
        """
        head = [f"{method} {path} HTTP/1.1".encode()]
        head += [] if has_host else [b"host: localhost"]
        names = {name for name, _ in headers}
        head += [] if "connection" in names else [b"connection: close"]
        for name, value in headers:
            text = value if isinstance(value, bytes) else value.encode("latin-1")
            head.append(name.encode() + b": " + text)
        if isinstance(body, bytes):
            parts: Iterable[bytes] = [body]
            head += [b"content-length: %d" % len(body)] if body else []
        else:
            parts = _write_chunks(body)
            head += [b"transfer-encoding: chunked"]
        response = self.exchange(b"\r\n".join(head) + b"\r\n\r\n", parts)
        sent = body.decode("utf-8", "replace") if isinstance(body, bytes) else ""
        self.check(response, method, path, f"{headers}{sent}", allowed)
        return response

    def exchange(self, head: bytes, parts: Iterable[bytes] = ()) -> RawResponse:
        """Send bytes until the server has enough, and read what it sends until it closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            with suppress(ConnectionError):
                connection.sendall(head)
                for part in parts:
                    connection.sendall(part)
            received = b""
            with suppress(ConnectionError):
                while data := connection.recv(65536):
                    received += data
                    if received.startswith(b"HTTP/1.1 101 ") and b"\r\n\r\n" in received:
                        break
        return _parse_response(received)

    def check(
        self,
        response: RawResponse,
        method: str = "GET",
        path: str = "/",
        sent: str = "",
        allowed: Collection[int] = (),
    ) -> None:
        status = response.status
        assert status < 500 or status in allowed, (status, response.body[:500])
        if status < 300 or method == "HEAD":
            return
        text = response.body.decode()
        check_no_leaks(text, path + unquote(path) + sent)
        parsed = json.loads(text)
        message = get_message(parsed)
        assert isinstance(message, str)
        assert 0 < len(message) < MAX_MESSAGE
        forms = [_get_form(parsed), *self._list_error_forms(path)]
        assert forms[0] in forms[1:], (path, parsed)
        assert response.headers["content-type"] == "application/json"

    def _list_error_forms(self, path: str) -> list[tuple[set[str], set[str]]]:
        """List the keys of the error objects of the wire APIs that a path may have."""
        plain = unquote(re.sub(r"^\w+://[^/]*", "", path, flags=re.I).partition("?")[0])
        nearest = self.running.app.router.find(plain).nearest if plain[:1] == "/" else None
        dialects = [] if nearest is None else list(nearest.dialects)
        if nearest is None or path[0] != "/":  # a target that is not valid has no path
            dialects += self._default_dialects
        error = DragomanError("The message.")
        return [_get_form(json.loads(dialect.encode_error(error, "id"))) for dialect in dialects]

    @property
    def _default_dialects(self) -> Any:
        return self.running.app.router.find("/").methods["GET"].dialects

    def check_alive(self) -> None:
        """Check that the server responds, and that no request is still in progress."""
        assert self.client.get("/health/live").status_code == 200
        poll_until(lambda: set(self.read_metrics("requests_(?:running|waiting)")) <= {0.0})

    def read_metrics(self, pattern: str) -> list[float]:
        """Read the values of the metrics whose names match."""
        page = self.client.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"}).text
        values = re.findall(rf"^dragoman_{pattern}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
        assert values, page
        return [float(value) for value in values]


def _get_form(body: Any) -> tuple[set[str], set[str]]:
    error = body["error"]
    return set(body), set() if isinstance(error, str) else set(error)


def get_message(body: Any) -> Any:
    """Return the message of an error, whatever the wire API; Ollama's errors are strings."""
    error = body["error"]
    return error if isinstance(error, str) else error["message"]


def _write_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield b"%x\r\n%s\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def _parse_response(data: bytes) -> RawResponse:
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return RawResponse(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return RawResponse(int(first.split(" ")[1]), headers, body)


@contextmanager
def serve_hostile(engine: Any = "Hello there!", **options: Any) -> Iterator[HostileServer]:
    """Serve a scripted engine; check at the end that the server works and was never blocked."""
    freeze_objects()
    with serve_scripted(engine, **options) as running:
        server = HostileServer(running)
        stopped = asyncio.Event()

        async def measure() -> LagReport:
            async with measure_loop_lag(computing=True) as lag:
                await stopped.wait()
            return lag

        measuring = asyncio.run_coroutine_threadsafe(measure(), running.loop)
        try:
            yield server
            server.check_alive()
        finally:
            running.loop.call_soon_threadsafe(stopped.set)
            lag = measuring.result(10)
            server.client.close()
        late = sum(lag.counts[bisect_left(LAG_BOUNDS, LAG_LIMIT) + 1 :])
        assert late <= max(0.01 * lag.calls, FEW_CALLS), lag
