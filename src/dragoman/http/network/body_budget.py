"""How much memory the bodies of all requests may take together.

One body has a limit of its own, but a hundred at once can take more memory than the machine has.
Bytes are counted as they arrive, not as headers announce them, and until the request ends: what
was decoded from a body is as large as the body. A request that exceeds the budget gets 503 with
Retry-After, before the system runs out of memory at a place that nobody chose.
"""

from __future__ import annotations

import resource

from dragoman.engines.system_memory import read_available_memory
from dragoman.errors import OutOfMemory

MAXIMUM = 1 << 30  # bytes
SHARE = 8  # of the memory for this process; a body is in memory more than once while it is decoded


def find_budget() -> int:
    """Return the budget in bytes that suits the machine and the limits of the process."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    known = [read_available_memory(), *(limit for limit in limits if limit > 0)]
    return min(MAXIMUM, min(known) // SHARE)


class BodyBudget:
    """The bytes that bodies may still take."""

    def __init__(self, size: int | None = None) -> None:
        self._left = find_budget() if size is None else size

    def open_hold(self) -> BodyHold:
        return BodyHold(self)

    def take(self, size: int) -> None:
        if size > self._left:
            raise OutOfMemory(
                "The server is receiving too many large requests at once.", retry_after=1
            )
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


class BodyHold:
    """What one request has taken of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken = 0

    def grow(self, size: int) -> None:
        """Take bytes that have arrived, or raise `OutOfMemory`."""
        self._budget.take(size)
        self._taken += size

    def release(self) -> None:
        taken, self._taken = self._taken, 0
        self._budget.give_back(taken)
