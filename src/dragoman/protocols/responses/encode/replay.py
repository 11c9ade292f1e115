"""A response that is finished, told again as a stream, with one piece for each part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.protocols.responses.encode.frames import EventEncoder
from dragoman.protocols.responses.encode.resource import ENDS
from dragoman.protocols.responses.types import Item

_decode = msgspec.json.Decoder(dict[str, Any]).decode
BEGINNING = ("created", "in_progress")
_UNKNOWN: dict[str, Any] = {
    "status": "in_progress",
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
    "completed_at": None,
}
_EMPTY: dict[str, Any] = {
    "status": "in_progress",
    "content": [],
    "summary": [],
    "arguments": "",
    "input": "",
    "tools": [],
    "output": None,
    "error": None,
}


def encode_stored_events(body: bytes) -> list[bytes]:
    """The events of a response; without an end, if it has none yet."""
    kept = _decode(body)
    events = EventEncoder()
    begun = kept | _UNKNOWN
    frames = [events.encode_event(f"response.{kind}", response=begun) for kind in BEGINNING]
    for index, item in enumerate(kept["output"]):
        frames += _ItemReplay(events, index, item).frames()
    if kept["status"] in ENDS:
        frames.append(events.encode_event(ENDS[kept["status"]], response=kept))
    return frames


class _ItemReplay:
    """The events of one item."""

    def __init__(self, events: EventEncoder, index: int, item: Item) -> None:
        self._events = events
        self._index = index
        self._item = item

    def frames(self) -> Iterator[bytes]:
        item = self._item
        yield self._whole("added", _bare(item))
        match item["type"]:
            case "message" | "reasoning":
                yield from self._parts(item)
            case "function_call":
                yield from self._said("function_call_arguments", "arguments", name=item["name"])
            case "custom_tool_call":
                yield from self._said("custom_tool_call_input", "input")
            case "mcp_call":
                yield self._event("mcp_call.in_progress")
                yield from self._said("mcp_call_arguments", "arguments")
                if item["status"] in ("completed", "failed"):
                    yield self._event(f"mcp_call.{item['status']}")
            case "mcp_list_tools":
                yield self._event("mcp_list_tools.in_progress")
                end = "completed" if item.get("error") is None else "failed"
                yield self._event(f"mcp_list_tools.{end}")
        if not _cut(item):
            yield self._whole("done", item)

    def _whole(self, kind: str, item: Item) -> bytes:
        return self._events.encode_event(
            f"response.output_item.{kind}", output_index=self._index, item=item
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        item_id = self._item["id"]
        return self._events.encode_event(
            f"response.{kind}", item_id=item_id, output_index=self._index, **fields
        )

    def _said(self, kind: str, field: str, **named: Any) -> Iterator[bytes]:
        text = self._item[field]
        if text:
            yield self._event(f"{kind}.delta", delta=text)
        if not _cut(self._item) or (kind == "mcp_call_arguments" and _readable(text)):
            yield self._event(f"{kind}.done", **named, **{field: text})

    def _parts(self, item: Item) -> Iterator[bytes]:
        for index, part in enumerate(item.get("content") or ()):
            kind = part["type"]
            more = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
            empty = part | {"text": ""} | ({"logprobs": []} if more else {})
            at = {"content_index": index}
            yield self._event("content_part.added", part=empty, **at)
            if part["text"]:
                yield self._event(f"{kind}.delta", delta=part["text"], **more, **at)
            yield self._event(f"{kind}.done", text=part["text"], **more, **at)
            yield self._event("content_part.done", part=part, **at)
        for index, part in enumerate(item.get("summary") or ()):
            at = {"summary_index": index}
            yield self._event("reasoning_summary_part.added", part=part | {"text": ""}, **at)
            if part["text"]:
                yield self._event("reasoning_summary_text.delta", delta=part["text"], **at)
            yield self._event("reasoning_summary_text.done", text=part["text"], **at)
            yield self._event("reasoning_summary_part.done", part=part, **at)


def _bare(item: Item) -> Item:
    """An item as it was when it began."""
    if item["type"] == "mcp_approval_request":
        return item
    bare = {name: _EMPTY.get(name, value) for name, value in item.items()}
    bare.pop("encrypted_content", None)
    return bare


def _cut(item: Item) -> bool:
    """Whether it is a call that was cut, which is never done; see `calls`."""
    calls = ("function_call", "custom_tool_call", "mcp_call")
    return item["type"] in calls and item.get("status") in ("incomplete", "in_progress", "calling")


def _readable(arguments: str) -> bool:
    """Whether arguments are whole, of a call that nobody answered."""
    try:
        msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
