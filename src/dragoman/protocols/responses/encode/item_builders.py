"""Build the items of an answer while they are generated.

`OutputItems` holds the items in their order. Text or reasoning of the model is an item that opens
with its first piece, encodes one event per piece and closes with the whole text. Tool calls are in
`call_builders`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from dragoman.events import Channel, Delta, Token
from dragoman.protocols.responses.encode.frames import EventEncoder
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.signer import ContentPacker


class OutputItems:
    """The items of a response, and the events that begin and end them."""

    def __init__(self, events: EventEncoder) -> None:
        self.events = events
        self.items: list[Item] = []  # including those that are not finished
        self._finished: list[bool] = []

    def add(self, item: Item) -> tuple[int, bytes]:
        """Add an item; return its index and the event."""
        index = len(self.items)
        self.items.append(item)
        self._finished.append(False)
        event = self.events.encode_event(
            "response.output_item.added", output_index=index, item=item
        )
        return index, event

    def finish(self, index: int, item: Item) -> bytes:
        self.items[index] = item
        self._finished[index] = True
        return self.events.encode_event("response.output_item.done", output_index=index, item=item)

    def get_finished(self) -> list[Item]:
        states = zip(self.items, self._finished, strict=True)
        return [item for item, is_finished in states if is_finished]


class ItemBuilder:
    """Builds an item from the deltas of one channel."""

    channel: ClassVar[Channel] = "text"
    call: int = 0  # the index of a call in its round

    def __init__(self, output: OutputItems, id_prefix: str) -> None:
        self.output = output
        self.events = output.events
        self.id = f"{id_prefix}_{uuid.uuid4().hex}"
        self.item: Item = {}
        self.index = -1  # not in the output yet
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def open(self) -> list[bytes]:
        raise NotImplementedError

    def add(self, delta: Delta) -> list[bytes]:
        raise NotImplementedError

    def close(self, cut: bool) -> list[bytes]:
        """End the item; `cut` if the model did not finish it."""
        raise NotImplementedError

    def snapshot(self) -> Item:
        """Return the item as it is now."""
        return self.item

    def begin_item(self, item: Item) -> bytes:
        self.item = item
        self.index, frame = self.output.add(item)
        return frame

    def encode_event(self, kind: str, **fields: object) -> bytes:
        return self.events.encode_event(
            f"response.{kind}", item_id=self.id, output_index=self.index, **fields
        )

    def encode_head(self, kind: str, **fields: object) -> bytes:
        return self.events.encode_head(
            f"response.{kind}", item_id=self.id, output_index=self.index, **fields
        )


class MessageItemBuilder(ItemBuilder):
    """Builds the text of an answer."""

    def __init__(self, output: OutputItems, with_logprobs: bool) -> None:
        super().__init__(output, "msg")
        self._tokens: list[Token] | None = [] if with_logprobs else None
        self._head = b""

    def open(self) -> list[bytes]:
        added = self.begin_item(self._make_item("in_progress", []))
        self._head = self.encode_head("output_text.delta", content_index=0, logprobs=[])
        part = _make_text_part("", [])
        return [added, self.encode_event("content_part.added", content_index=0, part=part)]

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        if self._tokens is None:
            return [self.events.encode_text_delta(self._head, delta.text)]
        self._tokens.extend(delta.tokens)
        logprobs = _encode_logprobs(delta.tokens)
        event = self.encode_event(
            "output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs
        )
        return [event]

    def close(self, cut: bool) -> list[bytes]:
        part = self._make_part()
        item = self._make_item("incomplete" if cut else "completed", [part])
        text, logprobs = part["text"], part["logprobs"]
        return [
            self.encode_event("output_text.done", content_index=0, text=text, logprobs=logprobs),
            self.encode_event("content_part.done", content_index=0, part=part),
            self.output.finish(self.index, item),
        ]

    def snapshot(self) -> Item:
        return self._make_item("in_progress", [self._make_part()])

    def _make_part(self) -> Item:
        return _make_text_part(self.text, _encode_logprobs(self._tokens or ()))

    def _make_item(self, status: str, content: list[Item]) -> Item:
        head = {"id": self.id, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": content}


class ReasoningItemBuilder(ItemBuilder):
    """Builds the reasoning of an answer; a summary, where one is sent, is the reasoning itself."""

    channel: ClassVar[Channel] = "reasoning"

    def __init__(
        self, output: OutputItems, with_summary: bool, packer: ContentPacker | None
    ) -> None:
        super().__init__(output, "rs")
        self._with_summary = with_summary
        self._packer = packer
        self._head = self._summary_head = b""

    def open(self) -> list[bytes]:
        part = _make_reasoning_part("")
        frames = [
            self.begin_item(self._make_item("in_progress", None)),
            self.encode_event("content_part.added", content_index=0, part=part),
        ]
        self._head = self.encode_head("reasoning_text.delta", content_index=0)
        if self._with_summary:
            summary = _make_summary_part("")
            frames.append(
                self.encode_event("reasoning_summary_part.added", summary_index=0, part=summary)
            )
            self._summary_head = self.encode_head("reasoning_summary_text.delta", summary_index=0)
        return frames

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        frames = [self.events.encode_text_delta(self._head, delta.text)]
        if self._with_summary:
            frames.append(self.events.encode_text_delta(self._summary_head, delta.text))
        return frames

    def close(self, cut: bool) -> list[bytes]:
        text = self.text
        item = self._make_item("incomplete" if cut else "completed", text)
        if self._packer is not None:
            item["encrypted_content"] = self._packer.pack("reasoning", text.encode())
        part = _make_reasoning_part(text)
        frames = [
            self.encode_event("reasoning_text.done", content_index=0, text=text),
            self.encode_event("content_part.done", content_index=0, part=part),
        ]
        if self._with_summary:
            status = {"status": "incomplete"} if cut else {}
            summary = _make_summary_part(text)
            frames += [
                self.encode_event("reasoning_summary_text.done", summary_index=0, text=text),
                self.encode_event(
                    "reasoning_summary_part.done", summary_index=0, part=summary, **status
                ),
            ]
        return [*frames, self.output.finish(self.index, item)]

    def snapshot(self) -> Item:
        return self._make_item("in_progress", self.text)

    def _make_item(self, status: str, text: str | None) -> Item:
        has_text = text is not None
        with_summary = has_text and self._with_summary
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [_make_summary_part(text or "")] if with_summary else [],
            "content": [_make_reasoning_part(text or "")] if has_text else [],
        }


def _make_text_part(text: str, logprobs: list[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _make_reasoning_part(text: str) -> Item:
    return {"type": "reasoning_text", "text": text}


def _make_summary_part(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def _encode_logprobs(tokens: Sequence[Token]) -> list[Item]:
    if not tokens:
        return []
    logprobs: list[Item] = msgspec.to_builtins(openai.encode_logprobs(tokens).content)
    return logprobs
