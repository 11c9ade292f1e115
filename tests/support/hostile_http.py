"""A server under attack: sends requests and checks every response.

Whatever a client sends, an error has the error object of the wire API, shows no internals of the
server, and is no 5xx unless the test expects one; afterwards the server serves requests as before.
`HostileServer.send` checks all of this, so a test states only what is special about its case.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from dragoman.errors import DragomanError
from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from dragoman.protocols.dialect import Dialect
from dragoman.testing import ScriptedEngine
from tests.support.serving import RunningServer, poll_until, serve_scripted

LEAKS = re.compile(
    r"0x[0-9a-f]{6,}|Traceback|site-packages|\.py\b|\bobject at\b|msgspec|Struct\b|sqlalchemy"
    r"|(?<![\w.])/(?:root|work|tmp|usr|home|etc|var|proc|opt|lib)/",
    re.IGNORECASE,
)
USER, OTHER, ADMIN = "user-key", "other-key", "admin-key"
KEYS: dict[str, Any] = {"api_key": (USER, OTHER), "admin_key": (ADMIN,)}


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


def check_error_body(body: bytes, dialect: Dialect[object] | None = None, sent: str = "") -> Any:
    """Check an error body and return its error object; any wire API without `dialect`."""
    text = body.decode()
    check_no_leaks(text, sent)
    parsed = json.loads(text)
    error = parsed["error"]
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) < 2000
    if dialect is not None:
        expected = json.loads(dialect.encode_error(DragomanError("The message."), "req_1"))
        assert set(parsed) == set(expected)
        assert set(error) == set(expected["error"])
    return error


class HostileServer:
    """A running server, and a client that checks its responses."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.url = running.url.replace("0.0.0.0", "127.0.0.1")
        self.port = running.port
        self.routes = running.app.router.routes
        self.http_routes = [route for route in self.routes if route.method != WEBSOCKET]
        limits = httpx.Limits(max_keepalive_connections=20)
        self.client = httpx.Client(base_url=self.url, timeout=60, limits=limits)

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
        self.check(response, allowed)
        return response

    def check(self, response: httpx.Response, allowed: Collection[int] = ()) -> None:
        status = response.status_code
        assert status < 500 or status in allowed, (status, response.text[:500])
        if status >= 300 and response.request.method != "HEAD":
            match = self.running.app.router.find(response.request.url.path)
            dialect = match.nearest.dialects[0] if match.nearest is not None else None
            content = response.request.content if _has_content(response.request) else b""
            sent = response.request.url.path + content.decode("utf-8", "replace")
            check_error_body(response.content, dialect, sent)
            assert response.headers["content-type"] == "application/json"

    def send_raw(self, *parts: bytes, timeout: float = 20) -> bytes:
        """Send bytes on a connection and read what comes back until the server closes it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            received = b""
            try:
                for part in parts:
                    connection.sendall(part)
                while data := connection.recv(65536):
                    received += data
            except (ConnectionError, TimeoutError):
                pass
            return received

    def check_alive(self) -> None:
        """Check that the server responds, and that no request is still in progress."""
        assert self.client.get("/health/live").status_code == 200
        poll_until(lambda: set(self.read_metrics("requests_(?:running|waiting)")) == {0.0})

    def read_metrics(self, pattern: str) -> list[float]:
        """Read the values of the metrics whose names match."""
        page = self.client.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"}).text
        values = re.findall(rf"^dragoman_{pattern}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
        return [float(value) for value in values]


def _has_content(request: httpx.Request) -> bool:
    return hasattr(request, "_content")


@contextmanager
def serve_hostile(engine: Any = "Hello there!", **options: Any) -> Iterator[HostileServer]:
    """Serve a scripted engine, and check at the end that the server still works."""
    with serve_scripted(engine, **options) as running:
        server = HostileServer(running)
        try:
            yield server
            server.check_alive()
        finally:
            server.client.close()
