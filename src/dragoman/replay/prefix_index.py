"""Indexes the last prompts and answers of a model, to measure how much of a new prompt is known.

Token ids are packed in four bytes each and compared as bytes. A sequence that continues another one
replaces it, so a conversation is stored once, however long it gets.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from dragoman.types.common_prefix import count_common_prefix

MAX_SEQUENCES = 64
MAX_BYTES = 16 << 20
WIDTH = 4  # bytes of a packed token id


def pack_ids(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    return tuple(array("i", data))


class PrefixIndex:
    """Token sequences of one model, each with its owner, the newest first."""

    def __init__(self, max_sequences: int = MAX_SEQUENCES, max_bytes: int = MAX_BYTES) -> None:
        self._max_sequences = max_sequences
        self._max_bytes = max_bytes
        self._sequences: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def add(self, owner: str, sequence: bytes) -> None:
        for index, (known_owner, known) in enumerate(self._sequences):
            if known_owner == owner and sequence.startswith(known):
                del self._sequences[index]
                self._bytes -= len(known)
                break
        self._sequences.appendleft((owner, sequence))
        self._bytes += len(sequence)
        while len(self._sequences) > self._max_sequences or self._bytes > self._max_bytes:
            self._bytes -= len(self._sequences.pop()[1])

    def match(self, owner: str, sequence: bytes) -> tuple[int, bool]:
        """Return the length in tokens of the longest known prefix.

        The second value is whether the known sequence continues differently from there.
        """
        best, diverged = 0, False
        for known_owner, known in self._sequences:
            if known_owner != owner or not known.startswith(sequence[: best + WIDTH]):
                continue
            best = count_common_prefix(known, sequence, start=best, step=WIDTH)
            diverged = best < len(known) and best < len(sequence)
            if best == len(sequence):
                break
        return best // WIDTH, diverged
