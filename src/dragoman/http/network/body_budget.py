"""How much memory the bodies of all requests may take together.

One body has a limit of its own, but a hundred at once can take more memory than the machine has.
Messages on WebSockets count like bodies, from their first byte until they are answered.
Bytes are counted as they arrive, not as headers announce them, and until the request ends, or its
response in the background: what was decoded from a body is as large as the body. A request that
exceeds the budget gets 503 with Retry-After, before the system runs out of memory at a random
place.

The bodies of one owner may take no more than they leave free, like its requests in a queue. So an
owner alone gets at most half of the budget, and however slowly it sends, others find room. Without
API keys there are no owners.
"""

from __future__ import annotations

from dragoman.errors import OutOfMemory

MAXIMUM = 1 << 30  # bytes
SHARE = 8  # of the memory for this process; a body is in memory more than once while it is decoded


class BodyBudget:
    """The bytes that bodies may still take, in a process with `memory` bytes."""

    def __init__(self, memory: int) -> None:
        self.left = min(MAXIMUM, memory // SHARE)  # bytes
        self._taken: dict[str, int] = {}  # by owner

    def open_hold(self, owner: str = "") -> BodyHold:
        return BodyHold(self, owner)

    def take(self, size: int, owner: str = "") -> None:
        left = self.left - size
        if left < 0 or (owner and self._taken.get(owner, 0) + size > left):
            raise OutOfMemory(
                "The server is receiving too many large requests at once.", retry_after=1
            )
        self._change(owner, size)

    def give_back(self, size: int, owner: str = "") -> None:
        self._change(owner, -size)

    def _change(self, owner: str, size: int) -> None:
        self.left -= size
        taken = self._taken.pop(owner, 0) + size
        if taken:
            self._taken[owner] = taken


UNLIMITED = BodyBudget(MAXIMUM * SHARE)


class BodyHold:
    """What one request has taken of the budget."""

    def __init__(self, budget: BodyBudget, owner: str = "") -> None:
        self._budget = budget
        self._owner = owner
        self._taken = 0

    def set_owner(self, owner: str) -> None:
        """Count what it takes as that of an owner; before it has taken anything."""
        self._owner = owner

    def grow(self, size: int) -> None:
        """Take bytes that have arrived, or raise `OutOfMemory`."""
        self._budget.take(size, self._owner)
        self._taken += size

    def resize(self, size: int) -> None:
        """Hold this many bytes, or raise `OutOfMemory` and hold as many as before."""
        if size > self._taken:
            self.grow(size - self._taken)
        else:
            self._budget.give_back(self._taken - size, self._owner)
            self._taken = size

    def release(self) -> None:
        taken, self._taken = self._taken, 0
        self._budget.give_back(taken, self._owner)
