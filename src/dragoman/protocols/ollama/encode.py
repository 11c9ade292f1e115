"""Encode answers: lines of JSON, or one object.

A line of a stream is a prefix, the time, and the escaped text between two parts that are built
once; unusual lines go through the encoder. Tool calls are sent whole, each in a line of its own.
The last line carries the counts and durations, which are in nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from dragoman.errors import DragomanError
from dragoman.events import (
    AnswerTimes,
    Completion,
    Delta,
    Finish,
    GeneratedCall,
    Token,
    Usage,
)
from dragoman.protocols.dialect import AnswerInfo
from dragoman.protocols.json_lines import make_line
from dragoman.protocols.ollama.errors import encode_error
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.shared.partial_json import parse_partial_json
from dragoman.protocols.shared.report import add_report
from dragoman.types import Json, Request

DoneReason: TypeAlias = Literal["stop", "length", "load", "unload"]
NANOSECONDS = 10**9


class GeneratedFunction(Struct):
    """`index` numbers the calls of an answer."""

    index: int
    name: str
    arguments: dict[str, Json]


class GeneratedToolCall(Struct):
    id: str
    function: GeneratedFunction


class OllamaReply(Struct, kw_only=True):
    """What the model says. Reasoning and tool calls are absent when there are none."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[GeneratedToolCall] | UnsetType = UNSET


class OllamaAnswer(Struct, kw_only=True):
    """A line of a stream, or a whole answer. Only the last line has counts and durations."""

    model: str
    created_at: str
    done: bool = False
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET  # nanoseconds, like the other durations
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[openai.TokenLogprob] | UnsetType = UNSET


class OllamaChatResponse(OllamaAnswer, kw_only=True):
    """An answer to a conversation."""

    message: OllamaReply


class OllamaGenerateResponse(OllamaAnswer, kw_only=True):
    """An answer to a prompt."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


MakeAnswer: TypeAlias = Callable[..., OllamaAnswer]


def make_chat_response(
    text: str = "",
    reasoning: str = "",
    calls: Sequence[GeneratedToolCall] = (),
    context: list[int] | None = None,
    **fields: Any,
) -> OllamaChatResponse:
    reply = OllamaReply(content=text, thinking=reasoning or UNSET, tool_calls=list(calls) or UNSET)
    return OllamaChatResponse(message=reply, **fields)


def make_generate_response(
    text: str = "",
    reasoning: str = "",
    calls: Sequence[GeneratedToolCall] = (),
    context: list[int] | None = None,
    **fields: Any,
) -> OllamaGenerateResponse:
    return OllamaGenerateResponse(
        response=text,
        thinking=reasoning or UNSET,
        context=UNSET if context is None else context,
        **fields,
    )


class LineParts(Struct, frozen=True):
    """What surrounds the text of a line, after the time; for text and for reasoning."""

    text: tuple[bytes, bytes]
    reasoning: tuple[bytes, bytes]


CHAT_LINE = LineParts(
    (b'","message":{"role":"assistant","content":', b'},"done":false}'),
    (b'","message":{"role":"assistant","content":"","thinking":', b'},"done":false}'),
)
GENERATE_LINE = LineParts(
    (b'","response":', b',"done":false}'),
    (b'","response":"","thinking":', b',"done":false}'),
)


@lru_cache(maxsize=8)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def format_now() -> str:
    """Return the time as RFC 3339 writes it, with nanoseconds."""
    seconds, rest = divmod(time.time_ns(), NANOSECONDS)
    return f"{_format_second(seconds)}.{rest:09d}Z"


def to_nanoseconds(seconds: float) -> int:
    """Return a duration; clients divide by it, so it is never 0."""
    return max(1, round(seconds * NANOSECONDS))


class OllamaEncoder:
    """Encodes one answer."""

    def __init__(
        self, request: Request, answer: AnswerInfo, make_answer: MakeAnswer, line: LineParts
    ) -> None:
        self._model = request.model.strip() or answer.model  # as the client wrote it
        self._measure: Callable[[], AnswerTimes] = answer.measure
        self._make_report = answer.make_report or dict
        self._make_answer = make_answer
        self._line = line
        self._head = b'{"model":' + encode(self._model) + b',"created_at":"'
        self._has_logprobs = request.logprobs is not None
        self._call: GeneratedCall | None = None  # that is being generated
        self._call_index = 0
        self._arguments: list[str] = []
        self._finish: Finish | None = None
        self._context: list[int] | None = None

    def start(self) -> list[bytes]:
        return []

    def encode_delta(self, delta: Delta) -> list[bytes]:
        lines = self._encode_content(delta)
        if delta.finish is not None:
            lines += self._end_call()
            self._finish, self._context = delta.finish, delta.context
        return lines

    def _encode_content(self, delta: Delta) -> list[bytes]:
        if delta.channel == "tool_args":
            self._arguments.append(delta.text)
            return []
        lines = self._end_call()
        if delta.channel == "tool_name":
            self._call, self._call_index = GeneratedCall(delta.text, "", delta.id), delta.call
        elif delta.tokens and self._has_logprobs:
            logprobs = _encode_logprobs(delta.tokens)
            lines.append(self._encode_line(text=delta.text, logprobs=logprobs))
        elif delta.text:
            is_reasoning = delta.channel == "reasoning"
            before, after = self._line.reasoning if is_reasoning else self._line.text
            text = encode(delta.text)
            lines.append(make_line(self._head + format_now().encode() + before + text + after))
        return lines

    def _end_call(self) -> list[bytes]:
        """Encode the call that is being generated, if there is one."""
        call = self._call
        if call is None:
            return []
        call.arguments = "".join(self._arguments)
        self._call, self._arguments = None, []
        return [self._encode_line(calls=[_encode_call(call, self._call_index)])]

    def end(self, usage: Usage) -> list[bytes]:
        last = encode(self._make_last(usage, self._finish, context=self._context))
        return [make_line(add_report(last, self._make_report()))]

    def fail(self, error: DragomanError) -> list[bytes]:
        return [make_line(encode_error(error))]

    def encode_whole(self, completion: Completion) -> bytes:
        [choice] = completion.build_choices()
        calls = [_encode_call(call, index) for index, call in enumerate(choice.calls)]
        answer = self._make_last(
            completion.usage,
            choice.finish,
            text=choice.text,
            reasoning=choice.reasoning,
            calls=calls,
            context=choice.context,
            logprobs=_encode_logprobs(choice.tokens) if self._has_logprobs else UNSET,
        )
        return add_report(encode(answer), self._make_report())

    def _encode_line(self, **fields: Any) -> bytes:
        answer = self._make_answer(model=self._model, created_at=format_now(), **fields)
        return make_line(encode(answer))

    def _make_last(self, usage: Usage, finish: Finish | None, **fields: Any) -> OllamaAnswer:
        times = self._measure()
        return self._make_answer(
            model=self._model,
            created_at=format_now(),
            done=True,
            done_reason="length" if finish == "length" else "stop",
            total_duration=to_nanoseconds(times.total),
            load_duration=to_nanoseconds(times.load),
            prompt_eval_count=usage.prompt,
            prompt_eval_duration=to_nanoseconds(times.prompt),
            eval_count=usage.completion,
            eval_duration=to_nanoseconds(times.answer),
            **fields,
        )


def _encode_call(call: GeneratedCall, index: int) -> GeneratedToolCall:
    arguments = parse_partial_json(call.arguments) if call.arguments else {}
    if not isinstance(arguments, dict):
        arguments = {"input": arguments}
    return GeneratedToolCall(call.id, GeneratedFunction(index, call.name, arguments))


def _encode_logprobs(tokens: Sequence[Token]) -> list[openai.TokenLogprob]:
    return openai.encode_logprobs(tokens).content


def encode_load(make_answer: MakeAnswer, model: str, reason: DoneReason) -> bytes:
    """Encode the answer to a request that loads or unloads a model."""
    answer = make_answer(model=model, created_at=format_now(), done=True, done_reason=reason)
    return encode(answer)
