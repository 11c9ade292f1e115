"""Writing an answer: blocks that grow one after another, as events or as one message.

`Growth` decides where a block begins and ends; what is told of it is up to its two kinds. `Frames`
writes events, `Content` makes the list of a whole message. Both are fed with the same texts in the
same order, so they cannot disagree. White space between blocks begins none.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Channel, Completion, Delta, Finish
from dragoman.events import Usage as Spent
from dragoman.protocols.messages import partial_json, reasoning
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Request

Kind: TypeAlias = Literal["text", "thinking", "tool_use"]
REASONS: dict[Finish | None, str] = {"length": "max_tokens", "tool_calls": "tool_use"}
EMPTY: dict[Kind, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
GROWS: dict[Kind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessagesOutputDetails(Struct):
    thinking_tokens: int


class MessagesDeltaUsage(Struct):
    """Tokens up to now."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessagesOutputDetails | None


class MessagesUsage(MessagesDeltaUsage):
    """Tokens of the prompt, known from the cache or not, and of the answer."""

    service_tier: str = "standard"


class MessageResponse(Struct):
    """A whole answer."""

    id: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage
    type: str = "message"
    role: str = "assistant"
    stop_details: None = None
    container: None = None


class TokenCount(Struct):
    """How long a prompt is."""

    input_tokens: int


class MessageEnd(Struct):
    """Why an answer ended."""

    stop_reason: str = "end_turn"
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None


def make_message_end(finish: Finish | None, stop: str | int | None) -> MessageEnd:
    if finish == "stop" and isinstance(stop, str):
        return MessageEnd("stop_sequence", stop)
    return MessageEnd(REASONS.get(finish, "end_turn"))


def refine_message_end(why: MessageEnd, spent: Spent, most: int | None) -> MessageEnd:
    """The same, told apart by which end was reached: the client's own limit, or the model's."""
    if why.stop_reason == "max_tokens" and spent.completion < (most or 0):
        return MessageEnd("model_context_window_exceeded")
    return why


def encode_delta_usage(spent: Spent) -> MessagesDeltaUsage:
    return MessagesDeltaUsage(
        spent.prompt - spent.cached,
        0,
        spent.cached,
        spent.completion,
        MessagesOutputDetails(spent.reasoning),
    )


def encode_usage(spent: Spent) -> MessagesUsage:
    now = encode_delta_usage(spent)
    return MessagesUsage(*(getattr(now, name) for name in MessagesDeltaUsage.__struct_fields__))


class BlockBuilder:
    """Blocks as they grow, one open at a time."""

    def __init__(self, signed: Callable[[str], str], sealed: bool) -> None:
        self.open: Kind | None = None
        self._signed = signed
        self._sealed = sealed
        self._white = ""  # space that belongs to a text if one follows
        self._thought: list[str] = []

    def begin_block(self, kind: Kind, block: dict[str, Any]) -> None:
        raise NotImplementedError

    def add_text(self, text: str) -> None:
        raise NotImplementedError

    def add_signature(self, signature: str) -> None:
        raise NotImplementedError

    def end_block(self) -> None:
        raise NotImplementedError

    def add_delta(self, channel: Channel, text: str, name: str = "") -> None:
        """What was gained; `name` is the id of a call that begins."""
        match channel:
            case "text":
                self._text(text)
            case "reasoning":
                self._change("thinking")
                self._thought.append(text)
                if not self._sealed:
                    self.add_text(text)
            case "tool_name":
                self.close_block()
                block = {"type": "tool_use", "id": name, "name": text, "input": {}}
                self._begin("tool_use", block)
            case "tool_args":
                if text:
                    self.add_text(text)

    def close_block(self) -> None:
        """End the block that is open, if one is."""
        self._white = ""
        if self.open == "thinking":
            self.add_signature(self._signed("".join(self._thought)))
            self._thought.clear()
        if self.open is not None:
            self.end_block()
            self.open = None

    def _text(self, text: str) -> None:
        if self.open != "text":
            text = self._white + text
            if not text.strip():
                self._white = text
                return
            self._change("text")
        self.add_text(text)

    def _change(self, kind: Kind) -> None:
        self._white = ""
        if self.open != kind:
            self.close_block()
            self._begin(kind, EMPTY[kind])

    def _begin(self, kind: Kind, block: dict[str, Any]) -> None:
        self.open = kind
        self.begin_block(kind, block)


class BlockList(BlockBuilder):
    """The blocks of a whole message."""

    def __init__(self, signed: Callable[[str], str], sealed: bool) -> None:
        super().__init__(signed, sealed)
        self.blocks: list[dict[str, Any]] = []
        self._field = ""
        self._pieces: list[str] = []

    def begin_block(self, kind: Kind, block: dict[str, Any]) -> None:
        self._field = GROWS[kind][1]
        self.blocks.append(dict(block))

    def add_text(self, text: str) -> None:
        self._pieces.append(text)

    def add_signature(self, signature: str) -> None:
        self.blocks[-1]["signature"] = signature

    def end_block(self) -> None:
        said, block = "".join(self._pieces), self.blocks[-1]
        if self.open != "tool_use":
            block[self._field] = said
        elif said:
            block["input"] = partial_json.parse_partial_json(said)
        self._pieces.clear()


class BlockEvents(BlockBuilder):
    """The same as events. What stands around the text of an ordinary one is made once a block."""

    def __init__(self, signed: Callable[[str], str], sealed: bool) -> None:
        super().__init__(signed, sealed)
        self.index = -1
        self.around = (b"", b"}}\n\n")
        self._frames: list[bytes] = []

    def begin_block(self, kind: Kind, block: dict[str, Any]) -> None:
        self.index += 1
        name, field = GROWS[kind]
        before = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d'
        delta = f',"delta":{{"type":"{name}","{field}":'
        self.around = (before % self.index + delta.encode(), self.around[1])
        self._say("content_block_start", index=self.index, content_block=block)

    def add_text(self, text: str) -> None:
        before, after = self.around
        self._frames.append(before + encode(text) + after)

    def add_signature(self, signature: str) -> None:
        delta = {"type": "signature_delta", "signature": signature}
        self._say("content_block_delta", index=self.index, delta=delta)

    def end_block(self) -> None:
        self._say("content_block_stop", index=self.index)

    def _say(self, kind: str, **fields: Any) -> None:
        self._frames.append(encode_event(kind, **fields))

    def take_frames(self) -> list[bytes]:
        """All frames since the last time."""
        frames, self._frames = self._frames, []
        return frames


def encode_event(kind: str, **fields: Any) -> bytes:
    data = encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


class MessagesEncoder:
    """Writes one answer."""

    def __init__(
        self,
        request: Request,
        model: str,
        prompt: int,
        signing: ContentSigner,
        error: Callable[[DragomanError], bytes],
    ) -> None:
        self._id = f"msg_{uuid.uuid4().hex[:24]}"
        self._model = model
        self._prompt = prompt
        self._error = error
        self._sealed = sealed = request.encrypt_reasoning
        self._signed = lambda said: reasoning.sign_reasoning(said, signing, omitted=sealed)
        self._frames = BlockEvents(self._signed, sealed)
        self._stopped = MessageEnd()
        self._most = request.sampling.max_tokens

    def start(self) -> list[bytes]:
        """What is known of the prompt; clients want it to be something."""
        spent = MessagesUsage(max(1, self._prompt), 0, 0, 0, None)
        return [encode_event("message_start", message=self._message([], None, None, spent))]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        frames = self._frames
        if delta.finish is None and delta.channel == "text" and frames.open == "text":
            before, after = frames.around
            return [before + encode(delta.text) + after]
        if delta.text or delta.channel == "tool_name":
            frames.add_delta(delta.channel, delta.text, delta.id)
        if delta.finish is not None:
            frames.close_block()
            self._stopped = make_message_end(delta.finish, delta.stop)
        return frames.take_frames()

    def end(self, spent: Spent) -> list[bytes]:
        why = refine_message_end(self._stopped, spent, self._most)
        return [
            encode_event("message_delta", delta=why, usage=encode_delta_usage(spent)),
            encode_event("message_stop"),
        ]

    def fail(self, failure: DragomanError) -> list[bytes]:
        return [b"event: error\ndata: " + self._error(failure) + b"\n\n"]

    def encode_whole(self, completion: Completion) -> bytes:
        content = BlockList(self._signed, self._sealed)
        [choice] = completion.choices()
        for part in choice.parts:
            name = choice.calls[part.call].id if part.channel == "tool_name" else ""
            content.add_delta(part.channel, part.text, name)
        content.close_block()
        why = refine_message_end(
            make_message_end(choice.finish, choice.stop), completion.usage, self._most
        )
        spent = encode_usage(completion.usage)
        return encode(self._message(content.blocks, why.stop_reason, why.stop_sequence, spent))

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: str | None,
        stop: str | None,
        spent: MessagesUsage,
    ) -> MessageResponse:
        return MessageResponse(self._id, self._model, content, reason, stop, spent)
