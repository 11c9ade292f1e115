"""Chat completions: writing an answer, chunk by chunk or whole."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Choice as Gained
from dragoman.events import Completion, Delta
from dragoman.events import Usage as Spent
from dragoman.protocols import openai
from dragoman.protocols.openai import Envelope, Logprobs, encode
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


class Writer:
    """Writes one answer."""

    def __init__(self, request: Request, model: str, choices: int) -> None:
        options = openai.StreamOptions(request.include_usage, request.obfuscate)
        self._envelope = Envelope("chatcmpl", "chat.completion.chunk", model, options)
        self._choices = choices
        self._plain = request.logprobs is None and not request.obfuscate
        after = b'},"logprobs":null,"finish_reason":null}'
        self._ends = [
            self._envelope.ends(b'{"index":%d,"delta":{"content":' % index, after)
            for index in range(choices)
        ]

    def start(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self._envelope.chunk(ChunkChoice(i, first)) for i in range(self._choices)]

    def write(self, delta: Delta) -> list[bytes]:
        if self._plain and delta.finish is None:  # the usual case
            before, after = self._ends[delta.choice]
            return [before + encode(delta.text) + after]
        frames = []
        if delta.text or delta.tokens:
            frames.append(self._gain(delta))
        if delta.finish is not None:
            frames.append(
                self._envelope.chunk(ChunkChoice(delta.choice, {}, finish_reason=delta.finish))
            )
        return frames

    def _gain(self, delta: Delta) -> bytes:
        logprobs = openai.logprobs(delta.tokens) if delta.tokens else None
        return self._envelope.chunk(ChunkChoice(delta.choice, {"content": delta.text}, logprobs))

    def end(self, usage: Spent) -> list[bytes]:
        return self._envelope.last(usage)

    def fail(self, failure: DragomanError) -> list[bytes]:
        return [openai.event(openai.error(failure)), openai.DONE]

    def whole(self, completion: Completion) -> bytes:
        envelope = self._envelope
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
