"""Owners whose requests crash an engine again and again, each time with another request.

A request that crashes the engine twice is refused (`suspects`), but its owner may change it. So the
deaths of an engine are counted by owner, too. An owner is known by its cache scope; where no API
key is required there is none, and nothing here applies. A death by SIGKILL is not counted: an
operator, the kernel or the watch for hangs has killed the engine, and whose requests it ran then
says little.

A request that crashes an engine mostly does so before its first token. So a death is counted
against the owners of requests that had no token yet; if there was none, against all that were
running. The candidates are the owners that each of the last deaths was counted against. Who merely
ran beside the one that crashes the engine is not among them for long, unless it always starts
requests at the same time; as long as there are several candidates, nobody is refused.

A single candidate is paused from the third death on, for a time that doubles with each death: its
requests are refused with `TooManyCrashes`, and all others are served. An owner that was alone in
three deaths is paused although others have crashed the engine in between. A death without an owner
that became the only candidate by elimination clears it. An owner that nobody shares the engine with
is not paused either, since that would help nobody.
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
    """What is known of one owner."""

    deaths_alone: int = 0  # in which nobody else had a request
    last_death: float = 0.0
    paused_until: float = 0.0


class CrashOwners:
    """The owners whose requests were running when one engine died, across its restarts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._histories = BoundedCache[str, CrashHistory](max_entries=MAX_OWNERS)
        self._last_calls = BoundedCache[str, float](max_entries=MAX_OWNERS)
        self._candidates: frozenset[str] = frozenset()
        self._deaths = 0  # that all candidates have in common
        self._last_death = 0.0

    def blame(self, owners: Collection[str]) -> str:
        """Note whose requests were running in a death; return whom it is counted against, or ""."""
        now, involved = self._clock(), frozenset(owners)
        if not involved:
            return ""
        self._clear_absent(involved)
        common = self._candidates & involved
        if not common or now - self._last_death > REMEMBER_OWNER_SECONDS:
            common, self._deaths = involved, 0
        self._candidates, self._last_death = common, now
        self._deaths += 1
        if len(common) > 1 or common == {""}:
            return ""
        (owner,) = common
        return owner if self._count(owner, is_alone=involved == common) else ""

    def _clear_absent(self, involved: frozenset[str]) -> None:
        """End the pause of an owner that was found by elimination, since it was not this one."""
        if len(self._candidates) == 1 and not self._candidates & involved:
            (owner,) = self._candidates
            history = self._find(owner)
            if history is not None and history.deaths_alone < MAX_OWNER_DEATHS:
                history.paused_until = 0.0

    def _count(self, owner: str, *, is_alone: bool) -> bool:
        """Count a death against its only candidate; whether the owner is paused."""
        now, history = self._clock(), self._find(owner) or CrashHistory()
        history.deaths_alone += is_alone
        history.last_death = now
        excess = max(self._deaths, history.deaths_alone) - MAX_OWNER_DEATHS
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
            "Requests of this API key were running each of the last times that the engine crashed "
            f"or hung, so its requests are refused for {seconds:.0f} seconds.",
            retry_after=seconds,
        )

    def _has_others(self, now: float) -> bool:
        """Whether several owners have used the engine of late."""
        recent = now - REMEMBER_OWNER_SECONDS
        return sum(last_call > recent for last_call in self._last_calls.values()) > 1

    def _find(self, owner: str) -> CrashHistory | None:
        history = self._histories.get(owner)
        if history is not None and self._clock() - history.last_death > REMEMBER_OWNER_SECONDS:
            self._histories.pop(owner)
            return None
        return history
