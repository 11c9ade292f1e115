"""The history of a response: the items that precede its input.

They come from the responses that it continues, or from its conversation. Over a WebSocket, a
response that is not stored can be continued on the same connection; `ConnectionHistory` holds it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    BadRequest,
    ConversationNotFound,
    DuplicateItem,
    ItemNotFound,
    PreviousResponseNotFinished,
    PreviousResponseNotFound,
    shorten_id,
)
from dragoman.protocols.responses import DecodedRequest, get_references
from dragoman.protocols.responses.types import Item
from dragoman.store.rows import RUNNING, StoredItem, StoredResponse

if TYPE_CHECKING:
    from dragoman.responses.state import PersistentState

# all items up to the end of a response, by the id of the response
ConnectionHistory: TypeAlias = dict[str, list[Item]]
PAGE_SIZE = 1000
MAX_ITEMS, MAX_BYTES = 20_000, 16 << 20  # in a history
MAX_REFERENCES = 1000  # in the input of one request


async def load_history(
    request: DecodedRequest, owner: str, state: PersistentState, connection: ConnectionHistory
) -> list[Item]:
    """Return the items that a response follows, oldest first."""
    previous, conversation = request.fields.previous_response_id, request.conversation_id
    if previous is not None:
        if previous in connection:
            return connection[previous]
        store = await state.get_store()
        size = await store.read(lambda tx: tx.responses.measure_history(owner, previous))
        _check_size(size, "previous_response_id")
        chain = await store.read(lambda tx: tx.responses.get_history(owner, previous))
        if not chain:
            raise _make_missing_error(previous)
        for row in chain:
            _check_has_answer(row)
        return await asyncio.to_thread(_decode_chain, chain)
    if conversation is not None:
        return await _load_conversation(conversation, owner, state)
    return []


def _check_size(size: int, param: str) -> None:
    """Reject a history that is too large to be loaded."""
    if size > MAX_BYTES:
        raise BadRequest(
            f"A response can follow at most {MAX_BYTES:,} bytes of earlier items.", param=param
        )


def _decode_chain(chain: list[StoredResponse]) -> list[Item]:
    """Return the input and output items of each response."""
    items: list[Item] = []
    for row in chain:
        items += msgspec.json.decode(row.input)
        items += _decode_output(row)
        if len(items) > MAX_ITEMS:
            raise BadRequest(
                f"A response can follow at most {MAX_ITEMS:,} items.", param="previous_response_id"
            )
    return items


def _check_has_answer(row: StoredResponse) -> None:
    if row.status in RUNNING or row.status == "failed":
        raise PreviousResponseNotFinished(
            f"The response `{row.id}` cannot be continued: it has no answer.",
            param="previous_response_id",
        )


def _decode_output(row: StoredResponse) -> list[Item]:
    """Return the output items, without calls that were cut off: those were never made."""
    output: list[Item] = msgspec.json.decode(row.body)["output"]
    return [item for item in output if not _is_incomplete_call(item)]


def _is_incomplete_call(item: Item) -> bool:
    return item["type"].endswith("_call") and item.get("status") == "incomplete"


def _make_missing_error(response: str) -> BadRequest:
    return PreviousResponseNotFound(
        f"There is no response `{shorten_id(response)}` to continue.",
        param="previous_response_id",
    )


async def _load_conversation(conversation: str, owner: str, state: PersistentState) -> list[Item]:
    """Return all items of a conversation, page by page; reject one that is too large."""
    store = await state.get_store()
    size = await store.read(lambda tx: tx.conversations.measure_items(owner, conversation))
    _check_size(size, "conversation")

    async def load_page(after: str | None) -> list[StoredItem] | None:
        return await store.read(
            lambda tx: tx.conversations.list_items(
                owner, conversation, after=after, limit=PAGE_SIZE, newest_first=False
            )
        )

    items: list[Item] = []
    after: str | None = None
    while True:
        page = await load_page(after)
        if page is None:
            raise ConversationNotFound(
                f"There is no conversation `{shorten_id(conversation)}`.",
                param="conversation",
            )
        items += await asyncio.to_thread(_decode_items, page)
        if len(items) > MAX_ITEMS:
            raise BadRequest(
                f"A conversation can have at most {MAX_ITEMS:,} items.", param="conversation"
            )
        if len(page) < PAGE_SIZE:
            return items
        after = page[-1].id


def _decode_items(rows: list[StoredItem]) -> list[Item]:
    return [msgspec.json.decode(row.body) for row in rows]


async def _load_output_items(ids: list[str], owner: str, state: PersistentState) -> dict[str, Item]:
    """Return all output items of the responses that have one of these, by id."""
    if len(ids) > MAX_REFERENCES:
        raise BadRequest(f"`input` can reference at most {MAX_REFERENCES:,} items.", param="input")
    store = await state.get_store()
    rows = await store.read(lambda tx: tx.responses.find_by_output_items(owner, ids))
    outputs = await asyncio.to_thread(lambda: [_decode_output(row) for row in rows])
    return {item["id"]: item for output in outputs for item in output}


def drop_repeated_items(request: DecodedRequest, history: list[Item]) -> DecodedRequest:
    """Remove items that the conversation already has.

    A different item with an id of the conversation is an error.
    """
    if request.conversation_id is None:
        return request
    known = {item["id"]: item for item in history}
    new: list[Item] = []
    for index, item in enumerate(request.items):
        existing = known.get(item["id"])
        if existing is None or item["type"] == "item_reference":
            new.append(item)
        elif existing != item:
            raise make_duplicate_error(item["id"], f"input[{index}].id")
    return replace(request, items=new)


def make_duplicate_error(item: str, param: str) -> BadRequest:
    return DuplicateItem(
        f"The conversation has another item `{shorten_id(item)}`: omit the id, or use a new one.",
        param=param,
    )


async def resolve_references(
    request: DecodedRequest, history: list[Item], owner: str, state: PersistentState
) -> DecodedRequest:
    """Replace references with the items that they name."""
    references = get_references(request)
    if not references:
        return request
    known = {item["id"]: item for item in history if "id" in item}
    missing = [reference for reference in references if reference not in known]
    if missing:
        known |= await _load_output_items(missing, owner, state)
    in_history = {item.get("id") for item in history}
    items: list[Item] = []
    for index, item in enumerate(request.items):
        if item.get("type") != "item_reference":
            items.append(item)
        elif item["id"] not in known:
            raise ItemNotFound(
                f"There is no item `{shorten_id(str(item['id']))}`.",
                param=f"input[{index}]",
            )
        elif item["id"] not in in_history:  # items of the history are not repeated
            items.append(known[item["id"]])
    return replace(request, items=items)
