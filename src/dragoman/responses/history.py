"""Where a response begins: the items that came before it.

They are those of the responses it follows, or of its conversation. Over a WebSocket a response that
is not kept can be followed on the same connection; `Local` holds those.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, NotFound
from dragoman.protocols.responses import DecodedRequest, get_references
from dragoman.protocols.responses.types import Item
from dragoman.store.rows import RUNNING, StoredItem, StoredResponse

if TYPE_CHECKING:
    from dragoman.responses.state import PersistentState

ConnectionHistory: TypeAlias = dict[str, list[Item]]  # all items up to the end of a response, by its id
PAGE = 1000
MOST = 20_000  # items that a response can follow
NAMED = 1000  # items that are named and not said


async def load_history(asked: DecodedRequest, owner: str, state: PersistentState, local: ConnectionHistory) -> list[Item]:
    """The items that a response follows, oldest first."""
    previous, conversation = asked.fields.previous_response_id, asked.conversation_id
    if previous is not None:
        if previous in local:
            return local[previous]
        store = await state.get_store()
        chain = await store.read(lambda tx: tx.responses.get_history(owner, previous))
        if not chain:
            raise _lost(previous)
        for row in chain:
            _check_ended(row)
        return await asyncio.to_thread(_items, chain)
    if conversation is not None:
        return await _conversation(conversation, owner, state)
    return []


def _items(chain: list[StoredResponse]) -> list[Item]:
    """What went into each response and what came out of it."""
    found: list[Item] = []
    for row in chain:
        found += msgspec.json.decode(row.input)
        found += _answered(row)
        if len(found) > MOST:
            raise BadRequest(
                f"A response can follow at most {MOST:,} items.", param="previous_response_id"
            )
    return found


def _check_ended(row: StoredResponse) -> None:
    if row.status in RUNNING or row.status == "failed":
        raise BadRequest(
            f"The response `{row.id}` has no answer to go on from.",
            param="previous_response_id",
            code="previous_response_not_finished",
        )


def _answered(row: StoredResponse) -> list[Item]:
    """What came out of it; a call that was cut short was never made."""
    output: list[Item] = msgspec.json.decode(row.body)["output"]
    return [item for item in output if not _cut(item)]


def _cut(item: Item) -> bool:
    return item["type"].endswith("_call") and item.get("status") == "incomplete"


def _lost(name: str) -> BadRequest:
    return BadRequest(
        f"There is no response `{name[:80]}` to go on from.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


async def _conversation(name: str, owner: str, state: PersistentState) -> list[Item]:
    store, found = await state.get_store(), list[Item]()

    async def load_page(after: str | None) -> list[StoredItem] | None:
        return await store.read(
            lambda tx: tx.conversations.list_items(
                owner, name, after=after, limit=PAGE, newest_first=False
            )
        )

    after: str | None = None
    while True:
        page = await load_page(after)
        if page is None:
            raise NotFound(
                f"There is no conversation `{name[:80]}`.",
                param="conversation",
                code="conversation_not_found",
            )
        found += await asyncio.to_thread(_decoded, page)
        if len(found) > MOST:
            raise BadRequest(
                f"A conversation can have at most {MOST:,} items.", param="conversation"
            )
        if len(page) < PAGE:
            return found
        after = page[-1].id


def _decoded(entries: list[StoredItem]) -> list[Item]:
    return [msgspec.json.decode(entry.body) for entry in entries]


async def _found(names: list[str], owner: str, state: PersistentState) -> dict[str, Item]:
    """Items that earlier responses answered with, by their ids."""
    if len(names) > NAMED:
        raise BadRequest(f"`input` can name at most {NAMED:,} items.", param="input")
    store = await state.get_store()
    rows = await store.read(lambda tx: tx.responses.find_by_output_items(owner, names))
    found = await asyncio.to_thread(lambda: [_answered(row) for row in rows])
    return {item["id"]: item for items in found for item in items}


def drop_repeated_items(asked: DecodedRequest, history: list[Item]) -> DecodedRequest:
    """The same without items that its conversation has; the id of another one is an error."""
    if asked.conversation_id is None:
        return asked
    known = {item["id"]: item for item in history}
    new: list[Item] = []
    for at, item in enumerate(asked.items):
        there = known.get(item["id"])
        if there is None or item["type"] == "item_reference":
            new.append(item)
        elif there != item:
            raise make_duplicate_error(item["id"], f"input[{at}].id")
    return replace(asked, items=new)


def make_duplicate_error(name: str, at: str) -> BadRequest:
    return BadRequest(
        f"The conversation has another item `{name[:80]}`: leave the id out, or give a new one.",
        param=at,
        code="duplicate_item",
    )


async def resolve_references(
    asked: DecodedRequest, history: list[Item], owner: str, state: PersistentState
) -> DecodedRequest:
    """The same with the items themselves where it only names them."""
    wanted = get_references(asked)
    if not wanted:
        return asked
    known = {item["id"]: item for item in history if "id" in item}
    missing = [name for name in wanted if name not in known]
    if missing:
        known |= await _found(missing, owner, state)
    inside = {item.get("id") for item in history}
    items: list[Item] = []
    for at, item in enumerate(asked.items):
        if item.get("type") != "item_reference":
            items.append(item)
        elif item["id"] not in known:
            raise NotFound(
                f"There is no item `{str(item['id'])[:80]}`.",
                param=f"input[{at}]",
                code="item_not_found",
            )
        elif item["id"] not in inside:  # what is in the history is not said twice
            items.append(known[item["id"]])
    return replace(asked, items=items)
