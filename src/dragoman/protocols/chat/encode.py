"""Encode a chat completion, chunk by chunk or whole."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman.events import Choice, Completion, Delta, Finish
from dragoman.protocols.chat.tools import ChatFunctionCall
from dragoman.protocols.dialect import AnswerInfo
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import ContentLogprobs, encode
from dragoman.protocols.shared.report import add_report
from dragoman.types import Chat, Json, Request


class ChatToolCall(Struct):
    """A tool call the model made."""

    id: str
    function: ChatFunctionCall
    type: str = "function"


class ChatResponseMessage(Struct):
    """The assistant's answer. Reasoning and tool calls are absent when there are none."""

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
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    matched_stop: str | int | msgspec.UnsetType | None = msgspec.UNSET
    stop_str: str | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(Struct):
    """A whole chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: openai.CompletionUsage
    service_tier: str
    system_fingerprint: str


class ChatChunkChoice(Struct):
    index: int
    delta: dict[str, Json]
    logprobs: ContentLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    matched_stop: str | int | msgspec.UnsetType | None = msgspec.UNSET
    stop_str: str | msgspec.UnsetType = msgspec.UNSET


class ChatEncoder(openai.ChunkEncoder):
    """Encodes one chat completion."""

    def __init__(self, request: Request, answer: AnswerInfo) -> None:
        self._service_tier = openai.get_service_tier(request.priority)
        self._fingerprint = answer.fingerprint
        envelope = openai.make_envelope(
            request,
            "chatcmpl",
            "chat.completion.chunk",
            answer.model,
            {"service_tier": self._service_tier, "system_fingerprint": self._fingerprint},
        )
        indexes = range(answer.choices)
        frames = [_make_frame(envelope, i, b'"content":') for i in indexes]
        super().__init__(request, envelope, frames, answer.make_report)
        self._choices = answer.choices
        chat = request.prompts[0]
        self._forces_named_tool = isinstance(chat, Chat) and chat.forces_named_tool
        self._reasoning_frames: dict[int, tuple[bytes, bytes]] = {}  # made when they are needed
        self._call_frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def start(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self.envelope.encode_chunk(ChatChunkChoice(i, first)) for i in range(self._choices)]

    def encode_other_delta(self, delta: Delta) -> list[bytes]:
        channel = delta.channel
        if channel == "tool_name":
            chunk = self._encode_call(delta)
        else:
            if channel == "tool_args":
                frame = self._call_frames[delta.choice, delta.call]
            else:
                frame = self._get_reasoning_frame(delta.choice)
            chunk = self.envelope.encode_text(frame, delta.text)
        return self.add_report([chunk]) if self._reports_always else [chunk]

    def _get_reasoning_frame(self, choice: int) -> tuple[bytes, bytes]:
        frame = self._reasoning_frames.get(choice)
        if frame is None:
            frame = _make_frame(self.envelope, choice, b'"reasoning_content":')
            self._reasoning_frames[choice] = frame
        return frame

    def _encode_call(self, delta: Delta) -> bytes:
        """Encode the first chunk of a call; later ones carry its arguments only."""
        before = b'"tool_calls":[{"index":%d,"function":{"arguments":' % delta.call
        frame = _make_frame(self.envelope, delta.choice, before, b"}}]")
        self._call_frames[delta.choice, delta.call] = frame
        call = ChatToolCall(delta.id, ChatFunctionCall(delta.text, ""))
        fields = {"index": delta.call, **msgspec.structs.asdict(call)}
        return self.envelope.encode_chunk(ChatChunkChoice(delta.choice, {"tool_calls": [fields]}))

    def make_text_choice(self, delta: Delta) -> ChatChunkChoice:
        logprobs = openai.encode_logprobs(delta.tokens) if delta.tokens else None
        return ChatChunkChoice(delta.choice, {"content": delta.text}, logprobs)

    def make_final_choice(self, delta: Delta) -> ChatChunkChoice:
        reason = self._get_reason(delta.finish)
        stop = openai.make_stop_fields(self.request, delta.stop)
        return ChatChunkChoice(delta.choice, {}, None, reason, *stop)

    def _get_reason(self, finish: Finish | None) -> str | None:
        """Return the finish reason; OpenAI ends a call to a forced tool with `stop`."""
        return "stop" if self._forces_named_tool and finish == "tool_calls" else finish

    def encode_whole(self, completion: Completion) -> bytes:
        envelope = self.envelope
        answer = ChatCompletion(
            envelope.id,
            "chat.completion",
            envelope.created,
            envelope.model,
            [self._make_choice(choice) for choice in completion.build_choices()],
            openai.encode_usage(completion.usage),
            self._service_tier,
            self._fingerprint,
        )
        return add_report(encode(answer), self.make_report())

    def _make_choice(self, choice: Choice) -> ChatChoice:
        message = ChatResponseMessage("assistant", choice.text)
        if choice.reasoning:
            message.reasoning_content = choice.reasoning
        if choice.calls:
            message.content = choice.text or None
            message.tool_calls = [
                ChatToolCall(call.id, ChatFunctionCall(call.name, call.arguments))
                for call in choice.calls
            ]
        logprobs = openai.encode_logprobs(choice.tokens) if choice.tokens else None
        reason = self._get_reason(choice.finish) or "stop"
        stop = openai.make_stop_fields(self.request, choice.stop)
        return ChatChoice(choice.index, message, logprobs, reason, *stop)


def _make_frame(
    envelope: openai.ChunkEnvelope, index: int, before: bytes, after: bytes = b""
) -> tuple[bytes, bytes]:
    """Return the two halves of an ordinary chunk, around its text."""
    after += b'},"logprobs":null,"finish_reason":null}'
    return envelope.make_frame(b'{"index":%d,"delta":{' % index + before, after)
