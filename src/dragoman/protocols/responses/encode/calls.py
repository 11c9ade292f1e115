"""Calls of tools as items: those that the client answers, and those that the server makes.

A call that was cut is never told to be done. Agents run what is done as soon as they hear of it,
and half a command is another command; the call stands in the resource as incomplete.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dragoman.events import Channel, Delta
from dragoman.protocols.responses.encode.free_text import FreeTextDecoder
from dragoman.protocols.responses.encode.parts import ItemBuilder, OutputItems
from dragoman.protocols.responses.types import Item, RemoteCall, ToolOrigin

UNHEARD = "The response ended before the server had answered."


class CallBuilder(ItemBuilder):
    """A call while its arguments come."""

    channel: ClassVar[Channel] = "tool_args"
    needs_client: ClassVar[bool] = True  # the client must answer it

    def __init__(self, output: OutputItems, prefix: str, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, prefix)
        self.known = known
        self.call = delta.call
        self.call_id = delta.id
        self._head = b""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are whole, of a call that nothing else says it of."""
        try:
            msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _make_item(self, kind: str, field: str) -> Item:
        """What items of calls that the client answers have alike."""
        item = {"id": self.id, "type": kind, "status": "in_progress", "call_id": self.call_id}
        item |= {"name": self.known.name, field: ""}
        if self.known.namespace is not None:
            item["namespace"] = self.known.namespace
        return item


class FunctionCallBuilder(CallBuilder):
    """A call of a function, with its arguments as JSON."""

    def __init__(self, output: OutputItems, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "fc", known, delta)

    def open(self) -> list[bytes]:
        added = self.begin_item(self._make_item("function_call", "arguments"))
        self._head = self.encode_head("function_call_arguments.delta")
        return [added]

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return [self.events.encode_text_delta(self._head, delta.text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", "arguments": self.text}
            return []
        frames = [] if self._pieces else self.add(Delta(text="{}"))
        said = self.text
        self.item |= {"status": "completed", "arguments": said}
        name = self.known.name
        return [
            *frames,
            self.encode_event("function_call_arguments.done", name=name, arguments=said),
            self.output.finish(self.index, self.item),
        ]

    def snapshot(self) -> Item:
        return self.item | {"arguments": self.text}


class CustomCallBuilder(CallBuilder):
    """A call of a tool that takes free text."""

    def __init__(self, output: OutputItems, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "ctc", known, delta)
        self._free = FreeTextDecoder()

    @property
    def is_complete(self) -> bool:
        return self._free.is_complete

    def open(self) -> list[bytes]:
        added = self.begin_item(self._make_item("custom_tool_call", "input"))
        self._head = self.encode_head("custom_tool_call_input.delta")
        return [added]

    def add(self, delta: Delta) -> list[bytes]:
        return self._gain(self._free.feed(delta.text))

    def _gain(self, text: str) -> list[bytes]:
        if not text:
            return []
        self._pieces.append(text)
        return [self.events.encode_text_delta(self._head, text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", "input": self.text}
            return []
        frames = self._gain(self._free.close())
        said = self.text
        self.item |= {"status": "completed", "input": said}
        return [
            *frames,
            self.encode_event("custom_tool_call_input.done", input=said),
            self.output.finish(self.index, self.item),
        ]

    def snapshot(self) -> Item:
        return self.item | {"input": self.text}


class RemoteCallBuilder(CallBuilder):
    """A call of a remote server's tool. It is open until that server has answered."""

    needs_client = False

    def __init__(
        self, output: OutputItems, known: ToolOrigin, delta: Delta, approval: str | None = None
    ):
        super().__init__(output, "mcp", known, delta)
        self._approval = approval

    def open(self) -> list[bytes]:
        item: Item = {"id": self.id, "type": "mcp_call", "status": "in_progress"}
        item |= {"approval_request_id": self._approval, "server_label": self.known.server_label}
        item |= {"name": self.known.name, "arguments": "", "output": None, "error": None}
        frames = [self.begin_item(item), self.encode_event("mcp_call.in_progress")]
        self._head = self.encode_head("mcp_call_arguments.delta")
        return frames

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return [self.events.encode_text_delta(self._head, delta.text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", "arguments": self.text}
            return []
        frames = [] if self._pieces else self.add(Delta(text="{}"))
        self.item |= {"status": "calling", "arguments": self.text}
        return [*frames, self.encode_event("mcp_call_arguments.done", arguments=self.text)]

    def snapshot(self) -> Item:
        return self.item | {"arguments": self.text}

    def to_remote_call(self) -> RemoteCall:
        return RemoteCall(self.id, self.known.server_label, self.known.name, self.text)

    def set_result(self, output: str | None, error: str | None) -> list[bytes]:
        if error is None:
            self.item |= {"status": "completed", "output": output or ""}
            told = self.encode_event("mcp_call.completed")
        else:
            why = {"type": "mcp_tool_execution_error", "content": error}
            self.item |= {"status": "failed", "output": output, "error": why}
            told = self.encode_event("mcp_call.failed")
        return [told, self.output.finish(self.index, self.item)]

    def abandon(self) -> None:
        """The response ends, and nobody will answer."""
        self.item["status"] = "incomplete"


class ApprovalRequestBuilder(CallBuilder):
    """A call of a remote server's tool that the client must allow first. It is told at once."""

    def __init__(self, output: OutputItems, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "mcpr", known, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return []

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            return []
        item = {
            "id": self.id,
            "type": "mcp_approval_request",
            "server_label": self.known.server_label,
        }
        item |= {"name": self.known.name, "arguments": self.text or "{}"}
        return [self.begin_item(item), self.output.finish(self.index, item)]


class IgnoredCall(CallBuilder):
    """A call beyond the most that may be made."""

    needs_client = False

    def __init__(self, output: OutputItems, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "", known, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        return []

    def close(self, cut: bool) -> list[bytes]:
        return []


class ToolListBuilder(ItemBuilder):
    """The tools of a remote server, while they are asked for."""

    def __init__(self, output: OutputItems, label: str) -> None:
        super().__init__(output, "mcpl")
        self._label = label

    def open(self) -> list[bytes]:
        item = {"id": self.id, "type": "mcp_list_tools", "server_label": self._label}
        added = self.begin_item({**item, "tools": [], "error": None})
        return [added, self.encode_event("mcp_list_tools.in_progress")]

    def set_tools(self, tools: list[Item], error: str | None) -> list[bytes]:
        self.item |= {"tools": tools, "error": error}
        kind = "mcp_list_tools.completed" if error is None else "mcp_list_tools.failed"
        return [self.encode_event(kind), self.output.finish(self.index, self.item)]
