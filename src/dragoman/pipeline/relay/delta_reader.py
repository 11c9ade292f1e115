"""Reads the deltas that a chat-only server has made."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from dragoman.errors import EngineFailed
from dragoman.events import Delta, Finish
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.reader import Reader, get_finish
from dragoman.types import (
    Job,
    Step,
)


class CallFunction(Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: CallFunction | None = None


class RelayDelta(Struct):
    """What a frame adds. Servers write reasoning under one of two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None


decode = msgspec.json.Decoder(RelayDelta).decode


class RelayReader(Reader):
    """Reads a choice whose deltas another server has made."""

    def __init__(self, index: int, job: Job, *, include_reasoning: bool, first: bool) -> None:
        super().__init__(index, job, Detokenizer(None, frozenset(), (), False), "", first=first)
        self._job_id = job.id
        self._include_reasoning = include_reasoning
        self._calls = 0  # so far

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
            deltas.append(Delta(self._index, finish=finish, usage=self._make_usage(step)))
        return deltas

    def _read(self, line: str) -> Iterator[Delta]:
        try:
            delta = decode(line)
        except msgspec.DecodeError:
            raise EngineFailed("The upstream server returned an invalid answer.") from None
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and self._include_reasoning:
            yield Delta(self._index, reasoning, "reasoning")
        text = delta.content or delta.refusal
        if text:
            yield Delta(self._index, text)
        for call in delta.tool_calls or ():
            yield from self._read_call(call)

    def _read_call(self, call: CallDelta) -> Iterator[Delta]:
        """Read a part of a call; some servers send calls without an index, each as a whole."""
        function = call.function or CallFunction()
        number = call.index
        if number is None:
            number = self._calls if function.name else self._calls - 1
        if number == self._calls and function.name:
            self._calls += 1
            self.call_names.append(function.name)
            unique_id = call.id or f"call_{self._job_id[-16:]}_{self._index}_{number}"
            if not call.id:
                self.generated_call_ids.add(unique_id)
            yield Delta(self._index, function.name, "tool_name", number, id=unique_id)
        if not 0 <= number < self._calls:
            raise EngineFailed("The upstream server returned an invalid answer.")
        if function.arguments:
            yield Delta(self._index, function.arguments, "tool_args", number)
