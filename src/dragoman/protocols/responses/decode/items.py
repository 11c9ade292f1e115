"""Items: the parts of a conversation in the Responses API.

Items stay plain JSON objects, because they are stored, shown and passed to the model at different
times. `normalize_items` completes the items of a client (type, id, status, content as parts) and
validates the types that this server reads. Items of unknown types are stored as they are: agents
send items that other servers returned.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.responses.secrets import remove_secrets
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.content import ContentPartFields, decode_content
from dragoman.protocols.shared.json_body import (
    MAX_FIELD_SIZE,
    check_depth,
    convert_value,
    make_field_too_large_error,
    make_missing_field_error,
)
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Json

Id: TypeAlias = Annotated[str, Meta(max_length=512)]
RawTools: TypeAlias = Annotated[list[dict[str, Json]], Meta(max_length=1024)]
Items: TypeAlias = Annotated[list[Item], Meta(max_length=20_000)]

TEXT_TYPES = ("text", "input_text", "output_text")


class ResponsesMessageItem(Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPartFields] | None = None


class FunctionCallItem(Struct):
    call_id: Id
    name: openai.Name
    arguments: str
    namespace: str | None = None


class CustomCallItem(Struct):
    call_id: Id
    name: openai.Name
    input: str
    namespace: str | None = None


class CallOutputItem(Struct):
    """The result of a call; without an id, of the first call that has no result yet."""

    output: str | list[ContentPartFields]
    call_id: Id | None = None


class ReasoningTextPart(Struct):
    text: str


class ReasoningItem(Struct):
    summary: list[ReasoningTextPart] | None = None
    content: list[ReasoningTextPart] | None = None
    encrypted_content: str | None = None


class McpCallItem(Struct):
    """A call that a server made, with its result."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Json = None
    output_media: list[ContentPartFields] | None = None  # pictures and sound, see docs/media.md


class ApprovalRequestItem(Struct):
    server_label: str
    name: str
    arguments: str


class ApprovalResponseItem(Struct):
    approval_request_id: str
    approve: bool
    reason: str | None = None


class CompactionItem(Struct):
    encrypted_content: str


class AdditionalToolsItem(Struct):
    tools: RawTools


class ItemReference(Struct):
    id: Annotated[str, Meta(min_length=1, max_length=512)]


class CompactionSummary(Struct):
    """The unpacked `encrypted_content` of a compaction."""

    summary: str


ITEM_TYPES: dict[str, type[Struct]] = {
    "message": ResponsesMessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
    "mcp_call": McpCallItem,
    "mcp_approval_request": ApprovalRequestItem,
    "mcp_approval_response": ApprovalResponseItem,
    "compaction": CompactionItem,
    "additional_tools": AdditionalToolsItem,
    "tool_search_output": AdditionalToolsItem,
    "item_reference": ItemReference,
}
TOOL_ITEM_TYPES = ("additional_tools", "tool_search_output")  # items that add tools
TYPES_WITH_STATUS = frozenset(ITEM_TYPES) - {
    *("mcp_approval_request", "mcp_approval_response", "mcp_call", "reasoning"),
    *("compaction", "additional_tools", "item_reference"),
}
ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "compaction": "cmp",
    "additional_tools": "at",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "apply_patch_call": "apc",
    "web_search_call": "ws",
}


def make_item_id(kind: str) -> str:
    return f"{ID_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"


def normalize_items(items: str | list[Item] | None, path: str = "input") -> list[Item]:
    """Return the items that a client sent as they are stored and shown."""
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    normalized: list[Item] = []
    ids: set[str] = set()
    for i, item in enumerate(items or ()):
        complete = _normalize_item(item, f"{path}[{i}]")
        if complete["id"] in ids and complete["type"] != "item_reference":
            complete["id"] = make_item_id(complete["type"])
        ids.add(complete["id"])
        normalized.append(complete)
    return normalized


def _normalize_item(item: Item, path: str) -> Item:
    check_depth(item, path)
    kind = _get_type(item, path)
    decoded = convert_value(item, ITEM_TYPES[kind], path) if kind in ITEM_TYPES else None
    complete: Item = {"id": _get_text(item, "id", 512, path) or make_item_id(kind), "type": kind}
    complete |= {name: value for name, value in item.items() if name not in complete}
    if kind in TYPES_WITH_STATUS and not isinstance(complete.get("status"), str):
        complete["status"] = "completed"
    match decoded:
        case ResponsesMessageItem():
            decode_content(decoded.content, f"{path}.content")
            if decoded.content is None and decoded.role != "assistant":
                raise make_missing_field_error(f"{path}.content")
            complete["content"] = _normalize_content(decoded.role, item.get("content"))
        case CallOutputItem():
            decode_content(decoded.output, f"{path}.output")
        case McpCallItem():
            decode_content(decoded.output_media, f"{path}.output_media")
        case AdditionalToolsItem():
            _check_size(decoded.tools, f"{path}.tools")
            complete["tools"] = [remove_secrets(tool) for tool in decoded.tools]
    return complete


def _get_type(item: Item, path: str) -> str:
    """Return the type of an item; without one, it is a message, or a reference if only an id."""
    kind = _get_text(item, "type", 64, path)
    if kind is not None:
        return kind
    if "role" in item:
        return "message"
    if item.keys() <= {"id", "type"}:
        return "item_reference"
    raise make_missing_field_error(f"{path}.type")


def _get_text(item: Item, name: str, max_length: int, path: str) -> str | None:
    """Return a field that items of every type have."""
    value = item.get(name)
    if value is None or (isinstance(value, str) and len(value) <= max_length):
        return value
    path = f"{path}.{name}"
    raise BadRequest(f"`{path}` must be a string of at most {max_length} characters.", param=path)


def _check_size(tools: RawTools, path: str) -> None:
    """Limit the schemas in an item as they are limited elsewhere: they are many small objects."""
    if len(msgspec.json.encode(tools)) > MAX_FIELD_SIZE:
        raise make_field_too_large_error(path)


def _normalize_content(role: str, content: str | list[Item] | None) -> list[Item]:
    """Return content as parts of the type that belongs to the role."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [_normalize_part(role, part) for part in content or ()]


def _normalize_part(role: str, part: Item) -> Item:
    if part["type"] not in TEXT_TYPES:
        return part
    if role != "assistant":
        return part | {"type": "input_text"}
    return {"annotations": []} | part | {"type": "output_text"}


def get_reference_ids(items: Iterable[Item]) -> list[str]:
    """Return the ids of the items that are only references."""
    return [item["id"] for item in items if item["type"] == "item_reference"]


def make_compaction_item(summary: str, packer: ContentPacker) -> Item:
    """Make an item that replaces everything before it."""
    content = packer.pack("compaction", msgspec.json.encode(CompactionSummary(summary)))
    return {"id": make_item_id("compaction"), "type": "compaction", "encrypted_content": content}
