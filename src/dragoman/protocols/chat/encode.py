"""Chat completions: writing an answer, chunk by chunk or whole."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.events import Choice as Gained
from dragoman.events import Completion, Delta, Finish
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import Logprobs, encode
from dragoman.types import Chat, Request


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


class ChatEncoder(openai.ChunkEncoder):
    """Writes one answer."""

    def __init__(self, request: Request, model: str, choices: int, prompt: int = 0) -> None:
        envelope = openai.envelope_of(request, "chatcmpl", "chat.completion.chunk", model)
        every = range(choices)
        super().__init__(request, envelope, [_around(envelope, i, b'"content":') for i in every])
        self._choices = choices
        chat = request.prompts[0]
        self._named = isinstance(chat, Chat) and chat.forces_named_tool
        self._thoughts = [_around(envelope, i, b'"reasoning_content":') for i in every]
        self._calls: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def start(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self.envelope.chunk(ChunkChoice(i, first)) for i in range(self._choices)]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        channel = delta.channel
        if channel == "text":
            return super().encode_delta(delta)
        if channel == "tool_name":
            return [self._call(delta)]
        ends = self._thoughts[delta.choice]
        if channel == "tool_args":
            ends = self._calls[delta.choice, delta.call]
        return [self.envelope.framed(ends, delta.text)]

    def _call(self, delta: Delta) -> bytes:
        """The first chunk of a call; those that follow have its arguments only."""
        before = b'"tool_calls":[{"index":%d,"function":{"arguments":' % delta.call
        ends = _around(self.envelope, delta.choice, before, b"}}]")
        self._calls[delta.choice, delta.call] = ends
        named = Call(delta.id, Called(delta.text, ""))
        call = {"index": delta.call, **msgspec.structs.asdict(named)}
        return self.envelope.chunk(ChunkChoice(delta.choice, {"tool_calls": [call]}))

    def gained(self, delta: Delta) -> ChunkChoice:
        logprobs = openai.logprobs(delta.tokens) if delta.tokens else None
        return ChunkChoice(delta.choice, {"content": delta.text}, logprobs)

    def ended(self, delta: Delta) -> ChunkChoice:
        return ChunkChoice(delta.choice, {}, finish_reason=self._finish(delta.finish))

    def _finish(self, finish: Finish | None) -> str | None:
        """A call of the one tool that was named ends with `stop`, as OpenAI has it."""
        return "stop" if self._named and finish == "tool_calls" else finish

    def encode_whole(self, completion: Completion) -> bytes:
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
                Call(call.id, Called(call.name, call.arguments)) for call in gained.calls
            ]
        logprobs = openai.logprobs(gained.tokens) if gained.tokens else None
        return Choice(gained.index, message, logprobs, self._finish(gained.finish) or "stop")


def _around(
    envelope: openai.Envelope, index: int, before: bytes, after: bytes = b""
) -> tuple[bytes, bytes]:
    """What stands around the text of an ordinary chunk."""
    after += b'},"logprobs":null,"finish_reason":null}'
    return envelope.ends(b'{"index":%d,"delta":{' % index + before, after)
