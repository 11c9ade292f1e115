"""The desk: begins responses, finds those that were kept, and ends those that nobody wants.

Whoever asks is known by the owner of the key that was shown; what belongs to another does not
exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, NotFound
from dragoman.mcp.types import McpServer, ToolClient
from dragoman.pipeline import pipeline
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest, McpTool
from dragoman.protocols.responses.types import Item
from dragoman.responses.background import BackgroundRuns
from dragoman.responses.history import ConnectionHistory, load_history, resolve_references, drop_repeated_items
from dragoman.responses.response_run import ResponseContext, ResponseRun
from dragoman.responses.resume import FeedRun, LaunchedRun, StoredRun
from dragoman.responses.run import Run
from dragoman.responses.state import PersistentState
from dragoman.responses.tool_rounds import (
    NO_REMOTE_TOOLS,
    MAX_SERVERS,
    RemoteToolLimits,
    RemoteTools,
    find_approved_calls,
    attach_servers,
)
from dragoman.store.rows import RUNNING, StoredResponse

if TYPE_CHECKING:
    from dragoman.pipeline.services import Services
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.turns")
CANCEL_WAIT = 10.0  # seconds for another process to end a response
LOOK = 0.1


class RemoteToolsConfig(Struct, frozen=True):
    """How remote tools are reached."""

    make_client: Callable[[], ToolClient] | None = None
    servers: dict[str, McpServer] = {}  # of the configuration, by label
    limits: RemoteToolLimits = RemoteToolLimits()


class ResponseService:
    """All responses of this server."""

    def __init__(
        self,
        services: Services,
        state: PersistentState,
        background: BackgroundRuns,
        elsewhere: RemoteToolsConfig,
    ) -> None:
        self._services = services
        self._state = state
        self._background = background
        self._elsewhere = elsewhere

    async def prepare(self, asked: DecodedRequest, owner: str, local: ConnectionHistory | None = None) -> Run:
        """A response that is ready to run, or that has been sent into the background."""
        store = await self._state.get_store() if asked.is_stored else None
        turn = await self._turn(asked, owner, {} if local is None else local)
        if store is not None and asked.fields.background:
            running = await self._background.start(turn, store)
            return LaunchedRun(running.feed, running.initial_body, turn)
        if store is not None:
            turn.save = lambda _: self._keep(turn, store)
        return turn

    async def load_context(
        self, asked: DecodedRequest, owner: str, local: ConnectionHistory
    ) -> tuple[DecodedRequest, ResponseContext]:
        """What came before a request, with the items that it only names put in."""
        sealing = (await self._state.get_signer()).for_owner(owner)
        history = await load_history(asked, owner, self._state, local)
        asked = await resolve_references(drop_repeated_items(asked, history), history, owner, self._state)
        return asked, ResponseContext(self._services, owner, sealing, history)

    async def _turn(self, asked: DecodedRequest, owner: str, local: ConnectionHistory) -> ResponseRun:
        asked, scene = await self.load_context(asked, owner, local)
        scene.remote_tools = await self._remote(asked, scene.history)
        try:
            return await ResponseRun.prepare(asked, scene)
        except BaseException:
            scene.remote_tools.close()
            raise

    async def _remote(self, asked: DecodedRequest, history: list[Item]) -> RemoteTools:
        wanted = responses.get_mcp_servers(asked)
        allowed = find_approved_calls(asked.items, history, {tool.server_label for tool in wanted})
        if not wanted:
            return NO_REMOTE_TOOLS
        make = self._elsewhere.make_client
        if make is None:
            raise BadRequest("There are no remote tools here: `mcp` is missing.", param="tools")
        if len(wanted) > MAX_SERVERS:
            raise BadRequest(f"There are more than {MAX_SERVERS} remote servers.", param="tools")
        named = [(self._server(tool), tool) for tool in wanted]
        taken, said = responses.get_tool_origins(asked, history), [*history, *asked.items]
        toolbox = make()
        try:
            remote = await attach_servers(toolbox, named, taken, said, self._elsewhere.limits)
        except BaseException:
            toolbox.close()
            raise
        remote.approve(allowed)
        return remote

    def _server(self, said: McpTool) -> McpServer:
        """Where a server of a request is: as the request says, else as the configuration does."""
        headers = dict(said.headers or {})
        if said.authorization:
            headers["Authorization"] = f"Bearer {said.authorization}"
        if said.server_url:
            return McpServer(label=said.server_label, url=said.server_url, headers=headers)
        known = self._elsewhere.servers.get(said.server_label)
        if known is None:
            raise BadRequest(
                f"There is no server `{said.server_label}` here: give its `server_url`.",
                param="tools",
            )
        return replace(known, headers={**known.headers, **headers})

    @staticmethod
    async def _keep(turn: ResponseRun, store: Store) -> None:
        """Keep a response that somebody waited for. An answer is told even if it cannot be kept."""
        try:
            row, items = turn.make_row(), turn.stored_items
            await store.write(lambda tx: tx.add_response(row, items))
        except DragomanError as error:
            log.error("response %s could not be kept: %s", turn.id, error.message)
            turn.mark_unstored()

    # Those that were kept

    async def count_tokens(self, asked: DecodedRequest, owner: str) -> int:
        """How many tokens a request would have the model read."""
        asked, scene = await self.load_context(asked, owner, {})
        request = responses.to_request(asked, scene.history, owner=owner, sealing=scene.signer)
        return await pipeline.count_prompt_tokens(request, self._services)

    async def _row(self, owner: str, name: str) -> StoredResponse:
        store = await self._state.get_store()
        row = await store.read(lambda tx: tx.responses.get(owner, name))
        if row is None:
            raise NotFound(
                f"There is no response `{name[:80]}`.", param="response_id", code="not_found"
            )
        return row

    async def get(self, owner: str, name: str) -> bytes:
        running = self._background.find(owner, name)
        if running is not None:
            return running.run.encode_whole()
        return (await self._row(owner, name)).body

    async def resume(self, owner: str, name: str, after: int) -> Run:
        """Hear a response from some event on."""
        running = self._background.find(owner, name)
        if running is not None:
            return FeedRun(running.feed, after)
        return StoredRun(await self._row(owner, name), await self._state.get_store(), after)

    async def get_input_items(self, owner: str, name: str) -> list[Item]:
        items: list[Item] = msgspec.json.decode((await self._row(owner, name)).input)
        return items

    async def delete(self, owner: str, name: str) -> None:
        row = await self._row(owner, name)
        if row.status in RUNNING:
            await self.cancel(owner, name)
        store = await self._state.get_store()
        if not await self.delete_with_turns(
            owner, [name], lambda: store.write(lambda tx: tx.delete_response(owner, name))
        ):
            raise NotFound(f"There is no response `{name[:80]}`.", param="response_id")

    async def delete_with_turns(
        self, owner: str, sources: Sequence[str], delete: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Delete something; what these answers said is not remembered here any more."""
        memory = self._services.replay
        if memory is None:
            return await delete()
        await memory.forget(owner, sources)
        gone = await delete()
        await memory.forget(owner, sources)  # it may have been read again meanwhile
        return gone

    async def cancel(self, owner: str, name: str) -> bytes:
        """End a response in the background; one that has ended stays as it is."""
        running = self._background.find(owner, name)
        if running is not None:
            running.cancel()
            await running.feed.wait_closed()
            return running.run.encode_whole()
        row = await self._row(owner, name)
        if not row.background:
            raise BadRequest(
                "Only a response that runs in the background can be cancelled.",
                param="response_id",
            )
        if row.status in RUNNING:
            row = await self._cancel_elsewhere(row)
        return row.body

    async def _cancel_elsewhere(self, row: StoredResponse) -> StoredResponse:
        store = await self._state.get_store()
        owner, name = row.owner, row.id
        await store.write(lambda tx: tx.responses.request_cancel(owner, name))
        try:
            async with asyncio.timeout(CANCEL_WAIT):
                while row.status in RUNNING:
                    await asyncio.sleep(LOOK)
                    row = await self._row(row.owner, row.id)
        except TimeoutError:  # its process is busy or gone; the sweep will see to it
            log.warning("response %s was not cancelled in time", row.id)
        return row

    async def aclose(self) -> None:
        await self._background.aclose()
