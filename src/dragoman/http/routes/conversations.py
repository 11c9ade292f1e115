"""Routes of stored conversations, to which responses can be added."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from dragoman.errors import ConversationNotFound, NotFound, shorten_id
from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.paging import read_paging
from dragoman.protocols import conversations
from dragoman.protocols.conversations import DIALECT
from dragoman.protocols.dialect import pass_strict
from dragoman.protocols.responses.types import Item
from dragoman.responses.history import make_duplicate_error
from dragoman.store.rows import StoredConversation, StoredItem
from dragoman.types.worker_threads import run_in_worker

T = TypeVar("T")
encode_json = msgspec.json.Encoder().encode


class ConversationHandlers:
    """Handlers over the conversations in the store."""

    def __init__(self, context: RouteContext) -> None:
        self._reader = context.reader
        self._responses = context.responses
        self._open_store = context.runtime.state.get_store

    def _read(self, request: RequestContext, decode: Callable[[bytes, bool], T]) -> Awaitable[T]:
        return self._reader.read_and_decode(request, pass_strict(decode))

    async def create(self, request: RequestContext) -> None:
        content = await self._read(request, conversations.decode_new)
        row = StoredConversation(
            id=f"conv_{uuid.uuid4().hex}",
            owner=request.owner,
            created=int(time.time()),
            metadata=encode_json(content.metadata),
        )
        store = await self._open_store()
        items = await run_in_worker(_make_rows, content.items)
        await store.write(lambda tx: tx.conversations.add(row, items))
        await self._send(request, row)

    async def get(self, request: RequestContext) -> None:
        store, owner, conversation = await self._open_store(), request.owner, request.params["id"]
        row = await store.read(lambda tx: tx.conversations.get(owner, conversation))
        await self._send(request, row)

    async def update(self, request: RequestContext) -> None:
        metadata = encode_json(await self._read(request, conversations.decode_update))
        store, owner, conversation = await self._open_store(), request.owner, request.params["id"]
        row = await store.write(lambda tx: tx.conversations.update(owner, conversation, metadata))
        await self._send(request, row)

    @staticmethod
    async def _send(request: RequestContext, row: StoredConversation | None) -> None:
        if row is None:
            raise _make_not_found(request)
        body = conversations.encode_conversation(row.id, row.created, row.metadata)
        await request.send_response(200, body)

    async def delete(self, request: RequestContext) -> None:
        store, owner, conversation = await self._open_store(), request.owner, request.params["id"]
        response_ids = await store.read(lambda tx: tx.responses.list_ids(owner, conversation))

        def delete() -> Awaitable[bool]:
            return store.delete(lambda tx: tx.delete_conversation(owner, conversation))

        if not await self._responses.delete_with_turns(owner, response_ids, delete):
            raise _make_not_found(request)
        await request.send_response(200, conversations.encode_deletion(conversation))

    async def list_items(self, request: RequestContext) -> None:
        limit, newest_first = read_paging(request)
        store, owner, conversation = await self._open_store(), request.owner, request.params["id"]
        after = request.query.get("after")
        rows = await store.read(
            lambda tx: tx.conversations.list_items(
                owner, conversation, after=after, limit=limit + 1, newest_first=newest_first
            )
        )
        if rows is None:
            raise _make_not_found(request)
        await request.send_response(200, await run_in_worker(_encode_rows, rows, limit))

    async def add_items(self, request: RequestContext) -> None:
        items = await self._read(request, conversations.decode_items)
        store, owner, conversation = await self._open_store(), request.owner, request.params["id"]
        rows = await run_in_worker(_make_rows, items)
        ids = [row.id for row in rows]
        existing = await store.read(lambda tx: tx.conversations.get_items(owner, conversation, ids))
        for index, row in enumerate(rows):
            if existing.get(row.id, row.body) != row.body:
                raise make_duplicate_error(row.id, f"items[{index}].id")
        if not await store.write(lambda tx: tx.conversations.add_items(owner, conversation, rows)):
            raise _make_not_found(request)
        body = await run_in_worker(conversations.encode_item_list, items, more=False)
        await request.send_response(200, body)

    async def get_item(self, request: RequestContext) -> None:
        store, owner = await self._open_store(), request.owner
        conversation, item = request.params["id"], request.params["item"]
        row = await store.read(lambda tx: tx.conversations.get_item(owner, conversation, item))
        if row is None:
            raise _make_item_not_found()
        await request.send_response(200, row.body)

    async def delete_item(self, request: RequestContext) -> None:
        store, owner = await self._open_store(), request.owner
        conversation, item = request.params["id"], request.params["item"]
        deleted = await store.delete(
            lambda tx: tx.conversations.delete_item(owner, conversation, item)
        )
        if not deleted:
            raise _make_item_not_found()
        row = await store.read(lambda tx: tx.conversations.get(owner, conversation))
        await self._send(request, row)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = ConversationHandlers(context)
    group = RouteGroup("/v1/conversations", DIALECT)
    return [
        group.make(
            "POST",
            "",
            handlers.create,
            "Create a conversation.",
            request_type=conversations.NewConversation,
        ),
        group.make("GET", "/{id}", handlers.get, "Get a conversation."),
        group.make("POST", "/{id}", handlers.update, "Update the metadata of a conversation."),
        group.make("DELETE", "/{id}", handlers.delete, "Delete a conversation."),
        group.make("GET", "/{id}/items", handlers.list_items, "List the items of a conversation."),
        group.make("POST", "/{id}/items", handlers.add_items, "Add items to a conversation."),
        group.make(
            "GET", "/{id}/items/{item}", handlers.get_item, "Get an item of a conversation."
        ),
        group.make(
            "DELETE",
            "/{id}/items/{item}",
            handlers.delete_item,
            "Delete an item of a conversation.",
        ),
    ]


def _encode_rows(rows: Sequence[StoredItem], limit: int) -> bytes:
    items = [msgspec.json.decode(row.body) for row in rows[:limit]]
    return conversations.encode_item_list(items, more=len(rows) > limit)


def _make_rows(items: list[Item]) -> list[StoredItem]:
    return [StoredItem(item["id"], encode_json(item)) for item in items]


def _make_not_found(request: RequestContext) -> NotFound:
    conversation = shorten_id(request.params["id"])
    return ConversationNotFound(f"There is no conversation `{conversation}`.")


def _make_item_not_found() -> NotFound:
    return NotFound("There is no such item in this conversation.", param="item_id")
