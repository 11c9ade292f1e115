"""Encode a response, event by event or whole.

A response may take several rounds of the model, with calls to remote tools between them. Each delta
goes to the item that is open on its channel; if there is none, the open item is closed and another
begins. A whole response is the same computation with the frames dropped: after the end, the
resource contains everything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Finish, Usage
from dragoman.protocols.responses.encode.call_builders import (
    NO_ANSWER,
    ApprovalRequestBuilder,
    CallBuilder,
    CustomCallBuilder,
    FunctionCallBuilder,
    IgnoredCall,
    RemoteCallBuilder,
    ToolListBuilder,
)
from dragoman.protocols.responses.encode.frames import EventEncoder
from dragoman.protocols.responses.encode.item_builders import (
    ItemBuilder,
    MessageItemBuilder,
    OutputItems,
    ReasoningItemBuilder,
)
from dragoman.protocols.responses.encode.resource import (
    FINAL_EVENTS,
    ResponseStatus,
    encode_response_error,
    encode_usage,
    make_resource,
)
from dragoman.protocols.responses.types import Item, RemoteCall, ResponseInfo, ToolOrigin
from dragoman.protocols.shared.openai import encode
from dragoman.types import Json, MediaItem, Request


class ResponseEncoder:
    """Encodes one response."""

    def __init__(self, info: ResponseInfo, request: Request) -> None:
        self._info = info
        self._events = EventEncoder(request.obfuscate)
        self._output = OutputItems(self._events)
        self._with_logprobs = (
            request.logprobs is not None and "message.output_text.logprobs" in info.include
        )
        wants_packed_reasoning = "reasoning.encrypted_content" in info.include
        self._packer = info.packer if wants_packed_reasoning else None
        self._resource = make_resource(info)
        self._open_item: ItemBuilder | None = None
        self._tool_lists: dict[str, ToolListBuilder] = {}  # by server label
        self._pending_calls: dict[str, RemoteCallBuilder] = {}  # by item id
        self._remote_call_count = 0
        self._finish: Finish | None = None
        self._has_cut_call = False
        self._whitespace = Delta()  # belongs to a text if one follows
        self._usage: Usage | None = None
        self._items_before_round = 0
        self.needs_client = False  # the client must answer a call: no further round
        self.is_over = False  # the final event was encoded

    # The life of a response

    def queue(self) -> list[bytes]:
        """Encode a response that waits in the background; `start` follows later."""
        self._resource["status"] = "queued"
        return [
            self._encode_response_event("response.created"),
            self._encode_response_event("response.queued"),
        ]

    def start(self) -> list[bytes]:
        self._resource["status"] = "in_progress"
        frames = [] if self._events.count else [self._encode_response_event("response.created")]
        return [*frames, self._encode_response_event("response.in_progress")]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        item = self._open_item
        if (
            item is not None
            and delta.finish is None
            and delta.channel == item.channel
            and delta.call == item.call
            and delta.text
        ):  # the usual case
            return item.add(delta)
        if self.is_over:
            return []
        frames = self._add_delta(delta)
        if delta.finish is not None:
            frames += self._end_round(delta.finish)
            if delta.usage is not None:
                self._usage = (self._usage or Usage()) + delta.usage
        return frames

    def end(self, usage: Usage) -> list[bytes]:
        """Encode the end; `usage` applies if the deltas had none."""
        if self.is_over:
            return []
        frames = self._close_item(cut=False)
        is_empty = len(self._output.items) == self._items_before_round
        if is_empty and not (self.needs_client or self._info.prefill_only):
            # Clients expect a message.
            frames += self._add_message(self._whitespace)
            frames += self._close_item(cut=self._finish == "length")
        self._usage = self._usage or usage
        if self._finish == "length":
            details = {"reason": "max_output_tokens"}
            return frames + self._encode_end("incomplete", incomplete_details=details)
        self._resource["completed_at"] = int(time.time())
        return frames + self._encode_end("completed")

    def fail(self, error: DragomanError) -> list[bytes]:
        """Encode the end after an error; the open item stays unfinished."""
        if self.is_over:
            return []
        frames = self._start_if_needed() + self._close_item(cut=True)
        self._resource["error"] = encode_response_error(error)
        return frames + self._encode_end("failed")

    def cancel(self) -> list[bytes]:
        if self.is_over:
            return []
        frames = self._start_if_needed() + self._close_item(cut=True)
        return frames + self._encode_end("cancelled")

    def encode_unstored_end(self) -> bytes:
        """Encode the final event again, for a response that could not be stored."""
        self._resource["store"] = False
        self._events.count -= 1
        return self._encode_response_event(FINAL_EVENTS[self._resource["status"]])

    def encode_whole(self, completion: Completion | None = None) -> bytes:
        return encode(self.get_resource())

    def get_resource(self) -> dict[str, Json]:
        """Return the response as it is now."""
        items = list(self._output.items)
        if self._open_item is not None and self._open_item.index >= 0:
            items[self._open_item.index] = self._open_item.snapshot()
        return self._resource | {"output": items}

    @property
    def finished_items(self) -> list[Item]:
        return self._output.get_finished()

    # Deltas

    def _add_delta(self, delta: Delta) -> list[bytes]:
        channel, item = delta.channel, self._open_item
        if channel == "tool_name":
            return self._open(self._make_call(delta))
        if not delta.text and not (delta.tokens and self._with_logprobs):
            return []
        if item is not None and channel == item.channel and delta.call == item.call:
            return item.add(delta)
        if channel == "tool_args":  # of a call that is not open, which no reader sends
            return []
        if channel == "reasoning":
            item = ReasoningItemBuilder(self._output, self._info.summary, self._packer)
            return self._open(item) + item.add(delta)
        whitespace = self._whitespace
        text = Delta(text=whitespace.text + delta.text, tokens=whitespace.tokens + delta.tokens)
        if not text.text.strip():  # usually between two calls
            self._whitespace = text
            return self._close_item(cut=False)
        return self._add_message(text)

    def _add_message(self, delta: Delta) -> list[bytes]:
        item = MessageItemBuilder(self._output, self._with_logprobs)
        frames = self._open(item)
        return frames + item.add(delta) if delta.text else frames

    def _make_call(self, delta: Delta) -> CallBuilder:
        origin = self._info.tools.get(delta.text) or ToolOrigin(kind="function", name=delta.text)
        if origin.kind == "function":
            return FunctionCallBuilder(self._output, origin, delta)
        if origin.kind == "custom":
            return CustomCallBuilder(self._output, origin, delta)
        if origin.needs_approval:
            return ApprovalRequestBuilder(self._output, origin, delta)
        if self.remaining_remote_calls == 0:
            return IgnoredCall(self._output, origin, delta)
        self._remote_call_count += 1
        return RemoteCallBuilder(self._output, origin, delta)

    def _open(self, item: ItemBuilder) -> list[bytes]:
        frames = self._close_item(cut=False)
        self._open_item, self._whitespace = item, Delta()
        return frames + item.open()

    def _close_item(self, cut: bool) -> list[bytes]:
        item, self._open_item = self._open_item, None
        if item is None:
            return []
        frames = item.close(cut)
        if isinstance(item, CallBuilder) and cut:
            self._has_cut_call = True
        elif isinstance(item, CallBuilder):
            self.needs_client = self.needs_client or item.needs_client
            if isinstance(item, RemoteCallBuilder):
                self._pending_calls[item.id] = item
        return frames

    def _end_round(self, finish: Finish) -> list[bytes]:
        """End a round. A call is complete if the model ended it, or if its arguments are."""
        item, self._finish = self._open_item, finish
        cut = finish == "length"
        if isinstance(item, CallBuilder):
            cut = finish != "tool_calls" and not item.is_complete
        return self._close_item(cut)

    # Remote tools

    @property
    def remaining_remote_calls(self) -> int | None:
        """How many more calls to remote tools are allowed; further calls are ignored."""
        limit = self._info.max_remote_calls
        return None if limit is None else max(0, limit - self._remote_call_count)

    def start_tool_list(self, server_label: str) -> list[bytes]:
        """Encode the start of a request to a remote server for its tools."""
        frames = self._close_item(cut=False)
        item = self._tool_lists[server_label] = ToolListBuilder(self._output, server_label)
        frames += item.open()
        self._items_before_round = len(self._output.items)
        return frames

    def finish_tool_list(
        self, server_label: str, tools: list[Item], error: str | None = None
    ) -> list[bytes]:
        """Encode the answer of a remote server, or its failure."""
        return self._tool_lists.pop(server_label).set_tools(tools, error)

    def get_remote_calls(self) -> list[RemoteCall]:
        """Return the calls that the server must make now; none if the answer was cut."""
        if self._has_cut_call or self._finish == "length":
            return []
        return [item.to_remote_call() for item in self._pending_calls.values()]

    def finish_remote_call(
        self,
        call: RemoteCall,
        output: str | None,
        error: str | None,
        media: Sequence[MediaItem] = (),
    ) -> list[bytes]:
        """Encode the result of a call. Another round may follow."""
        self._items_before_round = len(self._output.items)
        self._whitespace = Delta()
        return self._pending_calls.pop(call.item_id).set_result(output, error, media)

    def start_approved_call(self, item: Item) -> list[bytes]:
        """Encode a call that the client approved; `item` is the approval request."""
        origin = ToolOrigin(kind="mcp", name=item["name"], server_label=item["server_label"])
        self._remote_call_count += 1
        frames = self._open(RemoteCallBuilder(self._output, origin, Delta(), item["id"]))
        if self._open_item is not None:
            frames += self._open_item.add(Delta(text=item["arguments"] or "{}"))
        return frames + self._close_item(cut=False)

    # Events of the response as a whole

    def _encode_response_event(self, kind: str) -> bytes:
        return self._events.encode_event(kind, response=self.get_resource())

    def _start_if_needed(self) -> list[bytes]:
        return [] if self._events.count else self.start()

    def _encode_end(
        self, status: ResponseStatus, incomplete_details: dict[str, str] | None = None
    ) -> list[bytes]:
        frames = []
        for tool_list in self._tool_lists.values():
            frames += tool_list.set_tools([], NO_ANSWER)
        for call in self._pending_calls.values():
            call.abandon()
        usage = None if self._usage is None else encode_usage(self._usage)
        self._resource |= {
            "status": status,
            "incomplete_details": incomplete_details,
            "usage": usage,
            **self._info.make_report(),
        }
        self.is_over = True
        return [*frames, self._encode_response_event(FINAL_EVENTS[status])]
