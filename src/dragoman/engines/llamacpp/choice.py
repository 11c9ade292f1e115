"""One choice of an answer, as the server's events tell of it.

A `Track` is fed with tokens and says which steps they make: where a stop token or the limit ends
the choice, and what is still owed when a request ends before the choice does. It knows nothing of
sockets.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.engines.llamacpp.params import NativeEvent
from dragoman.types import Job, Logprob, Step, StepFinish


class GgufVocabulary(Struct, frozen=True):
    """What an engine must know of the model's tokens."""

    size: int
    eos_ids: frozenset[int]
    pieces: list[bytes] | None = None  # None: this kind of vocabulary cannot be rebuilt
    ordinary_id: int = 0  # an ordinary token that is text by itself
    control_ids: tuple[int, ...] = ()  # tokens that no grammar allows unless it names them


class ChoiceProgress:
    """A choice that grows."""

    def __init__(self, choice: int, budget: int, stops: frozenset[int]) -> None:
        self.choice = choice
        self.ids: list[int] = []
        self.left = budget
        self.over = False  # the present request has no more for this choice
        self.short = False  # it ended before it had told as many tokens as were asked for
        self.lost = 0  # tokens at the end of a request that nobody told us
        self.finish: StepFinish | None = None
        self.prompt: int | None = None  # counts that go out with the next step
        self.cached: int | None = None
        self.grammar: Any = None  # follows what is said, where a grammar must be kept to
        self._asked = 0
        self._counted = 0
        self._stops = stops

    @property
    def stops(self) -> frozenset[int]:
        return self._stops

    def begin(self, asked: int) -> None:
        """A new request takes over."""
        self.over, self.short, self.lost = False, False, 0
        self._asked, self._counted = asked, 0

    def new(self, event: NativeEvent) -> int:
        """How many tokens the event stands for."""
        fresh = event.tokens_predicted - self._counted
        self._counted = event.tokens_predicted
        return fresh

    def end(self, event: NativeEvent) -> None:
        """The request is over for this choice."""
        if not self.over:
            self.lost = self.new(event)
            self.short = self._counted < self._asked
            self.over = True

    def add(self, ids: list[int], marks: list[Logprob]) -> list[Step]:
        """Tokens that came, with a logprob for each or none at all."""
        at = next((at for at, token in enumerate(ids) if token in self._stops), len(ids))
        kept = ids[: min(at, self.left)]
        stop = ids[at] if at == len(kept) and at < len(ids) and at < self.left else None
        self.ids += kept
        self.left -= len(kept)
        if self.left <= 0:
            self._close("length")
        steps = [self._step(None, kept, len(kept), marks[: len(kept)])] if kept else []
        if stop is not None:
            self._close("stop")
            steps.append(self._step(None, [], 1, marks[at : at + 1], stop))
        return steps

    def read(self, text: str, count: int, last: int) -> list[Step]:
        """Text whose tokens are not known, but for the last one."""
        stop = last if last in self._stops else None
        self.left -= count
        if stop is not None:
            self._close("stop")
        elif self.left <= 0:
            self._close("length")
        return [self._step("" if stop is not None else text, [], count, [], stop)]

    def cut(self, count: int = 0) -> list[Step]:
        """End by length, with so many tokens of which nothing is known."""
        self._close("length")
        return [self._step(None, [], count, [])]

    def _close(self, finish: StepFinish) -> None:
        self.finish, self.over = finish, True

    def _step(
        self,
        text: str | None,
        ids: list[int],
        count: int,
        marks: list[Logprob],
        stop: int | None = None,
    ) -> Step:
        prompt, cached = self.prompt, self.cached
        self.prompt = self.cached = None
        return Step(self.choice, text, ids, count, marks, self.finish, stop, prompt, cached)


def get_stop_ids(job: Job, vocabulary: GgufVocabulary) -> frozenset[int]:
    return vocabulary.eos_ids | frozenset(job.sampling.stop_token_ids or ())
