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
        self.remaining = budget
        self.request_ended = False  # the present request has no more for this choice
        self.ended_early = False  # it ended before it had told as many tokens as were asked for
        self.lost_tokens = 0  # tokens at the end of a request that nobody told us
        self.finish: StepFinish | None = None
        self.prompt_tokens: int | None = None  # counts that go out with the next step
        self.cached_tokens: int | None = None
        self.grammar: Any = None  # follows what is said, where a grammar must be kept to
        self._asked = 0
        self._counted = 0
        self._stops = stops

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stops

    def start_request(self, asked: int) -> None:
        """A new request takes over."""
        self.request_ended, self.ended_early, self.lost_tokens = False, False, 0
        self._asked, self._counted = asked, 0

    def count_new_tokens(self, event: NativeEvent) -> int:
        """How many tokens the event stands for."""
        fresh = event.tokens_predicted - self._counted
        self._counted = event.tokens_predicted
        return fresh

    def end_request(self, event: NativeEvent) -> None:
        """The request is over for this choice."""
        if not self.request_ended:
            self.lost_tokens = self.count_new_tokens(event)
            self.ended_early = self._counted < self._asked
            self.request_ended = True

    def add_tokens(self, ids: list[int], marks: list[Logprob]) -> list[Step]:
        """Tokens that came, with a logprob for each or none at all."""
        at = next((at for at, token in enumerate(ids) if token in self._stops), len(ids))
        kept = ids[: min(at, self.remaining)]
        stop = ids[at] if at == len(kept) and at < len(ids) and at < self.remaining else None
        self.ids += kept
        self.remaining -= len(kept)
        if self.remaining <= 0:
            self._close("length")
        steps = [self._step(None, kept, len(kept), marks[: len(kept)])] if kept else []
        if stop is not None:
            self._close("stop")
            steps.append(self._step(None, [], 1, marks[at : at + 1], stop))
        return steps

    def add_text(self, text: str, count: int, last: int) -> list[Step]:
        """Text whose tokens are not known, but for the last one."""
        stop = last if last in self._stops else None
        self.remaining -= count
        if stop is not None:
            self._close("stop")
        elif self.remaining <= 0:
            self._close("length")
        return [self._step("" if stop is not None else text, [], count, [], stop)]

    def end_by_length(self, count: int = 0) -> list[Step]:
        """End by length, with so many tokens of which nothing is known."""
        self._close("length")
        return [self._step(None, [], count, [])]

    def _close(self, finish: StepFinish) -> None:
        self.finish, self.request_ended = finish, True

    def _step(
        self,
        text: str | None,
        ids: list[int],
        count: int,
        marks: list[Logprob],
        stop: int | None = None,
    ) -> Step:
        prompt, cached = self.prompt_tokens, self.cached_tokens
        self.prompt_tokens = self.cached_tokens = None
        return Step(self.choice, text, ids, count, marks, self.finish, stop, prompt, cached)


def get_stop_ids(job: Job, vocabulary: GgufVocabulary) -> frozenset[int]:
    return vocabulary.eos_ids | frozenset(job.sampling.stop_token_ids or ())
