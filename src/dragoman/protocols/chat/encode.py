"""Chat completions: writing an answer, chunk by chunk or whole."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.events import Choice as Gained
from dragoman.events import Completion, Delta, Finish
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import ContentLogprobs, encode
from dragoman.types import Chat, Request


class ChatCalledFunction(Struct):
    name: str
    arguments: str


class ChatToolCall(Struct):
    """A tool call the model made."""

    id: str
    function: ChatCalledFunction
    type: str = "function"


class ChatResponseMessage(Struct):
    """What the assistant said. Reasoning and calls are left out when there are none."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ChatToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(Struct):
    index: int
    message: ChatResponseMessage
    logprobs: ContentLogprobs | None
    finish_reason: str


class ChatCompletion(Struct):
    """A whole answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: openai.CompletionUsage


class ChatChunkChoice(Struct):
    index: int
    delta: dict[str, Any]
    logprobs: ContentLogprobs | None = None
    finish_reason: str | None = None


class ChatEncoder(openai.ChunkEncoder):
    """Writes one answer."""

    def __init__(self, request: Request, model: str, choices: int, prompt: int = 0) -> None:
        envelope = openai.make_envelope(request, "chatcmpl", "chat.completion.chunk", model)
        every = range(choices)
        super().__init__(request, envelope, [_around(envelope, i, b'"content":') for i in every])
        self._choices = choices
        chat = request.prompts[0]
        self._named = isinstance(chat, Chat) and chat.forces_named_tool
        self._thoughts = [_around(envelope, i, b'"reasoning_content":') for i in every]
        self._calls: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def start(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self.envelope.encode_chunk(ChatChunkChoice(i, first)) for i in range(self._choices)]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        channel = delta.channel
        if channel == "text":
            return super().encode_delta(delta)
        if channel == "tool_name":
            return [self._call(delta)]
        ends = self._thoughts[delta.choice]
        if channel == "tool_args":
            ends = self._calls[delta.choice, delta.call]
        return [self.envelope.encode_text(ends, delta.text)]

    def _call(self, delta: Delta) -> bytes:
        """The first chunk of a call; those that follow have its arguments only."""
        before = b'"tool_calls":[{"index":%d,"function":{"arguments":' % delta.call
        ends = _around(self.envelope, delta.choice, before, b"}}]")
        self._calls[delta.choice, delta.call] = ends
        named = ChatToolCall(delta.id, ChatCalledFunction(delta.text, ""))
        call = {"index": delta.call, **msgspec.structs.asdict(named)}
        return self.envelope.encode_chunk(ChatChunkChoice(delta.choice, {"tool_calls": [call]}))

    def make_text_choice(self, delta: Delta) -> ChatChunkChoice:
        logprobs = openai.encode_logprobs(delta.tokens) if delta.tokens else None
        return ChatChunkChoice(delta.choice, {"content": delta.text}, logprobs)

    def make_final_choice(self, delta: Delta) -> ChatChunkChoice:
        return ChatChunkChoice(delta.choice, {}, finish_reason=self._finish(delta.finish))

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
            openai.encode_usage(completion.usage),
        )
        return encode(answer)

    def _choice(self, gained: Gained) -> ChatChoice:
        message = ChatResponseMessage("assistant", gained.text)
        if gained.reasoning:
            message.reasoning_content = gained.reasoning
        if gained.calls:
            message.content = gained.text or None
            message.tool_calls = [
                ChatToolCall(call.id, ChatCalledFunction(call.name, call.arguments))
                for call in gained.calls
            ]
        logprobs = openai.encode_logprobs(gained.tokens) if gained.tokens else None
        return ChatChoice(gained.index, message, logprobs, self._finish(gained.finish) or "stop")


def _around(
    envelope: openai.ChunkEnvelope, index: int, before: bytes, after: bytes = b""
) -> tuple[bytes, bytes]:
    """What stands around the text of an ordinary chunk."""
    after += b'},"logprobs":null,"finish_reason":null}'
    return envelope.make_frame(b'{"index":%d,"delta":{' % index + before, after)
