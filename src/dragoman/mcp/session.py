"""A session with one remote server, over the official SDK.

A session lives in a task of its own, which opens and closes it: what the SDK opens in one task must
be closed in the same task. Other tasks send their requests through it. Streamable HTTP is tried
first; a server that does not support it is tried with the older SSE transport.
"""

from __future__ import annotations

import asyncio
import logging

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
)
from pydantic import TypeAdapter, ValidationError

from dragoman._version import __version__
from dragoman.mcp import results
from dragoman.mcp.transport import (
    MAX_RESPONSE,
    TIMED_OUT,
    UNREACHABLE,
    GuardedTransport,
    create_http_client,
)
from dragoman.mcp.types import ListedTool, McpServer, ToolCallResult, ToolsUnavailable
from dragoman.mcp.url_guard import UrlGuard, UrlRejected
from dragoman.types import Json

MAX_PAGES, MAX_TOOLS = 100, 1024  # of a tool list
MAX_CONCURRENT_CALLS = 8
CLOSE_TIMEOUT = 2.0  # seconds to end a session with the server
DISCONNECTED = "The server closed the connection before it answered."
UNREADABLE = "The server's response could not be parsed, or is too large."
INPUT_REQUIRED = "The tool asks for further input, which is not supported."
TOO_MANY_PAGES = "The server's tool list does not end."
TOO_MANY_TOOLS = f"The server has more than {MAX_TOOLS:,} tools."
LIST_TOO_LONG = "The server's tool list is too long."
# headers that a request must not set
RESERVED_HEADERS = frozenset(
    {
        *("host", "connection", "content-length", "content-type", "transfer-encoding", "upgrade"),
        *("te", "trailer", "keep-alive", "expect", "accept", "accept-encoding", "last-event-id"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    }
)
_CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(
    CallToolResult | InputRequiredResult
)
_tasks: set[asyncio.Task[None]] = set()  # keeps references to sessions that are closing
# the caller gets every error; the SDK would log texts of untrusted servers
_sdk_log = logging.getLogger("mcp.client")
if _sdk_log.level == logging.NOTSET:
    _sdk_log.setLevel(logging.CRITICAL)


class McpSession:
    """A session with one server; each request may take `timeout` seconds."""

    def __init__(self, server: McpServer, guard: UrlGuard, timeout: float) -> None:
        self._server = server
        self._guard = None if server.is_configured else guard
        self._timeout = timeout
        self._transport = GuardedTransport(self._guard)
        self._opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._disconnected = False
        self._call_slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._run())
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    @property
    def is_closed(self) -> bool:
        """Whether another session is needed."""
        closing = self._task.done() or self._closing.is_set()
        return closing or self._disconnected or self.is_expired

    @property
    def is_expired(self) -> bool:
        """Whether the server has rejected this session."""
        return self._transport.has_session_expired

    # the session's own task

    async def _run(self) -> None:
        with self._scope:
            try:
                await self._connect()
            except Exception as error:
                if not self._opened.done():
                    self._opened.set_exception(ToolsUnavailable(explain_error(error)))
        if not self._opened.done():
            self._opened.set_exception(ToolsUnavailable(TIMED_OUT))
        self._opened.exception()  # marks it as retrieved, in case no task waits for it

    async def _connect(self) -> None:
        server = self._server
        await self._transport.check_url(server.url)
        for name in server.headers:
            if name.lower() in RESERVED_HEADERS:
                raise UrlRejected(f"The header `{name}` must not be set.")
        try:
            async with create_http_client(self._transport, server.headers, self._timeout) as http:
                streams = streamable_http_client(
                    server.url, http_client=http, max_sse_event_size=MAX_RESPONSE
                )
                await self._serve(Client(streams, cache=None, client_info=_describe_client()))
        except Exception as error:
            if self._opened.done() or not self._transport.may_be_legacy:
                raise
            await self._connect_legacy(error)

    async def _connect_legacy(self, first_error: Exception) -> None:
        """Try the older transport; if that fails too, raise the first error."""
        transport = GuardedTransport(self._guard)

        def create_client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return create_http_client(transport, headers or {}, self._timeout)

        streams = sse_client(
            self._server.url, self._server.headers, httpx_client_factory=create_client
        )
        try:
            await self._serve(
                Client(streams, mode="legacy", cache=None, client_info=_describe_client())
            )
        except Exception:
            raise first_error from None

    async def _serve(self, client: Client) -> None:
        async with client as connected:
            self._opened.set_result(connected.session)
            await self._closing.wait()

    def close(self) -> None:
        """End the session with the server, for a short while in the background."""
        if not self._closing.is_set():
            self._closing.set()
            if not self._opened.done():
                self._scope.cancel()
            self._scope.deadline = anyio.current_time() + CLOSE_TIMEOUT

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    # requests of other tasks

    async def list_tools(self) -> list[ListedTool]:
        session = await asyncio.shield(self._opened)
        tools: dict[str, ListedTool] = {}
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            try:
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            except Exception as error:
                raise ToolsUnavailable(self._handle_error(error)) from None
            converted = [results.convert_tool(tool) for tool in page.tools]
            tools |= {tool.name: tool for tool in converted if tool is not None}
            size += len(msgspec.json.encode(converted))
            if len(tools) > MAX_TOOLS or size > MAX_RESPONSE:
                raise ToolsUnavailable(TOO_MANY_TOOLS if len(tools) > MAX_TOOLS else LIST_TOO_LONG)
            cursor = page.next_cursor
            if not cursor:
                return list(tools.values())
        raise ToolsUnavailable(TOO_MANY_PAGES)

    async def call_tool(
        self, name: str, arguments: dict[str, Json], max_chars: int
    ) -> ToolCallResult:
        session = await asyncio.shield(self._opened)
        try:
            async with self._call_slots:
                result = await _call_tool(session, name, arguments)
        except Exception as error:
            return ToolCallResult(error=self._handle_error(error))
        if isinstance(result, InputRequiredResult):
            return ToolCallResult(error=INPUT_REQUIRED)
        return results.convert_result(result, max_chars)

    def _handle_error(self, error: Exception) -> str:
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            self._disconnected = True
        return results.truncate(explain_error(error), results.MAX_ERROR)


async def _call_tool(
    session: ClientSession, name: str, arguments: dict[str, Json]
) -> CallToolResult | InputRequiredResult:
    """Call a tool without the SDK's validation, which would run an untrusted schema here."""
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    try:
        return await session.send_request(request, _CALL_RESULT)
    except MCPError as error:
        if error.code != HEADER_MISMATCH:
            raise
    # newer servers require some arguments in headers; the SDK learns which from the tool list
    await session.list_tools()
    return await session.send_request(request, _CALL_RESULT)


def _describe_client() -> Implementation:
    return Implementation(name="dragoman", version=__version__)


def explain_error(error: BaseException) -> str:
    """Return an error message for a person or a model."""
    match error:
        case BaseExceptionGroup():
            return explain_error(error.exceptions[0])
        case UrlRejected() | ToolsUnavailable():
            return str(error)
        case MCPError(code=code):
            return _explain_rpc_error(code, error.message)
        case TimeoutError():
            return TIMED_OUT
        case ValidationError():
            return UNREADABLE
    return UNREACHABLE


def _explain_rpc_error(code: int, message: str) -> str:
    known = {
        REQUEST_TIMEOUT: TIMED_OUT,
        CONNECTION_CLOSED: DISCONNECTED,
        PARSE_ERROR: UNREADABLE,
    }
    return known.get(code) or message.strip() or "The server sent an error without a message."
