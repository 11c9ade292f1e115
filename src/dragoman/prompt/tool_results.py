"""Finds the call that each tool result answers.

A result with an id answers the first open call that has it. One without an id answers the first
open call of its function, or the first open call if it names no function. A call is open until a
result answers it or the assistant calls again. Consecutive results are put in the order of their
calls, with the results that answer no call after them.

A client may send any number of calls and results, so neither list is ever searched for the other.
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

# Positions of calls in their turn; removing the first item of a plain dict repeatedly is slow
Positions: TypeAlias = OrderedDict[int, None]


def match_results(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Put results in the order of their calls, each with the id and the function of its call."""
    calls = OpenCalls(())
    for are_results, run in groupby(turns, lambda turn: turn.role == "tool"):
        if are_results:
            yield from calls.match(run)
            continue
        for turn in run:
            if turn.tool_calls:
                calls = OpenCalls(turn.tool_calls)
            yield turn


class OpenCalls:
    """The calls of a turn that no result has answered yet."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = calls
        self._open: Positions = OrderedDict.fromkeys(range(len(calls)))
        self._by_id: dict[str, Positions] = {}
        self._by_name: dict[str, Positions] = {}
        for position, call in enumerate(calls):
            self._by_id.setdefault(call.id, OrderedDict())[position] = None
            self._by_name.setdefault(call.name, OrderedDict())[position] = None

    def match(self, results: Iterable[Turn]) -> list[Turn]:
        """Return consecutive results in order, and close the calls that they answer."""
        placed, last = [], dict[str | None, int]()
        for result in results:
            position = self._find_call(result)
            if position is not None:
                call = self._calls[position]
                self._close(position)
                last[call.id] = position
                result = replace(result, tool_call_id=call.id, name=result.name or call.name)
            else:  # another result for the same call follows the first one, all others come last
                position = last.get(result.tool_call_id, len(self._calls))
            placed.append((position, result))
        return [result for _, result in sorted(placed, key=itemgetter(0))]

    def _find_call(self, result: Turn) -> int | None:
        """Return the position of the call that a result answers."""
        if result.tool_call_id is not None:
            candidates = self._by_id.get(result.tool_call_id)
        else:
            candidates = self._open if result.name is None else self._by_name.get(result.name)
        return next(iter(candidates), None) if candidates else None

    def _close(self, position: int) -> None:
        call = self._calls[position]
        del self._open[position], self._by_id[call.id][position], self._by_name[call.name][position]
