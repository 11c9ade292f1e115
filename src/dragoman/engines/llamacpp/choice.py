"""Tracks one choice of an answer through the server's events.

`ChoiceProgress` takes tokens and returns steps: it knows where a stop token or the limit ends the
choice, and which tokens are missing when a request ends before the choice does. It does no input or
output.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.llamacpp.params import DraftTimings, NativeEvent
from dragoman.engines.token_mask import GrammarState
from dragoman.types import Job, Logprob, Step, StepFinish


class GgufVocabulary(Struct, frozen=True):
    """The facts about the model's tokens that the engine needs."""

    size: int
    eos_ids: frozenset[int]
    pieces: list[bytes] | None = None  # None: this kind of vocabulary cannot be rebuilt
    ordinary_id: int = 0  # an ordinary token that is text by itself
    control_ids: tuple[int, ...] = ()  # tokens that no grammar allows unless it names them
    special_ids: frozenset[int] = frozenset()  # tokens that a text is split at, if it spells them


class ChoiceProgress:
    """A choice that is being generated, by one or several requests to the server."""

    def __init__(self, choice: int, max_tokens: int, stop_ids: frozenset[int]) -> None:
        self.choice = choice
        self.ids: list[int] = []
        self.remaining = max_tokens
        self.has_request_ended = False  # the current request has no more for this choice
        self.has_ended_early = False  # the request ended before all requested tokens were reported
        self.lost_tokens = 0  # tokens at the end of a request that were not reported
        self.finish: StepFinish | None = None
        self.prompt_tokens: int | None = None  # reported with the next step
        self.cached_tokens: int | None = None
        self.grammar: GrammarState | None = None
        self.drafts: DraftTimings | None = None  # of the current request
        self.stop_ids = stop_ids
        self._requested = 0
        self._predicted = 0

    def start_request(self, max_tokens: int) -> None:
        self.has_request_ended, self.has_ended_early, self.lost_tokens = False, False, 0
        self._requested, self._predicted = max_tokens, 0

    def count_new_tokens(self, event: NativeEvent) -> int:
        """Return how many new tokens the event reports."""
        new = event.tokens_predicted - self._predicted
        self._predicted = event.tokens_predicted
        return new

    def end_request(self, event: NativeEvent) -> None:
        """Record that the request has no more tokens for this choice."""
        if not self.has_request_ended:
            self.lost_tokens = self.count_new_tokens(event)
            self.has_ended_early = self._predicted < self._requested
            self.has_request_ended = True

    def add_next_token(self, ids: list[int], predicted: int) -> list[Step] | None:
        """Add one token; None, and no change, if it is not the next one or ends the choice."""
        if (
            predicted != self._predicted + 1
            or self.remaining <= 1
            or self.prompt_tokens is not None
            or ids[0] in self.stop_ids
        ):
            return None
        self._predicted = predicted
        self.ids += ids
        self.remaining -= 1
        return [Step(self.choice, None, ids, 1, [])]

    def add_tokens(self, ids: list[int], logprobs: list[Logprob]) -> list[Step]:
        """Add tokens, with a logprob for each or none at all."""
        is_plain = len(ids) == 1 and self.remaining > 1 and self.prompt_tokens is None
        if is_plain and ids[0] not in self.stop_ids:  # the usual case
            self.ids.append(ids[0])
            self.remaining -= 1
            return [Step(self.choice, None, ids, 1, logprobs)]
        end = next((index for index, token in enumerate(ids) if token in self.stop_ids), len(ids))
        accepted = ids[: min(end, self.remaining)]
        is_stopped = end == len(accepted) and end < len(ids) and end < self.remaining
        self.ids += accepted
        self.remaining -= len(accepted)
        if self.remaining <= 0:
            self._finish("length")
        steps = []
        if accepted:
            count = len(accepted)
            steps.append(self._make_step(None, accepted, count, logprobs[:count]))
        if is_stopped:
            self._finish("stop")
            steps.append(self._make_step(None, [], 1, logprobs[end : end + 1], ids[end]))
        return steps

    def add_text(self, text: str, count: int, last: int) -> list[Step]:
        """Add the text of tokens of which only the last one is known."""
        stop_id = last if last in self.stop_ids else None
        self.remaining -= count
        if stop_id is not None:
            self._finish("stop")
        elif self.remaining <= 0:
            self._finish("length")
        return [self._make_step("" if stop_id is not None else text, [], count, [], stop_id)]

    def end_by_length(self, count: int = 0) -> list[Step]:
        """End the choice by length; the ids of its last `count` tokens are unknown."""
        self._finish("length")
        return [self._make_step(None, [], count, [])]

    def end_by_stop(self, count: int = 0) -> list[Step]:
        """End the choice by a stop token that is not known, after `count` unknown tokens."""
        self._finish("stop")
        return [self._make_step(None, [], count, [])]

    def _finish(self, finish: StepFinish) -> None:
        self.finish, self.has_request_ended = finish, True

    def _make_step(
        self,
        text: str | None,
        ids: list[int],
        count: int,
        logprobs: list[Logprob],
        stop_id: int | None = None,
    ) -> Step:
        prompt, cached = self.prompt_tokens, self.cached_tokens
        self.prompt_tokens = self.cached_tokens = None
        step = Step(self.choice, text, ids, count, logprobs, self.finish, stop_id, prompt, cached)
        if self.finish is None or self.drafts is None:
            return step
        return replace(step, drafts=(self.drafts.draft_n, self.drafts.draft_n_accepted))


def get_stop_ids(job: Job, vocabulary: GgufVocabulary) -> frozenset[int]:
    return vocabulary.eos_ids | frozenset(job.sampling.stop_token_ids or ())
