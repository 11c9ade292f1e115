"""Which call of a turn each result answers.

A result with an id answers the first open call that has it. One without answers the first open call
of its function, or the first of all if it names none. A call is open until it is answered, or until
the assistant calls again. Results in a row are put in the order of the calls that they answer, and
those that answer none behind them.

A client may send as many calls and results as it likes, so neither is ever searched for the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from msgspec.structs import replace

from dragoman.prompt.turn import Turn
from dragoman.types import ToolCall

Places: TypeAlias = OrderedDict[int, None]  # of calls in their turn; a plain dict is slow in front


def match_results(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Results in the order of the calls that they answer, each with its id and function."""
    calls = OpenCalls(())
    for results, run in groupby(turns, lambda turn: turn.role == "tool"):
        if results:
            yield from calls.answered(run)
            continue
        for turn in run:
            if turn.tool_calls:
                calls = OpenCalls(turn.tool_calls)
            yield turn


class OpenCalls:
    """The calls of a turn that no result has answered yet."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = calls
        self._open: Places = OrderedDict.fromkeys(range(len(calls)))
        self._ids: dict[str, Places] = {}
        self._names: dict[str, Places] = {}
        for at, call in enumerate(calls):
            self._ids.setdefault(call.id, OrderedDict())[at] = None
            self._names.setdefault(call.name, OrderedDict())[at] = None

    def answered(self, results: Iterable[Turn]) -> list[Turn]:
        """Results in a row, in order; what they answer is then no longer open."""
        placed, last = [], dict[str | None, int]()
        for result in results:
            at = self._answered_by(result)
            if at is not None:
                call = self._calls[at]
                self._close(at)
                last[call.id] = at
                result = replace(result, tool_call_id=call.id, name=result.name or call.name)
            else:  # one more for a call that has its answer goes there, any other behind
                at = last.get(result.tool_call_id, len(self._calls))
            placed.append((at, result))
        return [result for _, result in sorted(placed, key=itemgetter(0))]

    def _answered_by(self, result: Turn) -> int | None:
        """The place of the call that a result answers."""
        if result.tool_call_id is not None:
            fit = self._ids.get(result.tool_call_id)
        else:
            fit = self._open if result.name is None else self._names.get(result.name)
        return next(iter(fit), None) if fit else None

    def _close(self, at: int) -> None:
        call = self._calls[at]
        del self._open[at], self._ids[call.id][at], self._names[call.name][at]
