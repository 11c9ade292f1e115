"""Responses: writing an answer, event by event or whole.

A response may take several rounds of the model, with calls of remote tools between them. Each
delta goes to the item that is open on its channel; where there is none, the open one is closed and
another begins. A whole answer is the same computation with the frames dropped: after the end, the
resource has everything.
"""

from __future__ import annotations

import time
from typing import Any

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Finish, Usage
from dragoman.protocols.responses.encode.calls import (
    UNHEARD,
    ApprovalRequestBuilder,
    CallBuilder,
    CustomCallBuilder,
    FunctionCallBuilder,
    IgnoredCall,
    RemoteCallBuilder,
    ToolListBuilder,
)
from dragoman.protocols.responses.encode.frames import EventEncoder
from dragoman.protocols.responses.encode.parts import (
    ItemBuilder,
    MessageItemBuilder,
    OutputItems,
    ReasoningItemBuilder,
)
from dragoman.protocols.responses.encode.resource import (
    ENDS,
    Status,
    encode_response_error,
    encode_usage,
    make_resource,
)
from dragoman.protocols.responses.types import Item, RemoteCall, ResponseInfo, ToolOrigin
from dragoman.protocols.shared.openai import encode
from dragoman.types import Request


class ResponseEncoder:
    """Writes one response."""

    def __init__(self, frame: ResponseInfo, request: Request) -> None:
        self._frame = frame
        self._events = EventEncoder(request.obfuscate)
        self._output = OutputItems(self._events)
        self._logprobs = (
            request.logprobs is not None and "message.output_text.logprobs" in frame.include
        )
        sealed = "reasoning.encrypted_content" in frame.include
        self._sealing = frame.packer if sealed else None
        self._resource = make_resource(frame)
        self._open: ItemBuilder | None = None
        self._listings: dict[str, ToolListBuilder] = {}
        self._waiting: dict[
            str, RemoteCallBuilder
        ] = {}  # calls to be made, by the ids of their items
        self._remote = 0  # calls of remote tools so far
        self._finish: Finish | None = None
        self._cut = False  # a call was cut
        self._white = Delta()  # space that belongs to a text if one follows
        self._spent: Usage | None = None
        self._before = 0  # items that were there before this round
        self.needs_client = False  # the client must answer a call: no other round
        self.is_over = False  # the last event was written

    # the life of a response

    def queue(self) -> list[bytes]:
        """A response that waits for its turn in the background; `start` comes later."""
        self._resource["status"] = "queued"
        return [self._told("response.created"), self._told("response.queued")]

    def start(self) -> list[bytes]:
        self._resource["status"] = "in_progress"
        created = [] if self._events.count else [self._told("response.created")]
        return [*created, self._told("response.in_progress")]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        item = self._open
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
        frames = self._gained(delta)
        if delta.finish is not None:
            frames += self._finished(delta.finish)
            if delta.usage is not None:
                self._spent = (self._spent or Usage()) + delta.usage
        return frames

    def end(self, usage: Usage) -> list[bytes]:
        """The end; `usage` is of an answer whose deltas did not tell it."""
        if self.is_over:
            return []
        frames = self._shut(cut=False)
        nothing = len(self._output.items) == self._before
        if nothing and not (
            self.needs_client or self._frame.prefill_only
        ):  # clients look for a text
            frames += self._say(self._white)
            frames += self._shut(cut=self._finish == "length")
        self._spent = self._spent or usage
        if self._finish == "length":
            return frames + self._last("incomplete", why={"reason": "max_output_tokens"})
        self._resource["completed_at"] = int(time.time())
        return frames + self._last("completed")

    def fail(self, error: DragomanError) -> list[bytes]:
        """The end of a response that broke: what is open stays unfinished."""
        if self.is_over:
            return []
        frames = self._begun() + self._shut(cut=True)
        self._resource["error"] = encode_response_error(error)
        return frames + self._last("failed")

    def cancel(self) -> list[bytes]:
        """The end of a response that is not wanted any more."""
        if self.is_over:
            return []
        return self._begun() + self._shut(cut=True) + self._last("cancelled")

    def encode_unstored_end(self) -> bytes:
        """The last event once more: what was to be kept could not be."""
        self._resource["store"] = False
        self._events.count -= 1
        return self._told(ENDS[self._resource["status"]])

    def encode_whole(self, completion: Completion | None = None) -> bytes:
        return encode(self.get_resource())

    def get_resource(self) -> dict[str, Any]:
        """The response as it is now."""
        items = list(self._output.items)
        if self._open is not None and self._open.index >= 0:
            items[self._open.index] = self._open.snapshot()
        return self._resource | {"output": items}

    @property
    def finished_items(self) -> list[Item]:
        """The items that are finished."""
        return self._output.get_finished()

    # what a delta becomes

    def _gained(self, delta: Delta) -> list[bytes]:
        channel, item = delta.channel, self._open
        if channel == "tool_name":
            return self._begin(self._call(delta))
        if not delta.text and not (delta.tokens and self._logprobs):
            return []
        if item is not None and channel == item.channel and delta.call == item.call:
            return item.add(delta)
        if channel == "tool_args":  # of a call that was left, which no reader does
            return []
        if channel == "reasoning":
            item = ReasoningItemBuilder(self._output, self._frame.summary, self._sealing)
            return self._begin(item) + item.add(delta)
        white = self._white
        said = Delta(text=white.text + delta.text, tokens=white.tokens + delta.tokens)
        if not said.text.strip():  # between two calls, more often than not
            self._white = said
            return self._shut(cut=False)
        return self._say(said)

    def _say(self, said: Delta) -> list[bytes]:
        item = MessageItemBuilder(self._output, self._logprobs)
        frames = self._begin(item)
        return frames + item.add(said) if said.text else frames

    def _call(self, delta: Delta) -> CallBuilder:
        known = self._frame.tools.get(delta.text) or ToolOrigin(kind="function", name=delta.text)
        if known.kind == "function":
            return FunctionCallBuilder(self._output, known, delta)
        if known.kind == "custom":
            return CustomCallBuilder(self._output, known, delta)
        if known.needs_approval:
            return ApprovalRequestBuilder(self._output, known, delta)
        if self.remaining_remote_calls == 0:
            return IgnoredCall(self._output, known, delta)
        self._remote += 1
        return RemoteCallBuilder(self._output, known, delta)

    def _begin(self, item: ItemBuilder) -> list[bytes]:
        frames = self._shut(cut=False)
        self._open, self._white = item, Delta()
        return frames + item.open()

    def _shut(self, cut: bool) -> list[bytes]:
        item, self._open = self._open, None
        if item is None:
            return []
        frames = item.close(cut)
        if isinstance(item, CallBuilder) and cut:
            self._cut = True
        elif isinstance(item, CallBuilder):
            self.needs_client = self.needs_client or item.needs_client
            if isinstance(item, RemoteCallBuilder):
                self._waiting[item.id] = item
        return frames

    def _finished(self, finish: Finish) -> list[bytes]:
        """The end of a round. A call is whole if the model ended it, or if it looks whole."""
        item, self._finish = self._open, finish
        cut = finish == "length"
        if isinstance(item, CallBuilder):
            cut = finish != "tool_calls" and not item.is_complete
        return self._shut(cut)

    # remote tools

    @property
    def remaining_remote_calls(self) -> int | None:
        """How many calls of remote tools may still be made; further ones are ignored."""
        most = self._frame.max_remote_calls
        return None if most is None else max(0, most - self._remote)

    def start_tool_list(self, label: str) -> list[bytes]:
        """A remote server is being asked for its tools."""
        frames = self._shut(cut=False)
        item = self._listings[label] = ToolListBuilder(self._output, label)
        frames += item.open()
        self._before = len(self._output.items)
        return frames

    def finish_tool_list(
        self, label: str, tools: list[Item], error: str | None = None
    ) -> list[bytes]:
        """It has answered, or failed to."""
        return self._listings.pop(label).set_tools(tools, error)

    def get_remote_calls(self) -> list[RemoteCall]:
        """The calls that the server must make now; none once the answer was cut."""
        if self._cut or self._finish == "length":
            return []
        return [item.to_remote_call() for item in self._waiting.values()]

    def finish_remote_call(
        self, call: RemoteCall, output: str | None, error: str | None
    ) -> list[bytes]:
        """What came of a call. After it, another round may begin."""
        self._before = len(self._output.items)
        self._white = Delta()
        return self._waiting.pop(call.item_id).set_result(output, error)

    def start_approved_call(self, item: Item) -> list[bytes]:
        """A call that the client has allowed: `item` is what it was asked with."""
        known = ToolOrigin(kind="mcp", name=item["name"], server_label=item["server_label"])
        self._remote += 1
        frames = self._begin(RemoteCallBuilder(self._output, known, Delta(), item["id"]))
        if self._open is not None:
            frames += self._open.add(Delta(text=item["arguments"] or "{}"))
        return frames + self._shut(cut=False)

    # events of the response as a whole

    def _told(self, kind: str) -> bytes:
        return self._events.encode_event(kind, response=self.get_resource())

    def _begun(self) -> list[bytes]:
        return [] if self._events.count else self.start()

    def _last(self, status: Status, why: dict[str, str] | None = None) -> list[bytes]:
        frames = []
        for listing in self._listings.values():
            frames += listing.set_tools([], UNHEARD)
        for item in self._waiting.values():
            item.abandon()
        spent = None if self._spent is None else encode_usage(self._spent)
        self._resource |= {"status": status, "incomplete_details": why, "usage": spent}
        self.is_over = True
        return [*frames, self._told(ENDS[status])]
