"""From items to the messages of a conversation.

What a model said in one turn is several items here: thoughts, texts, calls. They become one
message again, in front of what came of the calls. Items that are no part of a conversation, or
that only another server can read, are left out, with a warning where something is lost by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.protocols.responses.decode import items
from dragoman.protocols.responses.decode.tools import make_remote_name
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.content import decode_content, join_content
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Content, Message, Role, ToolCall, text_content

BETWEEN = "\n\n"
SUMMARY = "This is a summary of the conversation so far:\n\n"
DENIED = "The user did not approve this call. It was not made."
SEALED = "An item with `encrypted_content` that was not made here is left out."
# what the server and its client settle between themselves
SILENT = ("mcp_list_tools", "additional_tools", "tool_search_output", "tool_search_call")
# calls of tools that a client runs itself, and where an item has their arguments
BUILT_IN = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
BUILT_IN_OUTPUT = tuple(f"{kind}_output" for kind in BUILT_IN)


class MessageBuilder:
    """Takes the items of a conversation, oldest first."""

    def __init__(self, flat: Callable[[str | None, str], str], sealing: ContentPacker) -> None:
        self._flat = flat  # what the model calls a tool
        self._sealing = sealing
        self._said: list[Message] = []
        self._warnings: dict[str, None] = {}
        self._requests: dict[str, items.ApprovalRequestItem] = {}
        self._thoughts: list[str] = []
        self._texts: list[Content] = []
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []

    def messages(self, instructions: str | None) -> tuple[Message, ...]:
        """All of it; what a system says before anyone else is one message."""
        self._close()
        heads = [text_content(instructions)]
        rest = 0
        while rest < len(self._said) and self._said[rest].role in ("system", "developer"):
            heads.append(self._said[rest].content)
            rest += 1
        head = join_content([content for content in heads if content], BETWEEN)
        first = [Message(role="system", content=head)] if head else []
        return (*first, *self._said[rest:])

    @property
    def warnings(self) -> list[str]:
        return list(self._warnings)

    def add(self, item: Item, at: str) -> None:
        kind = item["type"]
        read: Any = msgspec.convert(item, items.READ[kind]) if kind in items.READ else None
        match kind:
            case "message":
                self._message(read.role, decode_content(read.content, f"{at}.content"))
            case "reasoning":
                self._think(read)
            case "function_call":
                name = self._flat(read.namespace, read.name)
                self._call(read.call_id, name, read.arguments)
            case "custom_tool_call":
                name = self._flat(read.namespace, read.name)
                self._call(read.call_id, name, _as_json({"input": read.input}))
            case "function_call_output" | "custom_tool_call_output":
                content = decode_content(read.output, f"{at}.output")
                self._heard(_result(read.call_id, content))
            case "mcp_call":
                self._remote(item["id"], read, _outcome(read))
            case "mcp_approval_request":
                self._requests[item["id"]] = read
            case "mcp_approval_response":
                self._answered(read)
            case "compaction":
                self._compacted(read)
            case "item_reference":
                raise BadRequest(
                    f"There is no item `{item['id'][:80]}`.", param=at, code="item_not_found"
                )
            case _ if kind not in SILENT:
                self._built_in(kind, item)

    def _message(self, role: Role, content: Content) -> None:
        if role == "assistant":
            self._open()
            self._texts.append(content)
        else:
            self._heard(Message(role=role, content=content))

    def _think(self, item: items.ReasoningItem) -> None:
        said = _all(item.content)
        if not said and item.encrypted_content:
            opened = self._sealing.unpack("reasoning", item.encrypted_content)
            if opened is None:
                self._warn(SEALED)
            else:
                said = opened.decode("utf-8", "replace")
        said = said or _all(item.summary)
        if said:
            self._open()
            self._thoughts.append(said)

    def _call(self, id_: str, name: str, arguments: str) -> None:
        self._open()
        self._calls.append(ToolCall(id=id_, name=name, arguments=arguments))

    def _remote(
        self, id_: str, item: items.McpCallItem | items.ApprovalRequestItem, outcome: str | None
    ) -> None:
        """A call that has its result with it, so whatever is said next was said after that."""
        self._call(id_, make_remote_name(item.server_label, item.name), item.arguments)
        if outcome is not None:
            self._results.append(_result(id_, text_content(outcome)))

    def _answered(self, item: items.ApprovalResponseItem) -> None:
        """A call that was not approved is one that came to nothing; others are made first."""
        request = self._requests.get(item.approval_request_id)
        if request is not None and not item.approve:
            why = f" They said: {item.reason}" if item.reason else ""
            self._remote(item.approval_request_id, request, DENIED + why)

    def _compacted(self, item: items.CompactionItem) -> None:
        opened = self._sealing.unpack("compaction", item.encrypted_content)
        try:
            found = msgspec.json.decode(opened or b"", type=items.CompactionSummary)
        except msgspec.MsgspecError:
            self._warn(SEALED)
        else:
            self._heard(Message(role="user", content=text_content(SUMMARY + found.summary)))

    def _built_in(self, kind: str, item: Item) -> None:
        """Tools that we do not offer, in a conversation that began elsewhere."""
        given = item.get("call_id")
        id_ = given if isinstance(given, str) else item["id"]
        if kind in BUILT_IN:
            arguments = item.get(BUILT_IN[kind])
            self._call(id_, kind.removesuffix("_call"), _as_json(arguments or {}))
        elif kind in BUILT_IN_OUTPUT:
            output = item.get("output") or item.get("status") or ""
            told = output if isinstance(output, str) else _as_json(output)
            self._heard(_result(id_, text_content(told)))
        else:
            self._warn(f"Items of type `{kind}` are left out.")

    def _warn(self, sentence: str) -> None:
        self._warnings[sentence] = None

    def _open(self) -> None:
        """The assistant goes on; after results, in a turn of its own."""
        if self._results:
            self._close()

    def _heard(self, message: Message) -> None:
        """Somebody else speaks."""
        self._close()
        self._said.append(message)

    def _close(self) -> None:
        if self._thoughts or self._texts or self._calls:
            turn = Message(
                role="assistant",
                content=join_content(self._texts, BETWEEN),
                reasoning=BETWEEN.join(self._thoughts) or None,
                tool_calls=tuple(self._calls),
            )
            self._said.append(turn)
        self._said += self._results
        self._thoughts, self._texts, self._calls, self._results = [], [], [], []


def _result(call: str | None, content: Content) -> Message:
    return Message(role="tool", content=content, tool_call_id=call)


def _all(parts: Iterable[items.ReasoningTextPart] | None) -> str:
    return BETWEEN.join(part.text for part in parts or ())


def _outcome(call: items.McpCallItem) -> str | None:
    """What came of a call, as the model is told; None if it never ended."""
    if call.error is None:
        return call.output
    return f"Error: {_told(call.error)}"


def _told(error: Any) -> str:
    """The words of an error, however it is wrapped."""
    match error:
        case str():
            return error
        case {"message": str(words)} | {"text": str(words)}:
            return words
        case {"content": inner}:
            return _told(inner)
        case [_, *_]:
            return "\n".join(_told(one) for one in error)
    return _as_json(error)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
