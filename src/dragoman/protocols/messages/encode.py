"""Encode an answer as blocks that grow one after another: as events, or as one message.

`BlockBuilder` decides where a block begins and ends. It has two subclasses: `BlockEvents` encodes
events, `BlockList` builds the content of a whole message. Both receive the same texts in the same
order, so they cannot disagree. Whitespace between blocks does not begin a block.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Channel, Completion, Delta, Finish, Usage
from dragoman.protocols.messages import reasoning
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.shared.partial_json import parse_partial_json
from dragoman.protocols.shared.report import MakeReport, add_report
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Json, Request

BlockType: TypeAlias = Literal["text", "thinking", "tool_use"]
Block: TypeAlias = dict[str, Json]
STOP_REASONS: dict[Finish | None, str] = {"length": "max_tokens", "tool_calls": "tool_use"}
EMPTY_BLOCKS: dict[BlockType, Block] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
# The type of a block's deltas, and the field that carries their text.
DELTA_FIELDS: dict[BlockType, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessagesOutputDetails(Struct):
    thinking_tokens: int


class MessagesDeltaUsage(Struct):
    """Token counts so far."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessagesOutputDetails | None


class MessagesUsage(MessagesDeltaUsage):
    """Token counts of the prompt, cached or not, and of the answer."""

    service_tier: str = "standard"


class MessageResponse(Struct):
    """A whole message."""

    id: str
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage
    type: str = "message"
    role: str = "assistant"
    stop_details: None = None
    container: None = None


class TokenCount(Struct):
    """How many tokens a prompt has."""

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
    return MessageEnd(STOP_REASONS.get(finish, "end_turn"))


def refine_message_end(end: MessageEnd, usage: Usage, max_tokens: int | None) -> MessageEnd:
    """Distinguish which limit was reached: the client's `max_tokens` or the model's context."""
    if end.stop_reason == "max_tokens" and usage.completion < (max_tokens or 0):
        return MessageEnd("model_context_window_exceeded")
    return end


def encode_delta_usage(usage: Usage) -> MessagesDeltaUsage:
    return MessagesDeltaUsage(
        usage.prompt - usage.cached,
        0,
        usage.cached,
        usage.completion,
        MessagesOutputDetails(usage.reasoning),
    )


def encode_usage(usage: Usage) -> MessagesUsage:
    delta = encode_delta_usage(usage)
    return MessagesUsage(*(getattr(delta, name) for name in delta.__struct_fields__))


class BlockBuilder:
    """Builds blocks, one open at a time."""

    def __init__(self, sign: Callable[[str], str], omits_reasoning: bool) -> None:
        self.open_type: BlockType | None = None
        self._sign = sign
        self._omits_reasoning = omits_reasoning
        self._whitespace = ""  # belongs to a text if one follows
        self._reasoning: list[str] = []

    def begin_block(self, kind: BlockType, block: Block) -> None:
        raise NotImplementedError

    def add_text(self, text: str) -> None:
        raise NotImplementedError

    def add_signature(self, signature: str) -> None:
        raise NotImplementedError

    def end_block(self) -> None:
        raise NotImplementedError

    def add_delta(self, channel: Channel, text: str, call_id: str = "") -> None:
        """Add text of a channel; `call_id` is the id of a call that begins."""
        match channel:
            case "text":
                self._add_answer_text(text)
            case "reasoning":
                self._switch_to("thinking")
                self._reasoning.append(text)
                if not self._omits_reasoning:
                    self.add_text(text)
            case "tool_name":
                self.close_block()
                block = {"type": "tool_use", "id": call_id, "name": text, "input": {}}
                self._open_block("tool_use", block)
            case "tool_args":
                if text:
                    self.add_text(text)

    def close_block(self) -> None:
        """End the open block, if there is one."""
        self._whitespace = ""
        if self.open_type == "thinking":
            self.add_signature(self._sign("".join(self._reasoning)))
            self._reasoning.clear()
        if self.open_type is not None:
            self.end_block()
            self.open_type = None

    def _add_answer_text(self, text: str) -> None:
        if self.open_type != "text":
            text = self._whitespace + text
            if not text.strip():
                self._whitespace = text
                return
            self._switch_to("text")
        self.add_text(text)

    def _switch_to(self, kind: BlockType) -> None:
        self._whitespace = ""
        if self.open_type != kind:
            self.close_block()
            self._open_block(kind, EMPTY_BLOCKS[kind])

    def _open_block(self, kind: BlockType, block: Block) -> None:
        self.open_type = kind
        self.begin_block(kind, block)


class BlockList(BlockBuilder):
    """Builds the blocks of a whole message."""

    def __init__(self, sign: Callable[[str], str], omits_reasoning: bool) -> None:
        super().__init__(sign, omits_reasoning)
        self.blocks: list[Block] = []
        self._field = ""
        self._pieces: list[str] = []

    def begin_block(self, kind: BlockType, block: Block) -> None:
        self._field = DELTA_FIELDS[kind][1]
        self.blocks.append(dict(block))

    def add_text(self, text: str) -> None:
        self._pieces.append(text)

    def add_signature(self, signature: str) -> None:
        self.blocks[-1]["signature"] = signature

    def end_block(self) -> None:
        text, block = "".join(self._pieces), self.blocks[-1]
        if self.open_type != "tool_use":
            block[self._field] = text
        elif text:
            block["input"] = parse_partial_json(text)
        self._pieces.clear()


class BlockEvents(BlockBuilder):
    """Encodes blocks as events. The frame around the text of a delta is built once per block."""

    def __init__(self, sign: Callable[[str], str], omits_reasoning: bool) -> None:
        super().__init__(sign, omits_reasoning)
        self.index = -1
        self.delta_frame = (b"", b"}}\n\n")
        self._frames: list[bytes] = []

    def begin_block(self, kind: BlockType, block: Block) -> None:
        self.index += 1
        name, field = DELTA_FIELDS[kind]
        before = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d'
        delta = f',"delta":{{"type":"{name}","{field}":'
        self.delta_frame = (before % self.index + delta.encode(), self.delta_frame[1])
        self._add_event("content_block_start", index=self.index, content_block=block)

    def add_text(self, text: str) -> None:
        before, after = self.delta_frame
        self._frames.append(before + encode(text) + after)

    def add_signature(self, signature: str) -> None:
        delta = {"type": "signature_delta", "signature": signature}
        self._add_event("content_block_delta", index=self.index, delta=delta)

    def end_block(self) -> None:
        self._add_event("content_block_stop", index=self.index)

    def _add_event(self, kind: str, **fields: object) -> None:
        self._frames.append(encode_event(kind, **fields))

    def take_frames(self) -> list[bytes]:
        """Return the frames since the last call."""
        frames, self._frames = self._frames, []
        return frames


def encode_event(kind: str, **fields: object) -> bytes:
    data = encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def make_id() -> str:
    return f"msg_{uuid.uuid4().hex[:24]}"


class MessagesEncoder:
    """Encodes one message."""

    def __init__(
        self,
        request: Request,
        model: str,
        prompt_tokens: int,
        signer: ContentSigner,
        encode_error: Callable[[DragomanError], bytes],
        make_report: MakeReport = dict,
    ) -> None:
        self._id = request.response_id or make_id()
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._encode_error = encode_error
        self._make_report = make_report
        self._omits_reasoning = omits = request.pack_reasoning
        self._sign = lambda text: reasoning.sign_reasoning(text, signer, omitted=omits)
        self._events = BlockEvents(self._sign, omits)
        self._end = MessageEnd()
        self._max_tokens = request.sampling.max_tokens

    def start(self) -> list[bytes]:
        usage = MessagesUsage(max(1, self._prompt_tokens), 0, 0, 0, None)  # clients expect tokens
        message = self._make_message([], MessageEnd(), usage)
        message.stop_reason = None
        return [encode_event("message_start", message=message)]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        events = self._events
        if delta.finish is None and delta.channel == "text" and events.open_type == "text":
            before, after = events.delta_frame
            return [before + encode(delta.text) + after]
        if delta.text or delta.channel == "tool_name":
            events.add_delta(delta.channel, delta.text, delta.id)
        if delta.finish is not None:
            events.close_block()
            self._end = make_message_end(delta.finish, delta.stop)
        return events.take_frames()

    def end(self, usage: Usage) -> list[bytes]:
        end = refine_message_end(self._end, usage, self._max_tokens)
        report = self._make_report()
        return [
            encode_event("message_delta", delta=end, usage=encode_delta_usage(usage), **report),
            encode_event("message_stop"),
        ]

    def fail(self, error: DragomanError) -> list[bytes]:
        return [b"event: error\ndata: " + self._encode_error(error) + b"\n\n"]

    def encode_whole(self, completion: Completion) -> bytes:
        content = BlockList(self._sign, self._omits_reasoning)
        [choice] = completion.build_choices()
        for part in choice.parts:
            call_id = choice.calls[part.call].id if part.channel == "tool_name" else ""
            content.add_delta(part.channel, part.text, call_id)
        content.close_block()
        end = make_message_end(choice.finish, choice.stop)
        end = refine_message_end(end, completion.usage, self._max_tokens)
        usage = encode_usage(completion.usage)
        message = encode(self._make_message(content.blocks, end, usage))
        return add_report(message, self._make_report())

    def _make_message(
        self, content: list[Block], end: MessageEnd, usage: MessagesUsage
    ) -> MessageResponse:
        return MessageResponse(
            self._id, self._model, content, end.stop_reason, end.stop_sequence, usage
        )
