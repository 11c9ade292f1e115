"""Build the messages of a conversation from its items.

One turn of the model is several items here: reasoning, texts, calls. They become one message again,
followed by the results of the calls. Items that are not part of a conversation, or that only
another server can read, are left out, with a warning where information is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import UnknownItem, shorten_id
from dragoman.protocols.responses.decode import items
from dragoman.protocols.responses.decode.tools import make_remote_name
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.content import decode_content, join_content
from dragoman.protocols.shared.json_body import convert_value
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Content, Json, Message, Role, ToolCall, make_text_content

SEPARATOR = "\n\n"
HISTORY = "previous_response_id"  # the path of items that the client does not send
SUMMARY = "This is a summary of the conversation so far:\n\n"
DENIED = "The user did not approve this call. It was not made."
FOREIGN_ITEM = "An item with `encrypted_content` that this server did not sign is ignored."
# Items that only the server and its client need.
HIDDEN_TYPES = ("mcp_list_tools", "additional_tools", "tool_search_output", "tool_search_call")
# Calls to tools that a client runs itself, and the field of the item with their arguments.
CLIENT_CALLS = {
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
CLIENT_CALL_OUTPUTS = tuple(f"{kind}_output" for kind in CLIENT_CALLS)


class BuiltConversation(Struct, frozen=True):
    """The messages of a conversation, and what to know about them."""

    messages: tuple[Message, ...] = ()
    result_params: dict[int, str] = {}  # see `Chat.result_params`
    warnings: tuple[str, ...] = ()


class MessageBuilder:
    """Takes the items of a conversation, oldest first.

    `get_flat_name` returns the model's name for a tool from its namespace and name.
    """

    def __init__(
        self, get_flat_name: Callable[[str | None, str], str], packer: ContentPacker
    ) -> None:
        self._get_flat_name = get_flat_name
        self._packer = packer
        self._messages: list[Message] = []
        self._warnings: dict[str, None] = {}
        self._result_params: dict[int, str] = {}  # index of a message -> path of its id
        self._is_compacted = False  # the beginning of the conversation is only known as a summary
        self._approval_requests: dict[str, items.ApprovalRequestItem] = {}
        # The open turn of the assistant, and the results of its calls.
        self._reasonings: list[str] = []
        self._contents: list[Content] = []
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []

    def build(self, instructions: str | None) -> BuiltConversation:
        """Return the conversation; the system messages at its beginning become one."""
        self._close_turn()
        heads = [make_text_content(instructions)]
        first = 0
        while first < len(self._messages) and self._messages[first].role in (
            "system",
            "developer",
        ):
            heads.append(self._messages[first].content)
            first += 1
        content = join_content([head for head in heads if head], SEPARATOR)
        system = [Message(role="system", content=content)] if content else []
        offset = len(system) - first
        return BuiltConversation(
            (*system, *self._messages[first:]),
            {index + offset: path for index, path in self._result_params.items()},
            tuple(self._warnings),
        )

    def add(self, item: Item, path: str) -> None:
        kind = item["type"]
        known = items.ITEM_TYPES.get(kind)
        decoded: Any = None if known is None else convert_value(item, known, path)
        match kind:
            case "message":
                content = decode_content(decoded.content, f"{path}.content")
                self._add_message(decoded.role, content)
            case "reasoning":
                self._add_reasoning(decoded)
            case "function_call":
                name = self._get_flat_name(decoded.namespace, decoded.name)
                self._add_call(decoded.call_id, name, decoded.arguments)
            case "custom_tool_call":
                name = self._get_flat_name(decoded.namespace, decoded.name)
                self._add_call(decoded.call_id, name, _to_json({"input": decoded.input}))
            case "function_call_output" | "custom_tool_call_output":
                content = decode_content(decoded.output, f"{path}.output")
                self._add_result(decoded.call_id, content, path)
            case "mcp_call":
                self._add_remote_call(item["id"], decoded, _get_mcp_result(decoded, path))
            case "mcp_approval_request":
                self._approval_requests[item["id"]] = decoded
            case "mcp_approval_response":
                self._add_approval(decoded)
            case "compaction":
                self._add_compaction(decoded)
            case "item_reference":
                raise UnknownItem(f"Item `{shorten_id(item['id'])}` does not exist.", param=path)
            case _ if kind not in HIDDEN_TYPES:
                self._add_client_call(kind, item, path)

    def _add_message(self, role: Role, content: Content) -> None:
        if role == "assistant":
            self._continue_turn()
            self._contents.append(content)
        else:
            self._add_other(Message(role=role, content=content))

    def _add_reasoning(self, item: items.ReasoningItem) -> None:
        text = _join_texts(item.content)
        if not text and item.encrypted_content:
            data = self._packer.unpack("reasoning", item.encrypted_content)
            if data is None:
                self._warn(FOREIGN_ITEM)
            else:
                text = data.decode("utf-8", "replace")
        text = text or _join_texts(item.summary)
        if text:
            self._continue_turn()
            self._reasonings.append(text)

    def _add_call(self, call_id: str, name: str, arguments: str) -> None:
        self._continue_turn()
        self._calls.append(ToolCall(id=call_id, name=name, arguments=arguments))

    def _add_remote_call(
        self,
        call_id: str,
        item: items.McpCallItem | items.ApprovalRequestItem,
        result: Content | None,
    ) -> None:
        """Add a call that comes with its result; the model's next output is a new turn."""
        self._add_call(call_id, make_remote_name(item.server_label, item.name), item.arguments)
        if result is not None:
            self._results.append(Message(role="tool", content=result, tool_call_id=call_id))

    def _add_result(self, call_id: str | None, content: Content, path: str) -> None:
        """Add the result of a call. The history and a summary may lack the call."""
        self._add_other(Message(role="tool", content=content, tool_call_id=call_id))
        if path != HISTORY and not self._is_compacted:
            self._result_params[len(self._messages) - 1] = f"{path}.call_id"

    def _add_approval(self, item: items.ApprovalResponseItem) -> None:
        """Add a denied call, with the denial as its result; approved calls have their own items."""
        request = self._approval_requests.get(item.approval_request_id)
        if request is not None and not item.approve:
            reason = f" Reason: {item.reason}" if item.reason else ""
            result = make_text_content(DENIED + reason)
            self._add_remote_call(item.approval_request_id, request, result)

    def _add_compaction(self, item: items.CompactionItem) -> None:
        self._is_compacted = True
        data = self._packer.unpack("compaction", item.encrypted_content)
        try:
            compaction = msgspec.json.decode(data or b"", type=items.CompactionSummary)
        except msgspec.MsgspecError:
            self._warn(FOREIGN_ITEM)
        else:
            content = make_text_content(SUMMARY + compaction.summary)
            self._add_other(Message(role="user", content=content))

    def _add_client_call(self, kind: str, item: Item, path: str) -> None:
        """Add calls to tools that this server does not offer, from other servers' responses."""
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            call_id = item["id"]
        if kind in CLIENT_CALLS:
            arguments = item.get(CLIENT_CALLS[kind])
            self._add_call(call_id, kind.removesuffix("_call"), _to_json(arguments or {}))
        elif kind in CLIENT_CALL_OUTPUTS:
            output = item.get("output") or item.get("status") or ""
            text = output if isinstance(output, str) else _to_json(output)
            self._add_result(call_id, make_text_content(text), path)
        else:
            self._warn(f"Items of type `{kind}` are ignored.")

    def _warn(self, warning: str) -> None:
        self._warnings[warning] = None

    def _continue_turn(self) -> None:
        """Continue the assistant's turn; after results, in a turn of its own."""
        if self._results:
            self._close_turn()

    def _add_other(self, message: Message) -> None:
        """Add a message that is not the assistant's."""
        self._close_turn()
        self._messages.append(message)

    def _close_turn(self) -> None:
        if self._reasonings or self._contents or self._calls:
            message = Message(
                role="assistant",
                content=join_content(self._contents, SEPARATOR),
                reasoning=SEPARATOR.join(self._reasonings) or None,
                tool_calls=tuple(self._calls),
            )
            self._messages.append(message)
        self._messages += self._results
        self._reasonings, self._contents, self._calls, self._results = [], [], [], []


def _join_texts(parts: Iterable[items.ReasoningTextPart] | None) -> str:
    return SEPARATOR.join(part.text for part in parts or ())


def _get_mcp_result(call: items.McpCallItem, path: str) -> Content | None:
    """Return the result of a call as the model reads it; None if there is none."""
    if call.error is not None:
        return make_text_content(f"Error: {_get_error_text(call.error)}")
    if call.output is None:
        return None
    return make_text_content(call.output) + decode_content(
        call.output_media, f"{path}.output_media"
    )


def _get_error_text(error: Json) -> str:
    """Return the text of an error, however it is wrapped."""
    match error:
        case str():
            return error
        case {"message": str(text)} | {"text": str(text)}:
            return text
        case {"content": inner}:
            return _get_error_text(inner)
        case [_, *_]:
            return "\n".join(_get_error_text(inner) for inner in error)
    return _to_json(error)


def _to_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
