"""Replay a stored response as a stream of events, with one delta for each part."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dragoman.protocols.responses.encode.frames import EventEncoder
from dragoman.protocols.responses.encode.resource import FINAL_EVENTS
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.json_body import is_json
from dragoman.types import Json

_decode = msgspec.json.Decoder(dict[str, Json]).decode
FIRST_EVENTS = ("created", "in_progress")
# Fields of a response that has just begun.
_UNFINISHED_RESPONSE: dict[str, Json] = {
    "status": "in_progress",
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
    "completed_at": None,
}
# Fields of an item that has just begun.
_EMPTY_FIELDS: dict[str, Json] = {
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
    """Encode the events of a response; without a final event if it has not ended."""
    resource = _decode(body)
    events = EventEncoder()
    initial = resource | _UNFINISHED_RESPONSE
    frames = [events.encode_event(f"response.{kind}", response=initial) for kind in FIRST_EVENTS]
    for index, item in enumerate(resource["output"]):
        frames += _ItemReplay(events, index, item).encode()
    if resource["status"] in FINAL_EVENTS:
        frames.append(events.encode_event(FINAL_EVENTS[resource["status"]], response=resource))
    return frames


class _ItemReplay:
    """Encodes the events of one item."""

    def __init__(self, events: EventEncoder, index: int, item: Item) -> None:
        self._events = events
        self._index = index
        self._item = item

    def encode(self) -> Iterator[bytes]:
        item = self._item
        yield self._encode_item("added", _make_empty(item))
        match item["type"]:
            case "message" | "reasoning":
                yield from self._encode_parts(item)
            case "function_call":
                name = item["name"]
                yield from self._encode_text("function_call_arguments", "arguments", name=name)
            case "custom_tool_call":
                yield from self._encode_text("custom_tool_call_input", "input")
            case "mcp_call":
                yield self._encode_event("mcp_call.in_progress")
                yield from self._encode_text("mcp_call_arguments", "arguments")
                if item["status"] in ("completed", "failed"):
                    yield self._encode_event(f"mcp_call.{item['status']}")
            case "mcp_list_tools":
                yield self._encode_event("mcp_list_tools.in_progress")
                end = "completed" if item.get("error") is None else "failed"
                yield self._encode_event(f"mcp_list_tools.{end}")
        if not _is_cut_call(item):
            yield self._encode_item("done", item)

    def _encode_item(self, kind: str, item: Item) -> bytes:
        return self._events.encode_event(
            f"response.output_item.{kind}", output_index=self._index, item=item
        )

    def _encode_event(self, kind: str, **fields: object) -> bytes:
        item_id = self._item["id"]
        return self._events.encode_event(
            f"response.{kind}", item_id=item_id, output_index=self._index, **fields
        )

    def _encode_text(self, kind: str, field: str, **done_fields: Json) -> Iterator[bytes]:
        text = self._item[field]
        if text:
            yield self._encode_event(f"{kind}.delta", delta=text)
        if not _is_cut_call(self._item) or (kind == "mcp_call_arguments" and is_json(text)):
            yield self._encode_event(f"{kind}.done", **done_fields, **{field: text})

    def _encode_parts(self, item: Item) -> Iterator[bytes]:
        for index, part in enumerate(item.get("content") or ()):
            kind = part["type"]
            logprobs = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
            empty = part | {"text": ""} | ({"logprobs": []} if logprobs else {})
            position = {"content_index": index}
            yield self._encode_event("content_part.added", part=empty, **position)
            if part["text"]:
                yield self._encode_event(
                    f"{kind}.delta", delta=part["text"], **logprobs, **position
                )
            yield self._encode_event(f"{kind}.done", text=part["text"], **logprobs, **position)
            yield self._encode_event("content_part.done", part=part, **position)
        for index, part in enumerate(item.get("summary") or ()):
            position = {"summary_index": index}
            empty = part | {"text": ""}
            yield self._encode_event("reasoning_summary_part.added", part=empty, **position)
            if part["text"]:
                yield self._encode_event(
                    "reasoning_summary_text.delta", delta=part["text"], **position
                )
            yield self._encode_event("reasoning_summary_text.done", text=part["text"], **position)
            yield self._encode_event("reasoning_summary_part.done", part=part, **position)


def _make_empty(item: Item) -> Item:
    """Return an item as it was when it began."""
    if item["type"] == "mcp_approval_request":
        return item
    empty = {name: _EMPTY_FIELDS.get(name, value) for name, value in item.items()}
    empty.pop("encrypted_content", None)
    return empty


def _is_cut_call(item: Item) -> bool:
    """Return whether the item is a call that was cut, which is never done; see `call_builders`."""
    calls = ("function_call", "custom_tool_call", "mcp_call")
    return item["type"] in calls and item.get("status") in ("incomplete", "in_progress", "calling")
