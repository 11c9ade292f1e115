"""Reads the deltas that a chat-only server has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from dragoman.errors import EngineFailed
from dragoman.events import Delta, Finish
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.reader import Reader, get_finish
from dragoman.pipeline.relay.call_order import CallOrder
from dragoman.types import Job, Json, Step


class CallFunction(Struct):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None  # some servers send the object itself


class CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: CallFunction | None = None


class ContentPart(Struct):
    """A part of a content that is a list: a text, or reasoning, which is one or another list."""

    text: str | None = None
    thinking: str | list[ContentPart | str] | None = None


class RelayDelta(Struct):
    """What a frame adds. Servers write reasoning under one of two names, or among the parts."""

    content: str | list[ContentPart | str] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: CallFunction | None = None  # the older form of a single call


decode = msgspec.json.Decoder(RelayDelta).decode


class RelayReader(Reader):
    """Reads a choice whose deltas another server has made."""

    def __init__(self, index: int, job: Job, *, include_reasoning: bool, first: bool) -> None:
        super().__init__(index, job, Detokenizer(None, frozenset(), (), False), "", first=first)
        self._job_id = job.id
        self._include_reasoning = include_reasoning
        self._calls: list[str | None] = []  # the ids that the server has given them
        self._numbers: dict[int, int] = {}  # the server's index -> the latest call with it
        self._indices: list[set[int]] = []  # of each call
        self._order = CallOrder(index)

    def feed(self, step: Step) -> list[Delta]:
        if self._finished:
            return []
        self._count_tokens(step)
        lines = filter(None, (step.text or "").split("\n"))
        deltas = [delta for line in lines for delta in self._read(line)]
        if step.finish is not None:
            self._finished = True
            finish: Finish = get_finish(step)
            if finish == "stop" and self._calls:
                finish = "tool_calls"
            deltas += self._order.end(is_cut=finish == "length")
            deltas.append(Delta(self._index, finish=finish, usage=self._make_usage(step)))
        return deltas

    def _read(self, line: str) -> Iterator[Delta]:
        try:
            delta = decode(line)
        except msgspec.DecodeError:
            raise EngineFailed("The upstream server returned an invalid answer.") from None
        content, thinking = split_content(delta.content)
        reasoning = delta.reasoning_content or delta.reasoning or thinking
        if reasoning and self._include_reasoning:
            yield Delta(self._index, reasoning, "reasoning")
        text = content or delta.refusal
        if text:
            yield Delta(self._index, text)
        calls = delta.tool_calls or []
        if not calls and delta.function_call is not None:  # some servers send both forms
            calls = [CallDelta(0, None, delta.function_call)]
        for call in calls:
            yield from self._read_call(call)

    def _read_call(self, call: CallDelta) -> Iterator[Delta]:
        """Read a part of a call: begin the call if it is new, and add its arguments."""
        function = call.function or CallFunction()
        number = self._find_call(call, function)
        if number is None and function.name:
            number = len(self._calls)
            self._calls.append(call.id)
            self._indices.append(set())
            self.call_names.append(function.name)
            unique_id = call.id or f"call_{self._job_id[-16:]}_{self._index}_{number}"
            if not call.id:
                self.generated_call_ids.add(unique_id)
            yield from self._order.begin(function.name, unique_id)
        if number is None:
            if not function.arguments:  # the beginning of a call whose name comes later
                return
            raise EngineFailed("The upstream server returned an invalid answer.")
        if call.index is not None:
            self._numbers[call.index] = number
            self._indices[number].add(call.index)
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            yield from self._order.add(number, arguments)

    def _find_call(self, call: CallDelta, function: CallFunction) -> int | None:
        """Return the call that a part continues; None if it begins another one.

        Some servers send calls without an index, each as a whole, or all with the same index.
        """
        calls = self._calls
        if call.index is None:
            if function.name or not calls:
                return None
            return calls.index(call.id) if call.id and call.id in calls else len(calls) - 1
        number = self._numbers.get(call.index)
        if number is None or not call.id or call.id == calls[number]:
            return number
        if call.id in calls and self._has_index(calls.index(call.id), call.index):
            return calls.index(call.id)
        return None if function.name else number

    def _has_index(self, number: int, index: int) -> bool:
        """Whether the server has given this index to a call."""
        return index in self._indices[number]


def split_content(content: str | Sequence[ContentPart | str] | None) -> tuple[str, str]:
    """Return the text and the reasoning of a content."""
    if content is None or isinstance(content, str):
        return content or "", ""
    texts, reasoning = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        else:
            texts.append(part.text or "")
            reasoning.append(split_content(part.thinking)[0])
    return "".join(texts), "".join(reasoning)
