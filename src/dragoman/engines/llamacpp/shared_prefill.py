"""Computes the common beginning of concurrent prompts once, for all of them.

Each slot has a KV cache of its own, so that requests with the same long prompt would all process it
at once, each in its slot. Instead, the first one of a label *leads*: its prompt is processed by a
request that generates nothing. Another job of the same label whose prompt begins alike *follows*:
it keeps its slot and waits. If there are followers when the leader's prompt is done, the state of
its slot is saved (`saved_states`, within its limit of bytes) and restored into theirs. Then all of
them generate. A follower that gets no state after all (the leader was cancelled or failed, or its
state is too large to be saved) leads itself, or processes its prompt alone.

No job waits for a follower, and a leader waits for no job, so there is no deadlock. A prompt that
is processed quickly is not shared: the additional request would take longer than it saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from dragoman.engines.llamacpp.slot import CacheLabel
from dragoman.types.common_prefix import count_common_prefix

MIN_SHARED = 256  # tokens of a prompt; fewer are not worth waiting for
MIN_SECONDS = 0.1  # to process them; less is not worth waiting for
MAX_WAITS = 2  # of one job, for one leader after the other


class LeadingPrefill(Struct, eq=False):
    """A prompt that is being processed, and the number of jobs that wait for it."""

    label: CacheLabel
    prompt: Sequence[int]
    is_done: asyncio.Event
    followers: int = 0

    async def wait(self) -> None:
        """Wait until the prompt is processed, or its leader has failed."""
        self.followers += 1
        try:
            await self.is_done.wait()
        finally:
            self.followers -= 1


class SharedPrefills:
    """The prompts of all slots that are being processed for others, too."""

    def __init__(self, estimate_seconds: Callable[[int], float]) -> None:
        """`estimate_seconds` returns how long a number of tokens takes."""
        self.min_tokens, self.min_seconds = MIN_SHARED, MIN_SECONDS
        self._estimate_seconds = estimate_seconds
        self._leading: list[LeadingPrefill] = []

    def is_worthwhile(self, tokens: int) -> bool:
        """Whether this many tokens take long enough to process them for other jobs, too."""
        return tokens >= self.min_tokens and self._estimate_seconds(tokens) >= self.min_seconds

    def find(self, label: CacheLabel, prompt: Sequence[int], known: int) -> LeadingPrefill | None:
        """Return the prompt to follow: one that shares much more than is cached already."""
        candidates = [leading for leading in self._leading if leading.label == label]
        best = max(
            candidates, key=lambda other: count_common_prefix(other.prompt, prompt), default=None
        )
        if best is None or not self.is_worthwhile(count_common_prefix(best.prompt, prompt) - known):
            return None
        return best

    @contextmanager
    def lead(self, label: CacheLabel, prompt: Sequence[int]) -> Iterator[LeadingPrefill]:
        """Process a prompt inside this block; followers are woken at its end."""
        leading = LeadingPrefill(label, prompt, asyncio.Event())
        self._leading.append(leading)
        try:
            yield leading
        finally:
            self._leading.remove(leading)
            leading.is_done.set()
