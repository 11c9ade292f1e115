"""Reads the deltas that a chat-only server has made."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from dragoman.errors import EngineFailed
from dragoman.events import Delta, Finish
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.reader import Reader, get_finish
from dragoman.types import Job, Json, Step


class CallFunction(Struct):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None  # some servers send the object itself


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
        self._calls: list[str | None] = []  # the ids that the server has given them
        self._numbers: dict[int, int] = {}  # the server's index -> the latest call with it

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
        function = call.function or CallFunction()
        number = self._find_call(call, function)
        if number is None and function.name:
            number = len(self._calls)
            self._calls.append(call.id)
            self.call_names.append(function.name)
            unique_id = call.id or f"call_{self._job_id[-16:]}_{self._index}_{number}"
            if not call.id:
                self.generated_call_ids.add(unique_id)
            yield Delta(self._index, function.name, "tool_name", number, id=unique_id)
        if number is None:
            raise EngineFailed("The upstream server returned an invalid answer.")
        if call.index is not None:
            self._numbers[call.index] = number
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            yield Delta(self._index, arguments, "tool_args", number)

    def _find_call(self, call: CallDelta, function: CallFunction) -> int | None:
        """Return the call that a part continues; None if it begins another one.

        Some servers send calls without an index, each as a whole, or all with the same index.
        """
        if call.index is None:
            return None if function.name or not self._calls else len(self._calls) - 1
        number = self._numbers.get(call.index)
        if number is not None and function.name and call.id and call.id != self._calls[number]:
            return None
        return number
