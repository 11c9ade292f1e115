"""The last prompts of a model with their answers, to say how much of a new one was there before.

Tokens are bytes here, four each, and are compared as such. A sequence that goes on from another
takes its place, so a conversation is kept once, however long it gets.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

MOST = 64
BYTES = 16 << 20
WIDTH = 4


def pack_ids(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    return tuple(array("i", data))


class PrefixIndex:
    """Sequences of one model, each somebody's, the newest first."""

    def __init__(self, most: int = MOST, size: int = BYTES) -> None:
        self._most = most
        self._size = size
        self._kept: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def add(self, owner: str, sequence: bytes) -> None:
        for at, (whose, known) in enumerate(self._kept):
            if whose == owner and sequence.startswith(known):
                del self._kept[at]
                self._bytes -= len(known)
                break
        self._kept.appendleft((owner, sequence))
        self._bytes += len(sequence)
        while len(self._kept) > self._most or self._bytes > self._size:
            self._bytes -= len(self._kept.pop()[1])

    def match(self, owner: str, sequence: bytes) -> tuple[int, bool]:
        """How many tokens were there before, and whether that one goes on in another way."""
        best, left = 0, False
        for whose, known in self._kept:
            if whose != owner or not known.startswith(sequence[: best + WIDTH]):
                continue
            best = _shared(known, sequence, best)
            left = best < len(known) and best < len(sequence)
            if best == len(sequence):
                break
        return best // WIDTH, left


def _shared(one: bytes, two: bytes, sure: int) -> int:
    """Bytes of whole tokens that both begin with, of which some are known to be the same."""
    low, high = sure, min(len(one), len(two))
    if one[low:high] == two[low:high]:
        return high
    while high - low > WIDTH:
        middle = low + (high - low) // (2 * WIDTH) * WIDTH
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low
