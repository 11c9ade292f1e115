"""MCP servers for tests: real ones of the SDK, and faulty or hostile ones."""

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
    """The requests and calls that a server got."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []  # method, path and headers of each
        self.slow_started = threading.Event()  # the slow tool is running
        self.slow_cancelled = threading.Event()  # it was cancelled
        self.session_closed = threading.Event()  # a client ended its session


def make_tool_server(log: ServerLog) -> MCPServer:
    """A server with a tool for each kind of result."""
    server = MCPServer("test", log_level="ERROR")

    @server.tool(structured_output=False)
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        log.calls.append(f"add {a} {b}")
        return f"The sum is {a + b}."

    @server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
    def look(at: str) -> str:
        """Look at something."""
        log.calls.append(f"look {at}")
        return f"There is nothing at {at}."

    @server.tool(structured_output=False)
    def fail() -> str:
        """Fail."""
        log.calls.append("fail")
        raise ValueError("the disk is on fire")

    @server.tool(structured_output=False)
    async def slow() -> str:
        """Never return."""
        log.calls.append("slow")
        log.slow_started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            log.slow_cancelled.set()
            raise
        return "at last"

    @server.tool(structured_output=False)
    def big(size: int) -> str:
        """Return a long text."""
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
    """An app that runs on a port of this machine."""

    def __init__(self, app: Any, log: ServerLog, **options: Any) -> None:
        self._app = app
        self.log = log
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
def serve_app(app: Any, log: ServerLog | None = None, **options: Any) -> Iterator[LocalServer]:
    server = LocalServer(app, log or ServerLog(), **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serve_tools(transport: str = "http", **options: Any) -> Iterator[LocalServer]:
    """A server of the SDK; `transport` is `http`, or `sse` for the older one."""
    log = ServerLog()
    server = make_tool_server(log)
    app = server.sse_app(sse_path="/mcp") if transport == "sse" else None
    with serve_app(app or server.streamable_http_app(**options), log) as local_server:
        yield local_server


AnswerMessage = Callable[[dict[str, Any]], Any]


def make_raw_app(answer: AnswerMessage, **options: Any) -> Any:
    """An app that answers each message of the protocol with what `answer` returns for it:

    a result, an error, or bytes that are sent as they are. `options` are the status and the headers
    of answers that are bytes, and the id of a session.
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
        reply = answer(message)
        if isinstance(reply, Awaitable):
            reply = await reply
        if "id" not in message:
            await _send(send, 202, b"", {})
        elif isinstance(reply, bytes):
            await _send(send, options.get("status", 200), reply, options.get("headers", {}))
        else:
            kind = "error" if isinstance(reply, dict) and "code" in reply else "result"
            response = {"jsonrpc": "2.0", "id": message["id"], kind: reply}
            await _send(send, 200, msgspec.json.encode(response), session)

    return app


async def _read_body(receive: Any) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def _send(send: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    headers = {"content-type": "application/json"} | headers
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def answer_initialize(message: dict[str, Any]) -> dict[str, Any]:
    """Answer as a server of an older protocol version that supports nothing else."""
    if message["method"] != "initialize":
        return {"code": -32601, "message": "Method not found"}
    return {
        "protocolVersion": message["params"]["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "by hand", "version": "1"},
    }
