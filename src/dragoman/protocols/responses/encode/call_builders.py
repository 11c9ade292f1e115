"""Build tool calls as items: calls that the client answers, and calls that the server makes.

A call that was cut is never reported as done. Agents run a call as soon as it is done, and half a
command is a different command; the call stays in the resource as incomplete.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import ClassVar

from dragoman.events import Channel, Delta
from dragoman.protocols.responses.encode.free_text import FreeTextDecoder
from dragoman.protocols.responses.encode.item_builders import ItemBuilder, OutputItems
from dragoman.protocols.responses.types import Item, RemoteCall, ToolOrigin
from dragoman.protocols.shared.json_body import is_json
from dragoman.types import MediaItem

NO_ANSWER = "The response ended before the server answered."


class CallBuilder(ItemBuilder):
    """Builds a call while its arguments arrive."""

    channel: ClassVar[Channel] = "tool_args"
    needs_client: ClassVar[bool] = True  # the client must answer the call
    field: ClassVar[str] = "arguments"  # of the item, where what arrives is put

    def __init__(
        self, output: OutputItems, id_prefix: str, origin: ToolOrigin, delta: Delta
    ) -> None:
        super().__init__(output, id_prefix)
        self.origin = origin
        self.call = delta.call
        self.call_id = delta.id
        self._head = b""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete, for a call that the model did not end itself."""
        return is_json(self.text)

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return [self.events.encode_text_delta(self._head, delta.text)]

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            self.item |= {"status": "incomplete", self.field: self.text}
            return []
        return self._complete()

    def _complete(self) -> list[bytes]:
        """End a call whose arguments have arrived."""
        raise NotImplementedError

    def _add_missing_arguments(self) -> list[bytes]:
        """Add an empty object in place of no arguments at all."""
        return [] if self._pieces else self.add(Delta(text="{}"))

    def snapshot(self) -> Item:
        return self.item | {self.field: self.text}

    def _make_item(self, kind: str) -> Item:
        """Make the item of a call that the client answers."""
        item = {"id": self.id, "type": kind, "status": "in_progress", "call_id": self.call_id}
        item |= {"name": self.origin.name, self.field: ""}
        if self.origin.namespace is not None:
            item["namespace"] = self.origin.namespace
        return item


class FunctionCallBuilder(CallBuilder):
    """Builds a call to a function, with its arguments as JSON."""

    def __init__(self, output: OutputItems, origin: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "fc", origin, delta)

    def open(self) -> list[bytes]:
        added = self.begin_item(self._make_item("function_call"))
        self._head = self.encode_head("function_call_arguments.delta")
        return [added]

    def _complete(self) -> list[bytes]:
        frames, arguments = self._add_missing_arguments(), self.text
        self.item |= {"status": "completed", "arguments": arguments}
        name = self.origin.name
        return [
            *frames,
            self.encode_event("function_call_arguments.done", name=name, arguments=arguments),
            self.output.finish(self.index, self.item),
        ]


class CustomCallBuilder(CallBuilder):
    """Builds a call to a tool that takes free text."""

    field = "input"

    def __init__(self, output: OutputItems, origin: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "ctc", origin, delta)
        self._decoder = FreeTextDecoder()

    @property
    def is_complete(self) -> bool:
        return self._decoder.is_complete

    def open(self) -> list[bytes]:
        added = self.begin_item(self._make_item("custom_tool_call"))
        self._head = self.encode_head("custom_tool_call_input.delta")
        return [added]

    def add(self, delta: Delta) -> list[bytes]:
        return self._add_input(self._decoder.feed(delta.text))

    def _add_input(self, text: str) -> list[bytes]:
        if not text:
            return []
        self._pieces.append(text)
        return [self.events.encode_text_delta(self._head, text)]

    def _complete(self) -> list[bytes]:
        frames, text = self._add_input(self._decoder.close()), self.text
        self.item |= {"status": "completed", "input": text}
        return [
            *frames,
            self.encode_event("custom_tool_call_input.done", input=text),
            self.output.finish(self.index, self.item),
        ]


class RemoteCallBuilder(CallBuilder):
    """Builds a call to a remote server's tool. It stays open until the server answers."""

    needs_client = False

    def __init__(
        self,
        output: OutputItems,
        origin: ToolOrigin,
        delta: Delta,
        approval_id: str | None = None,
    ) -> None:
        super().__init__(output, "mcp", origin, delta)
        self._approval_id = approval_id

    def open(self) -> list[bytes]:
        item: Item = {"id": self.id, "type": "mcp_call", "status": "in_progress"}
        item |= {
            "approval_request_id": self._approval_id,
            "server_label": self.origin.server_label,
        }
        item |= {"name": self.origin.name, "arguments": "", "output": None, "error": None}
        frames = [self.begin_item(item), self.encode_event("mcp_call.in_progress")]
        self._head = self.encode_head("mcp_call_arguments.delta")
        return frames

    def _complete(self) -> list[bytes]:
        frames, arguments = self._add_missing_arguments(), self.text
        self.item |= {"status": "calling", "arguments": arguments}
        return [*frames, self.encode_event("mcp_call_arguments.done", arguments=arguments)]

    def to_remote_call(self) -> RemoteCall:
        return RemoteCall(self.id, self.origin.server_label, self.origin.name, self.text)

    def set_result(
        self, output: str | None, error: str | None, media: Sequence[MediaItem] = ()
    ) -> list[bytes]:
        if media:  # not in OpenAI's API, whose outputs are text alone
            self.item["output_media"] = [_encode_media(item) for item in media]
        if error is None:
            self.item |= {"status": "completed", "output": output or ""}
            event = self.encode_event("mcp_call.completed")
        else:
            details = {"type": "mcp_tool_execution_error", "content": error}
            self.item |= {"status": "failed", "output": output, "error": details}
            event = self.encode_event("mcp_call.failed")
        return [event, self.output.finish(self.index, self.item)]

    def abandon(self) -> None:
        """End the call without an answer, because the response ends."""
        self.item["status"] = "incomplete"


def _encode_media(item: MediaItem) -> Item:
    """Encode a picture or sound as a content part, so that it can be part of a later request."""
    data = base64.b64encode(item.data).decode()
    if item.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"type": "input_image", "image_url": f"data:{item.media_type};base64,{data}"}


class ApprovalRequestBuilder(CallBuilder):
    """Builds a call to a remote server's tool that the client must approve first.

    It is sent as a whole.
    """

    def __init__(self, output: OutputItems, origin: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "mcpr", origin, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        return []

    def close(self, cut: bool) -> list[bytes]:
        if cut:
            return []
        label = self.origin.server_label
        item = {"id": self.id, "type": "mcp_approval_request", "server_label": label}
        item |= {"name": self.origin.name, "arguments": self.text or "{}"}
        return [self.begin_item(item), self.output.finish(self.index, item)]


class IgnoredCall(CallBuilder):
    """A call beyond `max_tool_calls`."""

    needs_client = False

    def __init__(self, output: OutputItems, origin: ToolOrigin, delta: Delta) -> None:
        super().__init__(output, "", origin, delta)

    def open(self) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        return []

    def close(self, cut: bool) -> list[bytes]:
        return []


class ToolListBuilder(ItemBuilder):
    """Builds the list of a remote server's tools while the server is queried."""

    def __init__(self, output: OutputItems, server_label: str) -> None:
        super().__init__(output, "mcpl")
        self._server_label = server_label

    def open(self) -> list[bytes]:
        item = {"id": self.id, "type": "mcp_list_tools", "server_label": self._server_label}
        added = self.begin_item({**item, "tools": [], "error": None})
        return [added, self.encode_event("mcp_list_tools.in_progress")]

    def set_tools(self, tools: list[Item], error: str | None) -> list[bytes]:
        self.item |= {"tools": tools, "error": error}
        kind = "mcp_list_tools.completed" if error is None else "mcp_list_tools.failed"
        return [self.encode_event(kind), self.output.finish(self.index, self.item)]
