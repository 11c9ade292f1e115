"""The routes of what lasts: responses and conversations.

Handlers read what is asked, go to the desk or to the store in the name of whoever asks, and answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.errors import BadRequest, DragomanError, NotFound
from dragoman.http.asgi import WEBSOCKET, RequestContext
from dragoman.http.paging import read_int, read_paging
from dragoman.http.respond import convert_engine_errors, make_warning_headers
from dragoman.http.router import Handler, Route
from dragoman.http.websocket import WebSocketSession
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols import conversations, responses
from dragoman.protocols.responses.types import Item
from dragoman.responses.compaction import compact
from dragoman.responses.history import ConnectionHistory, make_duplicate_error
from dragoman.responses.response_run import ResponseRun
from dragoman.responses.run import Sink
from dragoman.store.rows import StoredConversation, StoredItem

if TYPE_CHECKING:
    from dragoman.http.app import App
    from dragoman.store.store import Store

encode = msgspec.json.Encoder().encode


class Stateful:
    """The handlers."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._desk = app.desk

    async def _store(self) -> Store:
        return await self._app.state.get_store()

    # responses

    async def respond(self, exchange: RequestContext) -> None:
        asked = await self._app.read(exchange, responses.decode_request)
        await self._app.responder.respond(exchange, lambda: self._desk.prepare(asked, exchange.owner))

    async def get(self, exchange: RequestContext) -> None:
        name, owner = exchange.params["id"], exchange.owner
        if exchange.query.get("stream", "").lower() in ("true", "1"):
            after = max(-1, read_int(exchange, "starting_after", -1))
            await self._app.responder.respond(
                exchange, lambda: self._desk.resume(owner, name, after)
            )
        else:
            await exchange.send_response(200, await self._desk.get(owner, name))

    async def delete(self, exchange: RequestContext) -> None:
        name = exchange.params["id"]
        await self._desk.delete(exchange.owner, name)
        await exchange.send_response(200, encode({"id": name, "object": "response", "deleted": True}))

    async def cancel(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, await self._desk.cancel(exchange.owner, exchange.params["id"]))

    async def input_items(self, exchange: RequestContext) -> None:
        items = await self._desk.input_items(exchange.owner, exchange.params["id"])
        limit, newest = read_paging(exchange)
        if newest:
            items.reverse()
        after = exchange.query.get("after")
        if after is not None:
            items = _behind(items, after)
        page = items[:limit]
        await exchange.send_response(200, conversations.encode_item_list(page, more=len(items) > limit))

    async def compact(self, exchange: RequestContext) -> None:
        asked = await self._app.read(exchange, responses.decode_compact_request)

        async def work() -> bytes:
            scene = await self._desk.load_context(asked, exchange.owner, {})
            body, unkept = await compact(*scene, self._app.responder.start_timer().record)
            exchange.headers += make_warning_headers(unkept)
            return body

        await self._watched(exchange, work)

    async def count(self, exchange: RequestContext) -> None:
        asked = await self._app.read(exchange, responses.decode_count_request)

        async def work() -> bytes:
            found = await self._desk.count_tokens(asked, exchange.owner)
            return encode({"object": "response.input_tokens", "input_tokens": found})

        await self._watched(exchange, work)

    async def _watched(
        self, exchange: RequestContext, work: Callable[[], Awaitable[bytes]]
    ) -> None:
        """Answer with what a work that takes its time gives."""
        async with self._app.responder.track(exchange.wait_disconnected):
            body = await work()
        await exchange.send_response(200, body)

    # a response for each text that comes over a socket

    async def converse(self, exchange: RequestContext) -> None:
        async with self._app.websockets.open(exchange) as socket:
            await socket.accept()
            local: ConnectionHistory = {}
            while True:
                text = await socket.receive()
                with socket.busy():
                    await self._converse(exchange, socket, text, local)

    async def _converse(
        self, exchange: RequestContext, socket: WebSocketSession, text: bytes, local: ConnectionHistory
    ) -> None:
        """One response; whatever becomes of it, the socket stays open."""
        stream = responses.get_stream_id(text)

        def push(frames: list[bytes]) -> Awaitable[None] | None:
            return socket.push([responses.get_frame_json(frame, stream) for frame in frames])

        turn: ResponseRun | None = None
        previous: str | None = None
        try:
            asked = responses.decode_websocket_request(text, self._app.settings.strict_params)
            previous = asked.fields.previous_response_id
            async with self._app.responder.track(socket.wait_closed):
                work = await self._desk.prepare(asked, exchange.owner, local)
                assert isinstance(work, ResponseRun)  # noqa: S101  # nothing runs in the background here
                turn = work
                if turn.warnings:
                    await socket.send(responses.encode_websocket_warning(turn.warnings, stream))
                await await_delivery(push(turn.start()))
                with convert_engine_errors(f"response {turn.id}"):
                    await turn.stream(Sink(self._app.responder.start_timer().record, push))
            local.clear()
            local[turn.id] = turn.items
        except DragomanError as error:
            local.pop(previous or "", None)  # what could not be gone on from is not tried again
            if turn is None or not turn.writer.is_over:
                self._app.metrics.count_error(error)
            if turn is None:
                status = exchange.status_of(error)
                await socket.send(responses.encode_websocket_error(error, status, stream))
            else:
                await await_delivery(push(await turn.fail(error)))
        finally:
            if turn is not None:
                turn.close()

    # conversations

    async def create(self, exchange: RequestContext) -> None:
        said = await self._app.read(exchange, conversations.decode_new)
        row = StoredConversation(
            id=f"conv_{uuid.uuid4().hex}",
            owner=exchange.owner,
            created=int(time.time()),
            metadata=encode(said.metadata),
        )
        store, items = await self._store(), _entries(said.items)
        await store.write(lambda tx: tx.conversations.add(row, items))
        await self._show(exchange, row)

    async def find(self, exchange: RequestContext) -> None:
        store, owner, conversation = await self._store(), exchange.owner, exchange.params["id"]
        row = await store.read(lambda tx: tx.conversations.get(owner, conversation))
        await self._show(exchange, row)

    async def change(self, exchange: RequestContext) -> None:
        metadata = encode(await self._app.read(exchange, conversations.decode_update))
        store, name = await self._store(), exchange.params["id"]
        owner = exchange.owner
        row = await store.write(lambda tx: tx.conversations.update(owner, name, metadata))
        await self._show(exchange, row)

    async def _show(self, exchange: RequestContext, row: StoredConversation | None) -> None:
        if row is None:
            raise _no_conversation(exchange)
        await exchange.send_response(200, conversations.encode_conversation(row.id, row.created, row.metadata))

    async def forget(self, exchange: RequestContext) -> None:
        owner, name, store = exchange.owner, exchange.params["id"], await self._store()
        said = await store.read(lambda tx: tx.responses.list_ids(owner, name))
        if not await self._desk.delete_with_turns(
            owner, said, lambda: store.write(lambda tx: tx.delete_conversation(owner, name))
        ):
            raise _no_conversation(exchange)
        await exchange.send_response(200, conversations.encode_deletion(name))

    async def items(self, exchange: RequestContext) -> None:
        limit, newest = read_paging(exchange)
        store, owner, conversation = await self._store(), exchange.owner, exchange.params["id"]
        after = exchange.query.get("after")
        found = await store.read(
            lambda tx: tx.conversations.list_items(
                owner, conversation, after=after, limit=limit + 1, newest_first=newest
            )
        )
        if found is None:
            raise _no_conversation(exchange)
        items = [msgspec.json.decode(entry.body) for entry in found[:limit]]
        await exchange.send_response(200, conversations.encode_item_list(items, more=len(found) > limit))

    async def add_items(self, exchange: RequestContext) -> None:
        items = await self._app.read(exchange, conversations.decode_items)
        store, name = await self._store(), exchange.params["id"]
        entries = _entries(items)
        owner, ids = exchange.owner, [entry.id for entry in entries]
        there = await store.read(lambda tx: tx.conversations.get_items(owner, name, ids))
        for at, entry in enumerate(entries):
            if there.get(entry.id, entry.body) != entry.body:
                raise make_duplicate_error(entry.id, f"items[{at}].id")
        if not await store.write(lambda tx: tx.conversations.add_items(owner, name, entries)):
            raise _no_conversation(exchange)
        await exchange.send_response(200, conversations.encode_item_list(items, more=False))

    async def item(self, exchange: RequestContext) -> None:
        store, owner = await self._store(), exchange.owner
        conversation, item = exchange.params["id"], exchange.params["item"]
        found = await store.read(lambda tx: tx.conversations.get_item(owner, conversation, item))
        if found is None:
            raise NotFound("There is no such item in this conversation.", param="item_id")
        await exchange.send_response(200, found.body)

    async def delete_item(self, exchange: RequestContext) -> None:
        store, owner = await self._store(), exchange.owner
        conversation, item = exchange.params["id"], exchange.params["item"]
        if not await store.write(
            lambda tx: tx.conversations.delete_item(owner, conversation, item)
        ):
            raise NotFound("There is no such item in this conversation.", param="item_id")
        row = await store.read(lambda tx: tx.conversations.get(owner, conversation))
        await self._show(exchange, row)

    def routes(self) -> list[Route]:
        def at(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
            return Route(path=path, method=method, handler=handler, summary=summary, **more)

        one, talk = "/v1/responses/{id}", "/v1/conversations/{id}"
        asked, spoken = responses.ResponseRequest, conversations
        return [
            at(
                "POST",
                "/v1/responses",
                self.respond,
                "Answer, and keep the answer to go on from.",
                body=asked,
                streams=True,
            ),
            at(WEBSOCKET, "/v1/responses", self.converse, "The same, a text for each event."),
            at("POST", "/v1/responses/compact", self.compact, "Make a conversation short."),
            at("POST", "/v1/responses/input_tokens", self.count, "Count what would be read."),
            at("GET", one, self.get, "A response, or its events from some number on."),
            at("DELETE", one, self.delete, "Forget a response."),
            at("POST", f"{one}/cancel", self.cancel, "End a response in the background."),
            at("GET", f"{one}/input_items", self.input_items, "What a response was asked."),
            at(
                "POST",
                "/v1/conversations",
                self.create,
                "Begin a conversation.",
                body=spoken.NewConversation,
            ),
            at("GET", talk, self.find, "A conversation."),
            at("POST", talk, self.change, "Change what is noted of it."),
            at("DELETE", talk, self.forget, "Forget a conversation."),
            at("GET", f"{talk}/items", self.items, "What was said in it."),
            at("POST", f"{talk}/items", self.add_items, "Say more in it."),
            at("GET", f"{talk}/items/{{item}}", self.item, "One thing that was said."),
            at("DELETE", f"{talk}/items/{{item}}", self.delete_item, "Forget one thing."),
        ]


def _entries(items: list[Item]) -> list[StoredItem]:
    return [StoredItem(item["id"], encode(item)) for item in items]


def _no_conversation(exchange: RequestContext) -> NotFound:
    name = exchange.params["id"][:80]
    return NotFound(f"There is no conversation `{name}`.", code="conversation_not_found")


def _behind(items: list[Item], after: str) -> list[Item]:
    at = next((at for at, item in enumerate(items) if item["id"] == after), None)
    if at is None:
        raise BadRequest("There is no such item in this response.", param="after")
    return items[at + 1 :]
