"""One choice of an answer, as the server's events tell of it.

A `Track` is fed with tokens and says which steps they make: where a stop token or the limit ends
the choice, and what is still owed when a request ends before the choice does. It knows nothing of
sockets.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from dragoman.engines.llamacpp_params import Event
from dragoman.types import Job, Logprob, Step, StepFinish


class Vocabulary(Struct, frozen=True):
    """What an engine must know of the model's tokens."""

    size: int
    ends: frozenset[int]
    pieces: list[bytes] | None = None  # None: this kind of vocabulary cannot be rebuilt
    plain: int | None = None  # an ordinary token that is text by itself
    controls: tuple[int, ...] = ()  # tokens that no grammar allows unless it names them


class Track:
    """A choice that grows."""

    def __init__(self, choice: int, budget: int, stops: frozenset[int]) -> None:
        self.choice = choice
        self.ids: list[int] = []
        self.left = budget
        self.over = False  # the present request has no more for this choice
        self.lost = 0  # tokens at the end of a request that nobody told us
        self.finish: StepFinish | None = None
        self._counted = 0
        self._stops = stops
        self._told: deque[tuple[int | None, int | None]] = deque()

    def tell(self, prompt: int | None, cached: int | None) -> None:
        """Put these counts on the next step."""
        self._told.append((prompt, cached))

    def begin(self) -> None:
        """A new request takes over."""
        self.over, self.lost, self._counted = False, 0, 0

    def new(self, event: Event) -> int:
        """How many tokens the event stands for."""
        fresh = event.tokens_predicted - self._counted
        self._counted = event.tokens_predicted
        return fresh

    def end(self, event: Event) -> list[Step]:
        """The request is over for this choice."""
        self.over = True
        self.lost = self.new(event)
        if self.finish is None and not self.lost and self.left > 0 and event.stop_type == "limit":
            return []
        return []

    def add(self, ids: list[int], marks: list[Logprob]) -> list[Step]:
        """Tokens that came, with a logprob for each or none at all."""
        steps = []
        at = next((at for at, token in enumerate(ids) if token in self._stops), None)
        kept = ids[: self.left] if at is None else ids[: min(at, self.left)]
        self.ids += kept
        self.left -= len(kept)
        stopped = at is not None and at == len(kept) and self.left > 0
        if self.left <= 0:
            self.finish = "length"
        if kept or self.finish:
            steps.append(self._step(kept, marks[: len(kept)]))
        if stopped:
            self.finish, self.left = "stop", self.left - 1
            end = self._step([], marks[len(kept) : len(kept) + 1], stop=ids[len(kept)])
            steps.append(end)
        if self.finish is not None:
            self.over = True
        return steps

    def _step(self, ids: list[int], marks: list[Logprob], stop: int | None = None) -> Step:
        prompt, cached = self._told.popleft() if self._told else (None, None)
        count = len(ids) + (stop is not None)
        return Step(self.choice, None, ids, count, marks, self.finish, stop, prompt, cached)

    def text(self, text: str, count: int, last: int) -> list[Step]:
        """Text whose tokens are not known, but for the last one."""
        stop = last if last in self._stops else None
        self.left -= count
        if stop is not None:
            self.finish, text = "stop", ""
        elif self.left <= 0:
            self.finish = "length"
        self.over = self.finish is not None
        prompt, cached = self._told.popleft() if self._told else (None, None)
        return [Step(self.choice, text, [], count, [], self.finish, stop, prompt, cached)]

    def cut(self, count: int = 0) -> list[Step]:
        """End by length, with so many tokens of which nothing is known."""
        self.finish, self.over, self.left = "length", True, 0
        prompt, cached = self._told.popleft() if self._told else (None, None)
        return [Step(self.choice, None, [], count, [], "length", None, prompt, cached)]


def stops_of(job: Job, vocabulary: Vocabulary) -> frozenset[int]:
    return vocabulary.ends | frozenset(job.sampling.stop_token_ids or ())
