"""Pauses owners whose requests make an engine die repeatedly, each time with another request.

A request that crashes the engine twice is refused (`suspects`), but its owner may change it. So the
deaths of an engine are counted by owner, too. An owner is known by its cache scope; where no API
key is required there is none, and nothing here applies.

A request that crashes an engine usually does so before its first token. So a death is counted
against the owners of requests that had no token yet; if there was none, against all that were
running. The candidates are the owners that every recent death was counted against. An innocent
owner is soon eliminated, unless it always starts requests at the same time as the guilty one; while
there are several candidates, nobody is refused.

A death whose cause is unclear, because the engine was killed or hung, may come from a request (too
much memory, an endless loop) or from outside: an operator, the kernel, a stopped process. Deaths
from outside come at any moment, and between two of them a busy owner gets answers. So such a death
is counted only against owners to whom the dead process had given nothing at all, neither a token
nor a result, and the last candidate is paused only if others did get something. An owner some of
whose requests are answered cannot be distinguished from an innocent one, and is not paused.

A single candidate is paused from the third death on, for a time that doubles with each death: its
requests are refused with `TooManyCrashes`, and all others are served. An owner that was alone in
three deaths is paused even if others have crashed the engine in between. An owner that was found by
elimination is cleared by the next death in which it had no request. An owner that uses the engine
alone is not paused either, since that would help nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from msgspec import Struct

from dragoman.errors import TooManyCrashes
from dragoman.types.bounded_cache import BoundedCache

MAX_OWNER_DEATHS = 3
MAX_OWNERS = 1024
FIRST_PAUSE, MAX_PAUSE = 10.0, 120.0  # seconds
REMEMBER_OWNER_SECONDS = 3600.0


class CrashHistory(Struct):
    """The deaths that were counted against one owner, and its pause."""

    deaths_alone: int = 0  # deaths in which no other owner had a request
    last_death: float = 0.0
    paused_until: float = 0.0


class DeathSeries(Struct):
    """Deaths that have an owner in common."""

    candidates: frozenset[str] = frozenset()
    deaths: int = 0
    last_death: float = 0.0
    answered: frozenset[str] = frozenset()  # owners that got something since the first of them

    def add(self, involved: frozenset[str], now: float) -> None:
        common = self.candidates & involved
        if not common or now - self.last_death > REMEMBER_OWNER_SECONDS:
            common, self.deaths, self.answered = involved, 0, frozenset()
        self.candidates, self.last_death = common, now
        self.deaths += 1

    @property
    def culprit(self) -> str:
        """The only candidate; empty if there is none, or several."""
        return next(iter(self.candidates)) if len(self.candidates) == 1 else ""


class CrashOwners:
    """The owners whose requests were running when one engine died, across its restarts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._histories = BoundedCache[str, CrashHistory](max_entries=MAX_OWNERS)
        self._last_calls = BoundedCache[str, float](max_entries=MAX_OWNERS)
        self._crashes, self._unclear = DeathSeries(), DeathSeries()

    def blame(self, owners: Collection[str]) -> str:
        """Count a crash against the owners of running requests; return the one to blame, or ""."""
        now, involved = self._clock(), frozenset(owners)
        if not involved:
            return ""
        series = self._crashes
        self._clear_absent(series, involved)
        series.add(involved, now)
        owner, is_alone = series.culprit, len(involved) == 1
        return owner if owner and self._count(owner, series.deaths, is_alone=is_alone) else ""

    def blame_unclear(self, starters: Collection[str], answered: Collection[str]) -> str:
        """Like `blame`, for a death that may have come from outside.

        `answered` are the owners that got a token or a result from the engine that died.
        """
        now, given, series = self._clock(), frozenset(answered), self._unclear
        series.candidates -= given
        involved = frozenset(starters) - given
        if involved:
            self._clear_absent(series, involved)
            series.add(involved, now)
        series.answered |= given
        owner = series.culprit if involved else ""
        if not owner or not series.answered - {owner}:
            return ""
        return owner if self._count(owner, series.deaths) else ""

    def _clear_absent(self, series: DeathSeries, involved: frozenset[str]) -> None:
        """Clear an owner that was found by elimination, if it was not involved in this death."""
        owner = series.culprit
        if owner and owner not in involved:
            history = self._find(owner)
            if history is not None and history.deaths_alone < MAX_OWNER_DEATHS:
                history.paused_until = 0.0

    def _count(self, owner: str, deaths: int, *, is_alone: bool = False) -> bool:
        """Count a death against its only candidate; return whether the owner is paused."""
        now, history = self._clock(), self._find(owner) or CrashHistory()
        history.deaths_alone += is_alone
        history.last_death = now
        excess = max(deaths, history.deaths_alone) - MAX_OWNER_DEATHS
        if excess >= 0:
            history.paused_until = now + min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(excess, 30))
        self._histories.put(owner, history)
        return excess >= 0

    def check(self, owner: str) -> None:
        """Raise `TooManyCrashes` while an owner is paused; call it before each of its calls."""
        if not owner:
            return
        now = self._clock()
        self._last_calls.put(owner, now)
        history = self._find(owner)
        if history is None or history.paused_until <= now or not self._has_others(now):
            return
        seconds = history.paused_until - now
        raise TooManyCrashes(
            "Requests of this API key were running each time that the engine recently crashed or "
            f"hung, so its requests are refused for {seconds:.0f} seconds.",
            retry_after=seconds,
        )

    def _has_others(self, now: float) -> bool:
        """Whether several owners have used the engine recently."""
        recent = now - REMEMBER_OWNER_SECONDS
        return sum(last_call > recent for last_call in self._last_calls.values()) > 1

    def _find(self, owner: str) -> CrashHistory | None:
        history = self._histories.get(owner)
        if history is not None and self._clock() - history.last_death > REMEMBER_OWNER_SECONDS:
            self._histories.pop(owner)
            return None
        return history
