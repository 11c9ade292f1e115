"""Servers of remote tools for tests: real ones of the SDK, and hostile ones made by hand."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

IMAGE = base64.b64encode(b"\x89PNG" * 1000).decode()


class ServerLog:
    """What a server was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []  # method, path and headers of each
        self.slow_started = threading.Event()  # the slow tool is at work
        self.slow_cancelled = threading.Event()  # it was cancelled
        self.session_closed = threading.Event()  # a session was given up


def make_tool_server(seen: ServerLog) -> MCPServer:
    """A server with a tool for everything that can come back."""
    server = MCPServer("test", log_level="ERROR")

    @server.tool(structured_output=False)
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        seen.calls.append(f"add {a} {b}")
        return f"The sum is {a + b}."

    @server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
    def look(at: str) -> str:
        """Look at something."""
        seen.calls.append(f"look {at}")
        return f"There is nothing at {at}."

    @server.tool(structured_output=False)
    def fail() -> str:
        """Fail."""
        seen.calls.append("fail")
        raise ValueError("the disk is on fire")

    @server.tool(structured_output=False)
    async def slow() -> str:
        """Take for ever."""
        seen.calls.append("slow")
        seen.slow_started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.slow_cancelled.set()
            raise
        return "at last"

    @server.tool(structured_output=False)
    def big(size: int) -> str:
        """Say a lot."""
        return "x" * size

    @server.tool()
    def structured() -> dict[str, int]:
        """Answer with an object."""
        return {"answer": 42}

    @server.tool(name="only.structured", structured_output=False)
    def only_structured() -> CallToolResult:
        """Answer with nothing but an object."""
        return CallToolResult(content=[], structured_content={"größe": 42})

    @server.tool(structured_output=False)
    def mixed() -> list[ContentBlock]:
        """Answer with everything."""
        text = TextResourceContents(uri="file:///a.txt", text="the text of a")
        blob = BlobResourceContents(uri="file:///b.bin", blob=IMAGE)
        return [
            TextContent(type="text", text="Look:"),
            ImageContent(type="image", data=IMAGE, mime_type="image/png"),
            AudioContent(type="audio", data=IMAGE, mime_type="audio/wav"),
            ResourceLink(type="resource_link", name="c", uri="file:///c"),
            EmbeddedResource(type="resource", resource=text),
            EmbeddedResource(type="resource", resource=blob),
        ]

    return server


class LocalServer:
    """An app on a port of this machine."""

    def __init__(self, app: Any, seen: ServerLog, **options: Any) -> None:
        self._app = app
        self.log = seen
        self.kind = ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}/mcp"
        config = uvicorn.Config(
            self._log_request,
            interface="asgi3",
            log_level="critical",
            timeout_graceful_shutdown=1,
            **options,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run)

    async def _log_request(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            method = scope["method"]
            self.log.requests.append({"method": method, "path": scope["path"], **headers})
            if method == "DELETE":
                self.log.session_closed.set()
        await self._app(scope, receive, send)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._server.serve(sockets=[self._socket]))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def serve_app(app: Any, seen: ServerLog | None = None, **options: Any) -> Iterator[LocalServer]:
    server = LocalServer(app, seen or ServerLog(), **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serve_tools(transport: str = "http", **options: Any) -> Iterator[LocalServer]:
    """A server of the SDK; `transport` is `http`, or `sse` for the older one."""
    seen = ServerLog()
    server = make_tool_server(seen)
    app = server.sse_app(sse_path="/mcp") if transport == "sse" else None
    with serve_app(app or server.streamable_http_app(**options), seen) as made:
        yield made


AnswerMessage = Callable[[dict[str, Any]], Any]


def make_raw_app(answer: AnswerMessage, **options: Any) -> Any:
    """An app that answers each message of the protocol with what `answer` makes of it.

    That is a result, an error, or bytes that are sent as they are. `options` are the status, the
    kind of content and further headers of every answer that is bytes, and the name of a session.
    """
    session = {"mcp-session-id": options["session"]} if "session" in options else {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await _read_body(receive)
        if scope["method"] != "POST":
            await _send(send, 405, b"", {})
            return
        message = msgspec.json.decode(body)
        made = answer(message)
        if isinstance(made, Awaitable):
            made = await made
        if "id" not in message:
            await _send(send, 202, b"", {})
        elif isinstance(made, bytes):
            await _send(send, options.get("status", 200), made, options.get("headers", {}))
        else:
            kind = "error" if isinstance(made, dict) and "code" in made else "result"
            reply = {"jsonrpc": "2.0", "id": message["id"], kind: made}
            await _send(send, 200, msgspec.json.encode(reply), session)

    return app


async def _read_body(receive: Any) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def _send(send: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    told = {"content-type": "application/json"} | headers
    raw = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def answer_initialize(message: dict[str, Any]) -> dict[str, Any]:
    """How a server of the older versions greets, and that it knows nothing else."""
    if message["method"] != "initialize":
        return {"code": -32601, "message": "Method not found"}
    return {
        "protocolVersion": message["params"]["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "by hand", "version": "1"},
    }
