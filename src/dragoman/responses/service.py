"""The service for responses: prepares runs, and gets, resumes, cancels and deletes responses.

Every method takes the owner, who is determined by the client's API key; a response of another owner
does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, NotFound, shorten_id
from dragoman.mcp.types import McpServer, ToolClient
from dragoman.pipeline import pipeline
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest, McpTool
from dragoman.protocols.responses.types import Item
from dragoman.responses.background import BackgroundRuns
from dragoman.responses.build_request import build_request
from dragoman.responses.history import (
    ConnectionHistory,
    drop_repeated_items,
    load_history,
    resolve_references,
)
from dragoman.responses.response_run import ResponseContext, ResponseRun
from dragoman.responses.resume import FeedRun, LaunchedRun, StoredRun
from dragoman.responses.run import Run
from dragoman.responses.state import PersistentState
from dragoman.responses.tool_rounds import (
    MAX_SERVERS,
    NO_REMOTE_TOOLS,
    RemoteToolLimits,
    RemoteTools,
    attach_servers,
    find_approved_calls,
)
from dragoman.store.rows import RUNNING, StoredResponse
from dragoman.types.worker_threads import run_in_worker

if TYPE_CHECKING:
    from dragoman.pipeline.services import Services
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.responses")
CANCEL_TIMEOUT = 10.0  # seconds for another process to cancel a response
POLL_INTERVAL = 0.1


class RemoteToolsConfig(Struct, frozen=True):
    """How remote tools are reached."""

    make_client: Callable[[], ToolClient] | None = None  # None: the `mcp` extra is not installed
    servers: dict[str, McpServer] = {}  # configured by the operator, by label
    limits: RemoteToolLimits = RemoteToolLimits()


class ResponseService:
    """All responses of this server."""

    def __init__(
        self,
        services: Services,
        state: PersistentState,
        background: BackgroundRuns,
        remote_tools: RemoteToolsConfig,
    ) -> None:
        self._services = services
        self._state = state
        self._background = background
        self._remote_tools = remote_tools

    async def prepare(
        self, request: DecodedRequest, owner: str, connection: ConnectionHistory | None = None
    ) -> Run:
        """Return a response that is ready to run, or that was started in the background."""
        store = await self._state.get_store() if request.is_stored else None
        run = await self._prepare_run(request, owner, {} if connection is None else connection)
        if store is not None and request.fields.background:
            background = await self._background.start(run, store)
            return LaunchedRun(background.feed, background.initial_body, run)
        if store is not None:
            run.save = lambda _: self._save(run, store)
        return run

    async def load_context(
        self, request: DecodedRequest, owner: str, connection: ConnectionHistory
    ) -> tuple[DecodedRequest, ResponseContext]:
        """Return the request with its references resolved, and its context."""
        signer = (await self._state.get_signer()).for_owner(owner)
        history = await load_history(request, owner, self._state, connection)
        request = drop_repeated_items(request, history)
        request = await resolve_references(request, history, owner, self._state)
        return request, ResponseContext(self._services, owner, signer, history)

    async def _prepare_run(
        self, request: DecodedRequest, owner: str, connection: ConnectionHistory
    ) -> ResponseRun:
        request, context = await self.load_context(request, owner, connection)
        context.remote_tools = await self._attach_remote_tools(request, context.history)
        try:
            return await ResponseRun.prepare(request, context)
        except BaseException:
            context.remote_tools.close()
            raise

    async def _attach_remote_tools(
        self, request: DecodedRequest, history: list[Item]
    ) -> RemoteTools:
        """List the remote tools that a request names, and approve calls that its input approves."""
        requested = responses.get_mcp_servers(request)
        labels = {tool.server_label for tool in requested}
        approved = find_approved_calls(request.items, history, labels)
        if not requested:
            return NO_REMOTE_TOOLS
        if self._remote_tools.make_client is None:
            raise BadRequest("Remote tools need the extra `mcp` on the server.", param="tools")
        if len(requested) > MAX_SERVERS:
            raise BadRequest(f"There are more than {MAX_SERVERS} remote servers.", param="tools")
        servers = [(self._resolve_server(tool), tool) for tool in requested]
        used_names = responses.get_tool_origins(request, history)
        items = [*history, *request.items]
        client = self._remote_tools.make_client()
        try:
            tools = await attach_servers(
                client, servers, used_names, items, self._remote_tools.limits
            )
        except BaseException:
            client.close()
            raise
        tools.approve(approved)
        return tools

    def _resolve_server(self, tool: McpTool) -> McpServer:
        """Return the server that a request names: by URL, else by the label of a configured one."""
        headers = dict(tool.headers or {})
        if tool.authorization:
            headers["Authorization"] = f"Bearer {tool.authorization}"
        if tool.server_url:
            return McpServer(label=tool.server_label, url=tool.server_url, headers=headers)
        configured = self._remote_tools.servers.get(tool.server_label)
        if configured is None:
            raise BadRequest(
                f"The server `{tool.server_label}` is not configured: set its `server_url`.",
                param="tools",
            )
        return replace(configured, headers={**configured.headers, **headers})

    @staticmethod
    async def _save(run: ResponseRun, store: Store) -> None:
        """Store a response. If that fails, the client still gets the answer, marked as unstored."""
        try:
            row, items = run.make_row(), run.stored_items
            await store.write(lambda tx: tx.add_response(row, items))
        except DragomanError as error:
            log.error("response %s could not be stored: %s", run.id, error.message)
            run.mark_unstored()

    async def count_tokens(self, request: DecodedRequest, owner: str) -> int:
        """Return the number of tokens of a request's prompt."""
        request, context = await self.load_context(request, owner, {})
        prompt = await build_request(request, context.history, owner=owner, packer=context.signer)
        return await pipeline.count_prompt_tokens(prompt, self._services)

    # stored responses

    async def _load_row(self, owner: str, response: str) -> StoredResponse:
        store = await self._state.get_store()
        row = await store.read(lambda tx: tx.responses.get(owner, response))
        if row is None:
            raise NotFound(f"There is no response `{shorten_id(response)}`.", param="response_id")
        return row

    async def get(self, owner: str, response: str) -> bytes:
        background = self._background.find(owner, response)
        if background is not None:
            return background.run.encode_whole()
        return (await self._load_row(owner, response)).body

    async def resume(self, owner: str, response: str, after: int) -> Run:
        """Return a run that sends the events of a response after a number."""
        background = self._background.find(owner, response)
        if background is not None:
            return FeedRun(background.feed, after)
        row = await self._load_row(owner, response)
        return StoredRun(row, await self._state.get_store(), after)

    async def get_input_items(self, owner: str, response: str) -> list[Item]:
        row = await self._load_row(owner, response)
        items: list[Item] = await run_in_worker(msgspec.json.decode, row.input)
        return items

    async def delete(self, owner: str, response: str) -> None:
        row = await self._load_row(owner, response)
        if row.status in RUNNING:
            await self.cancel(owner, response)
        store = await self._state.get_store()
        if not await self.delete_with_turns(
            owner, [response], lambda: store.delete(lambda tx: tx.delete_response(owner, response))
        ):
            raise NotFound(f"There is no response `{shorten_id(response)}`.", param="response_id")

    async def delete_with_turns(
        self, owner: str, sources: Sequence[str], delete: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Delete rows, and the turns of these responses or completions from the replay cache."""
        replay = self._services.replay
        if replay is None:
            return await delete()
        await replay.drop_turns(owner, sources)
        deleted = await delete()
        await replay.drop_turns(owner, sources)  # another request may have loaded them in between
        return deleted

    async def cancel(self, owner: str, response: str) -> bytes:
        """Cancel a background response; one that has ended stays as it is."""
        background = self._background.find(owner, response)
        if background is not None:
            background.cancel()
            await background.feed.wait_closed()
            return background.run.encode_whole()
        row = await self._load_row(owner, response)
        if not row.background:
            raise BadRequest("Only background responses can be cancelled.", param="response_id")
        if row.status in RUNNING:
            row = await self._cancel_in_other_process(row)
        return row.body

    async def _cancel_in_other_process(self, row: StoredResponse) -> StoredResponse:
        store = await self._state.get_store()
        owner, response = row.owner, row.id
        await store.write(lambda tx: tx.responses.request_cancel(owner, response))
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                while row.status in RUNNING:
                    await asyncio.sleep(POLL_INTERVAL)
                    row = await self._load_row(owner, response)
        except TimeoutError:  # its process is busy or dead; then a sweep fails the response
            log.warning("the server that runs response %s did not cancel it in time", row.id)
        return row

    async def aclose(self) -> None:
        await self._background.aclose()
