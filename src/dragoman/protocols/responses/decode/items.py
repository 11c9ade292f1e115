"""Items: what a conversation is made of in this dialect.

Items stay plain JSON objects, because they are kept, shown and told to the model at different
times. `kept` makes what a client sent whole (its type, an id, a status, content as parts) and
looks at the kinds that we read. Items of a kind that we do not know are kept as they are: agents
send what other servers gave them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

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
    field_too_large,
    missing_field,
)
from dragoman.protocols.shared.signer import ContentPacker

Id: TypeAlias = Annotated[str, Meta(max_length=512)]
RawTools: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
Items: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=20_000)]

TEXTS = ("text", "input_text", "output_text")


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
    """What came of a call; without an id it is of the first that is open."""

    output: str | list[ContentPartFields]
    call_id: Id | None = None


class ReasoningTextPart(Struct):
    text: str


class ReasoningItem(Struct):
    summary: list[ReasoningTextPart] | None = None
    content: list[ReasoningTextPart] | None = None
    encrypted_content: str | None = None


class McpCallItem(Struct):
    """A call that a server made, with what came of it."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None


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
    """What a compaction has sealed in it."""

    summary: str


READ: dict[str, type[Struct]] = {
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
TOOLS = ("additional_tools", "tool_search_output")  # items that add tools
WITH_STATUS = frozenset(READ) - {
    *("mcp_approval_request", "mcp_approval_response", "mcp_call", "reasoning"),
    *("compaction", "additional_tools", "item_reference"),
}
PREFIXES = {
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


def new_item_id(kind: str) -> str:
    """A new id for an item of this kind."""
    return f"{PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"


def normalize_items(said: str | list[Item] | None, at: str = "input") -> list[Item]:
    """What a client sent, as it is kept and shown."""
    if isinstance(said, str):
        said = [{"type": "message", "role": "user", "content": said}]
    found: list[Item] = []
    taken: set[str] = set()
    for i, item in enumerate(said or ()):
        whole = _whole(item, f"{at}[{i}]")
        if whole["id"] in taken and whole["type"] != "item_reference":
            whole["id"] = new_item_id(whole["type"])
        taken.add(whole["id"])
        found.append(whole)
    return found


def _whole(item: Item, at: str) -> Item:
    check_depth(item, at)
    kind = _kind(item, at)
    read = convert_value(item, READ[kind], at) if kind in READ else None
    whole: Item = {"id": _short(item, "id", 512, at) or new_item_id(kind), "type": kind}
    whole |= {name: value for name, value in item.items() if name not in whole}
    if kind in WITH_STATUS and not isinstance(whole.get("status"), str):
        whole["status"] = "completed"
    match read:
        case ResponsesMessageItem():
            decode_content(read.content, f"{at}.content")
            if read.content is None and read.role != "assistant":
                raise missing_field(f"{at}.content")
            whole["content"] = _parts(read.role, item.get("content"))
        case CallOutputItem():
            decode_content(read.output, f"{at}.output")
        case AdditionalToolsItem():
            _check_size(read.tools, f"{at}.tools")
            whole["tools"] = [remove_secrets(tool) for tool in read.tools]
    return whole


def _kind(item: Item, at: str) -> str:
    """The type of an item; one without is a message, or a reference if it is only an id."""
    kind = _short(item, "type", 64, at)
    if kind is not None:
        return kind
    if "role" in item:
        return "message"
    if item.keys() <= {"id", "type"}:
        return "item_reference"
    raise missing_field(f"{at}.type")


def _short(item: Item, name: str, longest: int, at: str) -> str | None:
    """A field that every kind of item has."""
    said = item.get(name)
    if said is None or (isinstance(said, str) and len(said) <= longest):
        return said
    at = f"{at}.{name}"
    raise BadRequest(f"`{at}` must be a string of at most {longest} characters.", param=at)


def _check_size(tools: RawTools, at: str) -> None:
    """Schemas are many small things wherever they stand."""
    if len(msgspec.json.encode(tools)) > MAX_FIELD_SIZE:
        raise field_too_large(at)


def _parts(role: str, content: str | list[Item] | None) -> list[Item]:
    """Content as parts of the kind that goes with the role."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [_part(role, part) for part in content or ()]


def _part(role: str, part: Item) -> Item:
    if part["type"] not in TEXTS:
        return part
    if role != "assistant":
        return part | {"type": "input_text"}
    return {"annotations": []} | part | {"type": "output_text"}


def get_reference_ids(items: Iterable[Item]) -> list[str]:
    """The ids of items that are only referred to."""
    return [item["id"] for item in items if item["type"] == "item_reference"]


def make_compaction_item(summary: str, sealing: ContentPacker) -> Item:
    """An item that stands for everything before it."""
    sealed = sealing.pack("compaction", msgspec.json.encode(CompactionSummary(summary)))
    return {"id": new_item_id("compaction"), "type": "compaction", "encrypted_content": sealed}
