"""Ends an answer that makes the same call too often, or more calls than it may.

Small models that must call a tool tend to repeat one call until the token limit. A call that a
client has received cannot be taken back, so a call is held back for as long as it reads like one
that may not be repeated. If it ends like that one, it is dropped and the answer ends; if not, it is
released. Two calls are the same if they have the same tool and the same arguments, in whatever
order and with whatever white space; if they differ in those, the second one is sent before the
answer ends.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from dragoman.events import Delta
from dragoman.presets.options import DEFAULT_MAX_TOOL_CALLS
from dragoman.replay.digest import normalize_arguments


class CallLimits(Struct, frozen=True):
    """How many calls an answer may make."""

    total: int | None = None  # None is any number
    same: int = DEFAULT_MAX_TOOL_CALLS  # of one tool with the same arguments


class CallLimiter:
    """Decides which calls of one answer may be sent, and when the answer ends."""

    def __init__(self, limits: CallLimits) -> None:
        self.is_open = False  # a call is being made
        self.is_over = False  # the answer ends here
        self.names: list[str] = []  # of the tools that were called
        self._limits = limits
        self._arguments: list[str] = []  # of the open call
        self._length = 0  # characters of these arguments
        self._made: Counter[tuple[str, bytes]] = Counter()
        self._last: dict[str, list[str]] = {}  # by tool, arguments that may not be repeated
        self._candidates: list[str] = []  # those of them with which the open call may end
        self._held: list[Delta] = []

    @property
    def arguments(self) -> str:
        """The arguments of the last call."""
        return "".join(self._arguments)

    def start_call(self, delta: Delta) -> list[Delta]:
        """Start a call; return the deltas that may be sent."""
        if self._limits.total is not None and len(self.names) >= self._limits.total:
            self.is_over = True
            return []
        self.is_open = True
        self.names.append(delta.text)
        self._arguments, self._length = [], 0
        self._candidates = self._last.get(delta.text, [])
        return self._hold_or_send(delta)

    def add_arguments(self, delta: Delta) -> list[Delta]:
        """Add arguments to the open call; return the deltas that may be sent."""
        if self._candidates:
            start, text = self._length, delta.text
            self._candidates = [
                earlier for earlier in self._candidates if earlier.startswith(text, start)
            ]
        self._arguments.append(delta.text)
        self._length += len(delta.text)
        return self._hold_or_send(delta)

    def end_call(self) -> list[Delta]:
        """End the open call; return the deltas that may be sent.

        A call beyond a limit ends the answer.
        """
        self.is_open = False
        name, arguments = self.names[-1], self.arguments
        call = name, normalize_arguments(arguments)
        self._made[call] += 1
        if self._made[call] > self._limits.same:
            self.is_over = True
            if self._held:
                self._held.clear()
                self.names.pop()
            return []
        if self._made[call] == self._limits.same:
            self._last.setdefault(name, []).append(arguments)
        return self.release()

    def release(self) -> list[Delta]:
        """Return the deltas that are held back."""
        held, self._held = self._held, []
        return held

    def _hold_or_send(self, delta: Delta) -> list[Delta]:
        if self._candidates:
            self._held.append(delta)
            return []
        return [*self.release(), delta] if self._held else [delta]
