"""Chat completions: writing an answer, chunk by chunk or whole."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.events import Choice as Gained
from dragoman.events import Completion, Delta
from dragoman.protocols import openai
from dragoman.protocols.openai import Logprobs, encode
from dragoman.types import Request


class Called(Struct):
    name: str
    arguments: str


class Call(Struct):
    """A tool call the model made."""

    id: str
    function: Called
    type: str = "function"


class Answer(Struct):
    """What the assistant said. Reasoning and calls are left out when there are none."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class Choice(Struct):
    index: int
    message: Answer
    logprobs: Logprobs | None
    finish_reason: str


class ChatCompletion(Struct):
    """A whole answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: openai.Usage


class ChunkChoice(Struct):
    index: int
    delta: dict[str, Any]
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Writer(openai.ChunkWriter):
    """Writes one answer."""

    def __init__(self, request: Request, model: str, choices: int) -> None:
        envelope = openai.envelope_of(request, "chatcmpl", "chat.completion.chunk", model)
        after = b'},"logprobs":null,"finish_reason":null}'
        ends = [
            envelope.ends(b'{"index":%d,"delta":{"content":' % index, after)
            for index in range(choices)
        ]
        super().__init__(request, envelope, ends)
        self._choices = choices

    def start(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self.envelope.chunk(ChunkChoice(i, first)) for i in range(self._choices)]

    def gained(self, delta: Delta) -> ChunkChoice:
        logprobs = openai.logprobs(delta.tokens) if delta.tokens else None
        return ChunkChoice(delta.choice, {"content": delta.text}, logprobs)

    def ended(self, delta: Delta) -> ChunkChoice:
        return ChunkChoice(delta.choice, {}, finish_reason=delta.finish)

    def whole(self, completion: Completion) -> bytes:
        envelope = self.envelope
        answer = ChatCompletion(
            envelope.id,
            "chat.completion",
            envelope.created,
            envelope.model,
            [self._choice(choice) for choice in completion.choices()],
            openai.usage(completion.usage),
        )
        return encode(answer)

    def _choice(self, gained: Gained) -> Choice:
        message = Answer("assistant", gained.text)
        if gained.reasoning:
            message.reasoning_content = gained.reasoning
        if gained.calls:
            message.content = gained.text or None
            message.tool_calls = [
                Call(call_id(), Called(call.name, call.arguments)) for call in gained.calls
            ]
        logprobs = openai.logprobs(gained.tokens) if gained.tokens else None
        return Choice(gained.index, message, logprobs, gained.finish or "stop")


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
