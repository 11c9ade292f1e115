"""Items of an answer while they grow.

`Output` has the items at their places. What a model says or thinks is an item that opens with its
first piece, adds one event per piece and closes with the whole of it. Calls are in `calls`.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

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
        self.items: list[Item] = []  # all that were begun
        self._done: list[bool] = []

    def add(self, item: Item) -> tuple[int, bytes]:
        """Give an item its place."""
        index = len(self.items)
        self.items.append(item)
        self._done.append(False)
        return index, self.events.encode_event(
            "response.output_item.added", output_index=index, item=item
        )

    def finish(self, index: int, item: Item) -> bytes:
        self.items[index] = item
        self._done[index] = True
        return self.events.encode_event("response.output_item.done", output_index=index, item=item)

    def get_finished(self) -> list[Item]:
        return [item for item, done in zip(self.items, self._done, strict=True) if done]


class ItemBuilder:
    """An item that takes pieces from one channel."""

    channel: ClassVar[Channel] = "text"
    call: int = 0  # which call of its round it is, on the channel of calls

    def __init__(self, output: OutputItems, prefix: str) -> None:
        self.output = output
        self.events = output.events
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.item: Item = {}
        self.index = -1  # no place yet
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def open(self) -> list[bytes]:
        raise NotImplementedError

    def add(self, delta: Delta) -> list[bytes]:
        raise NotImplementedError

    def close(self, cut: bool) -> list[bytes]:
        """The end of it; `cut` if the model had not come to its end."""
        raise NotImplementedError

    def snapshot(self) -> Item:
        """The item as far as it has come."""
        return self.item

    def begin_item(self, item: Item) -> bytes:
        self.item = item
        self.index, frame = self.output.add(item)
        return frame

    def encode_event(self, kind: str, **fields: Any) -> bytes:
        return self.events.encode_event(
            f"response.{kind}", item_id=self.id, output_index=self.index, **fields
        )

    def encode_head(self, kind: str, **fields: Any) -> bytes:
        return self.events.encode_head(
            f"response.{kind}", item_id=self.id, output_index=self.index, **fields
        )


class MessageItemBuilder(ItemBuilder):
    """What the model says."""

    def __init__(self, output: OutputItems, logprobs: bool) -> None:
        super().__init__(output, "msg")
        self._tokens: list[Token] | None = [] if logprobs else None
        self._head = b""

    def open(self) -> list[bytes]:
        added = self.begin_item(self._whole("in_progress", []))
        self._head = self.encode_head("output_text.delta", content_index=0, logprobs=[])
        return [added, self.encode_event("content_part.added", content_index=0, part=_said("", []))]

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        if self._tokens is None:
            return [self.events.encode_text_delta(self._head, delta.text)]
        self._tokens.extend(delta.tokens)
        logprobs = _logprobs(delta.tokens)
        return [
            self.encode_event(
                "output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs
            )
        ]

    def close(self, cut: bool) -> list[bytes]:
        part = self._part()
        item = self._whole("incomplete" if cut else "completed", [part])
        told = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            self.encode_event("output_text.done", content_index=0, **told),
            self.encode_event("content_part.done", content_index=0, part=part),
            self.output.finish(self.index, item),
        ]

    def snapshot(self) -> Item:
        return self._whole("in_progress", [self._part()])

    def _part(self) -> Item:
        return _said(self.text, _logprobs(self._tokens or ()))

    def _whole(self, status: str, content: list[Item]) -> Item:
        head = {"id": self.id, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": content}


class ReasoningItemBuilder(ItemBuilder):
    """What the model thinks; a summary of it, where one is told, is the thought itself."""

    channel: ClassVar[Channel] = "reasoning"

    def __init__(self, output: OutputItems, summary: bool, sealing: ContentPacker | None) -> None:
        super().__init__(output, "rs")
        self._summary = summary
        self._sealing = sealing
        self._head = self._short = b""

    def open(self) -> list[bytes]:
        frames = [
            self.begin_item(self._whole("in_progress", None)),
            self.encode_event("content_part.added", content_index=0, part=_thought("")),
        ]
        self._head = self.encode_head("reasoning_text.delta", content_index=0)
        if self._summary:
            part = _summary("")
            frames.append(
                self.encode_event("reasoning_summary_part.added", summary_index=0, part=part)
            )
            self._short = self.encode_head("reasoning_summary_text.delta", summary_index=0)
        return frames

    def add(self, delta: Delta) -> list[bytes]:
        self._pieces.append(delta.text)
        frame = self.events.encode_text_delta(self._head, delta.text)
        return (
            [frame, self.events.encode_text_delta(self._short, delta.text)]
            if self._summary
            else [frame]
        )

    def close(self, cut: bool) -> list[bytes]:
        text = self.text
        item = self._whole("incomplete" if cut else "completed", text)
        if self._sealing is not None:
            item["encrypted_content"] = self._sealing.pack("reasoning", text.encode())
        frames = [
            self.encode_event("reasoning_text.done", content_index=0, text=text),
            self.encode_event("content_part.done", content_index=0, part=_thought(text)),
        ]
        if self._summary:
            how = {"status": "incomplete"} if cut else {}
            part = _summary(text)
            frames += [
                self.encode_event("reasoning_summary_text.done", summary_index=0, text=text),
                self.encode_event("reasoning_summary_part.done", summary_index=0, part=part, **how),
            ]
        return [*frames, self.output.finish(self.index, item)]

    def snapshot(self) -> Item:
        return self._whole("in_progress", self.text)

    def _whole(self, status: str, text: str | None) -> Item:
        told = text is not None
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [_summary(text or "")] if told and self._summary else [],
            "content": [_thought(text or "")] if told else [],
        }


def _said(text: str, logprobs: list[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _thought(text: str) -> Item:
    return {"type": "reasoning_text", "text": text}


def _summary(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def _logprobs(tokens: tuple[Token, ...] | list[Token]) -> list[Item]:
    said: list[Item] = msgspec.to_builtins(openai.encode_logprobs(tokens).content) if tokens else []
    return said
