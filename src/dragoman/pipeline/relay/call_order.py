"""Puts the parts of calls into order: one call after the other, each as a whole.

Clients read a call until the next one begins, but a server may interleave the parts of several
calls. Parts of the first incomplete call are sent as they arrive. Parts of later ones wait until
its arguments are complete, or the answer ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dragoman.events import Delta

NO_ARGUMENTS = "{}"


class CallOrder:
    """The calls of a choice."""

    def __init__(self, index: int) -> None:
        self._index = index  # of the choice
        self._arguments: list[list[str]] = []  # the parts of each call that have come
        self._waiting: list[list[Delta]] = []  # parts of each call that have not been sent
        self._current = 0  # the call whose parts are sent at once; those before it are complete

    def begin(self, name: str, call_id: str) -> Iterator[Delta]:
        """Begin the next call; yield what can be sent."""
        number = len(self._arguments)
        self._arguments.append([])
        self._waiting.append([Delta(self._index, name, "tool_name", number, id=call_id)])
        yield from self._send()

    def add(self, number: int, arguments: str) -> Iterator[Delta]:
        """Add a part of the arguments of a call; yield what can be sent."""
        if number < self._current:
            return  # it is complete, so whatever this is would break it
        self._arguments[number].append(arguments)
        self._waiting[number].append(Delta(self._index, arguments, "tool_args", number))
        yield from self._send()

    def end(self, *, is_cut: bool) -> Iterator[Delta]:
        """Yield what is left; a call without arguments gets an empty object, unless it is cut."""
        count = len(self._arguments)
        for number in range(self._current, count):
            yield from self._take(number)
            if not self._arguments[number] and not (is_cut and number == count - 1):
                yield Delta(self._index, NO_ARGUMENTS, "tool_args", number)

    def _send(self) -> Iterator[Delta]:
        yield from self._take(self._current)
        while self._current + 1 < len(self._arguments) and self._is_complete():
            self._current += 1
            yield from self._take(self._current)

    def _take(self, number: int) -> list[Delta]:
        parts, self._waiting[number] = self._waiting[number], []
        return parts

    def _is_complete(self) -> bool:
        """Whether the arguments of the current call are a whole object."""
        parts = self._arguments[self._current]
        last = next(filter(str.strip, reversed(parts)), "")
        if not last.rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode("".join(parts))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True
