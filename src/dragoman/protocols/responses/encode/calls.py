"""Calls of tools as items: those that the client answers, and those that the server makes.

A call that was cut is never told to be done. Agents run what is done as soon as they hear of it,
and half a command is another command; the call stands in the resource as incomplete.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dragoman.events import Channel, Delta
from dragoman.protocols.responses.encode.free_text import FreeText
from dragoman.protocols.responses.encode.parts import Growing, Output
from dragoman.protocols.responses.types import Item, ToolOrigin, RemoteCall

UNHEARD = "The response ended before the server had answered."


class Call(Growing):
    """A call while its arguments come."""

    channel: ClassVar[Channel] = "tool_args"
    waits: ClassVar[bool] = True  # the client must answer it

    def __init__(self, output: Output, prefix: str, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, prefix)
        self.known = known
        self.call = delta.call
        self.call_id = delta.id
        self._head = b""

    @property
    def ended(self) -> bool:
        """Whether the arguments are whole, of a call that nothing else says it of."""
        try:
            msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _called(self, kind: str, field: str) -> Item:
        """What items of calls that the client answers have alike."""
        item = {"id": self.id, "type": kind, "status": "in_progress", "call_id": self.call_id}
        item |= {"name": self.known.name, field: ""}
        if self.known.namespace is not None:
            item["namespace"] = self.known.namespace
        return item


class Function(Call):
    """A call of a function, with its arguments as JSON."""

    def __init__(self, output: Output, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "fc", known, delta)

    def open(self) -> list[bytes]:
        added = self.begin(self._called("function_call", "arguments"))
        self._head = self.head("function_call_arguments.delta")
        return [added]

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return [self.events.delta(self._head, delta.text)]

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
            self.event("function_call_arguments.done", name=name, arguments=said),
            self.output.finish(self.index, self.item),
        ]

    def now(self) -> Item:
        return self.item | {"arguments": self.text}


class Custom(Call):
    """A call of a tool that takes free text."""

    def __init__(self, output: Output, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "ctc", known, delta)
        self._free = FreeText()

    @property
    def ended(self) -> bool:
        return self._free.ended

    def open(self) -> list[bytes]:
        added = self.begin(self._called("custom_tool_call", "input"))
        self._head = self.head("custom_tool_call_input.delta")
        return [added]

    def add(self, delta: Delta) -> list[bytes]:
        return self._gain(self._free.feed(delta.text))

    def _gain(self, text: str) -> list[bytes]:
        if not text:
            return []
        self._pieces.append(text)
        return [self.events.delta(self._head, text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", "input": self.text}
            return []
        frames = self._gain(self._free.close())
        said = self.text
        self.item |= {"status": "completed", "input": said}
        return [
            *frames,
            self.event("custom_tool_call_input.done", input=said),
            self.output.finish(self.index, self.item),
        ]

    def now(self) -> Item:
        return self.item | {"input": self.text}


class Remote(Call):
    """A call of a remote server's tool. It is open until that server has answered."""

    waits = False

    def __init__(self, output: Output, known: ToolOrigin, delta: Delta, approval: str | None = None):
        super().__init__(output, "mcp", known, delta)
        self._approval = approval

    def open(self) -> list[bytes]:
        item: Item = {"id": self.id, "type": "mcp_call", "status": "in_progress"}
        item |= {"approval_request_id": self._approval, "server_label": self.known.server_label}
        item |= {"name": self.known.name, "arguments": "", "output": None, "error": None}
        frames = [self.begin(item), self.event("mcp_call.in_progress")]
        self._head = self.head("mcp_call_arguments.delta")
        return frames

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return [self.events.delta(self._head, delta.text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", "arguments": self.text}
            return []
        frames = [] if self._pieces else self.add(Delta(text="{}"))
        self.item |= {"status": "calling", "arguments": self.text}
        return [*frames, self.event("mcp_call_arguments.done", arguments=self.text)]

    def now(self) -> Item:
        return self.item | {"arguments": self.text}

    def wanted(self) -> RemoteCall:
        return RemoteCall(self.id, self.known.server_label, self.known.name, self.text)

    def answer(self, output: str | None, error: str | None) -> list[bytes]:
        if error is None:
            self.item |= {"status": "completed", "output": output or ""}
            told = self.event("mcp_call.completed")
        else:
            why = {"type": "mcp_tool_execution_error", "content": error}
            self.item |= {"status": "failed", "output": output, "error": why}
            told = self.event("mcp_call.failed")
        return [told, self.output.finish(self.index, self.item)]

    def abandon(self) -> None:
        """The response ends, and nobody will answer."""
        self.item["status"] = "incomplete"


class Approval(Call):
    """A call of a remote server's tool that the client must allow first. It is told at once."""

    def __init__(self, output: Output, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "mcpr", known, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return []

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            return []
        item = {"id": self.id, "type": "mcp_approval_request", "server_label": self.known.server_label}
        item |= {"name": self.known.name, "arguments": self.text or "{}"}
        return [self.begin(item), self.output.finish(self.index, item)]


class Ignored(Call):
    """A call beyond the most that may be made."""

    waits = False

    def __init__(self, output: Output, known: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "", known, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        return []

    def close(self, cut: bool) -> list[bytes]:
        return []


class Listing(Growing):
    """The tools of a remote server, while they are asked for."""

    def __init__(self, output: Output, label: str) -> None:
        super().__init__(output, "mcpl")
        self._label = label

    def open(self) -> list[bytes]:
        item = {"id": self.id, "type": "mcp_list_tools", "server_label": self._label}
        added = self.begin({**item, "tools": [], "error": None})
        return [added, self.event("mcp_list_tools.in_progress")]

    def answer(self, tools: list[Item], error: str | None) -> list[bytes]:
        self.item |= {"tools": tools, "error": error}
        kind = "mcp_list_tools.completed" if error is None else "mcp_list_tools.failed"
        return [self.event(kind), self.output.finish(self.index, self.item)]
