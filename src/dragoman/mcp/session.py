"""A session with one remote server, over the official SDK.

It lives in a task of its own, which opens and closes it: what the SDK opens in one task must be
closed in the same. Other tasks ask through it. Streamable HTTP is tried first; a server that does
not know it is tried with the older transport of events.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
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
from dragoman.mcp.transport import GONE, LARGEST, LATE, GuardedTransport, create_http_client
from dragoman.mcp.types import CallResult, ListedTool, McpServer, ToolsUnavailable
from dragoman.mcp.url_guard import UrlGuard, UrlRejected

PAGES, TOOLS = 100, 1024  # of a list
AT_ONCE = 8  # calls of one server
FAREWELL = 2.0  # seconds to say goodbye in
BROKEN = "The server broke off before it had answered."
UNREADABLE = "The server's answer could not be read, or is too large."
ASKS = "The tool asks for more from its user, which cannot be given here."
UNENDING = "The server's list of tools has no end."
TOO_MANY = f"The server offers more than {TOOLS:,} tools."
TOO_LONG = "The server's list of tools is too long."
# what a request must not say in its own name
OURS = frozenset(
    {
        *("host", "connection", "content-length", "content-type", "transfer-encoding", "upgrade"),
        *("te", "trailer", "keep-alive", "expect", "accept", "accept-encoding", "last-event-id"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    }
)
_ANSWER: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(
    CallToolResult | InputRequiredResult
)
_tasks: set[asyncio.Task[None]] = set()  # nobody else holds those that say goodbye
# what goes wrong is told to whoever asked; a stranger does not write our log
_log = logging.getLogger("mcp.client")
if _log.level == logging.NOTSET:
    _log.setLevel(logging.CRITICAL)


class McpSession:
    """A session; `seconds` is how long the server may take for anything."""

    def __init__(self, server: McpServer, places: UrlGuard, seconds: float) -> None:
        self._server = server
        self._places = None if server.is_configured else places
        self._seconds = seconds
        self._carrier = GuardedTransport(self._places)
        self._open: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._broken = False
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._live())
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    @property
    def is_closed(self) -> bool:
        """Whether another session is needed."""
        return self._broken or self._task.done() or self._closing.is_set() or self.is_expired

    @property
    def is_expired(self) -> bool:
        """Whether the server has refused to go on with it."""
        return self._carrier.session_expired

    # its life

    async def _live(self) -> None:
        with self._scope:
            try:
                await self._connect()
            except Exception as error:
                if not self._open.done():
                    self._open.set_exception(ToolsUnavailable(explain_error(error)))
        if not self._open.done():
            self._open.set_exception(ToolsUnavailable(LATE))
        self._open.exception()  # it may be that nobody waits for it

    async def _connect(self) -> None:
        server = self._server
        await self._carrier.check_url(server.url)
        for name in server.headers:
            if name.lower() in OURS:
                raise UrlRejected(f"The header `{name}` cannot be given.")
        try:
            async with create_http_client(self._carrier, server.headers, self._seconds) as http:
                over = streamable_http_client(
                    server.url, http_client=http, max_sse_event_size=LARGEST
                )
                await self._serve(Client(over, cache=None, client_info=_ourselves()))
        except Exception as error:
            if self._open.done() or not self._carrier.maybe_legacy:
                raise
            await self._connect_older(error)

    async def _connect_older(self, reason: Exception) -> None:
        """Try the older transport; if that fails as well, the `reason` was why."""
        carrier = GuardedTransport(self._places)

        def make(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
            return create_http_client(carrier, headers or {}, self._seconds)

        over = sse_client(self._server.url, self._server.headers, httpx_client_factory=make)
        try:
            await self._serve(Client(over, mode="legacy", cache=None, client_info=_ourselves()))
        except Exception:
            raise reason from None

    async def _serve(self, opening: Client) -> None:
        async with opening as opened:
            self._open.set_result(opened.session)
            await self._closing.wait()

    def close(self) -> None:
        """Say goodbye, for a short while."""
        if not self._closing.is_set():
            self._closing.set()
            if not self._open.done():
                self._scope.cancel()
            self._scope.deadline = anyio.current_time() + FAREWELL

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    # what others ask

    async def list_tools(self) -> list[ListedTool]:
        session = await asyncio.shield(self._open)
        found: dict[str, ListedTool] = {}
        cursor: str | None = None
        size = 0
        for _ in range(PAGES):
            try:
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            except Exception as error:
                raise ToolsUnavailable(self._failed(error)) from None
            made = [results.convert_tool(tool) for tool in page.tools]
            found |= {one.name: one for one in made if one is not None}
            size += len(msgspec.json.encode(made))
            if len(found) > TOOLS or size > LARGEST:
                raise ToolsUnavailable(TOO_MANY if len(found) > TOOLS else TOO_LONG)
            cursor = page.next_cursor
            if not cursor:
                return list(found.values())
        raise ToolsUnavailable(UNENDING)

    async def call_tool(self, name: str, arguments: dict[str, Any], most: int) -> CallResult:
        session = await asyncio.shield(self._open)
        try:
            async with self._turns:
                result = await _called(session, name, arguments)
        except Exception as error:
            return CallResult(error=self._failed(error))
        if isinstance(result, InputRequiredResult):
            return CallResult(error=ASKS)
        return results.convert_result(result, most)

    def _failed(self, error: Exception) -> str:
        self._broken = self._broken or (
            isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        )
        return results.truncate(explain_error(error), results.WORDS)


async def _called(
    session: ClientSession, name: str, arguments: dict[str, Any]
) -> CallToolResult | InputRequiredResult:
    """A call, without the SDK's look at the result: it would run a stranger's schema here."""
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    try:
        return await session.send_request(request, _ANSWER)
    except MCPError as error:
        if error.code != HEADER_MISMATCH:
            raise
    # newer servers want arguments in headers; which ones, their list says
    await session.list_tools()
    return await session.send_request(request, _ANSWER)


def _ourselves() -> Implementation:
    return Implementation(name="dragoman", version=__version__)


def explain_error(error: BaseException) -> str:
    """What went wrong, for a person or a model."""
    match error:
        case BaseExceptionGroup():
            return explain_error(error.exceptions[0])
        case UrlRejected() | ToolsUnavailable():
            return str(error)
        case MCPError(code=code):
            return _rpc(code, error.message)
        case TimeoutError():
            return LATE
        case ValidationError():
            return UNREADABLE
    return GONE


def _rpc(code: int, said: str) -> str:
    match code:
        case int() if code == REQUEST_TIMEOUT:
            return LATE
        case int() if code == CONNECTION_CLOSED:
            return BROKEN
        case int() if code == PARSE_ERROR:
            return UNREADABLE
    return said.strip() or "The server refused, and does not say why."
