"""One choice of an answer: what a server sends for it, checked and made into steps.

A server is not trusted to keep its promises. Ids must be ids of the vocabulary, tokens under a
grammar are replayed through our own matcher, and an answer that ends early under a grammar is an
error, not a shorter answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from dragoman.engines.grammar import check_tokens_allowed
from dragoman.engines.remote.failures import InvalidFrame
from dragoman.engines.token_mask import GrammarState, make_dead_end_error
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Job, Logprob, Step, StepFinish
from dragoman.types.sampling import MIN_LOGPROB


class AnswerParts(Struct, frozen=True, kw_only=True):
    """What the readers of a job's frames need: the job, the vocabulary, and its grammar's state."""

    job: Job
    vocabulary: Vocabulary
    vocabulary_size: int
    grammars: Sequence[GrammarState] = ()  # one for each choice, if the job has a grammar

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        own = frozenset(self.job.sampling.stop_token_ids or ())
        return own if self.job.sampling.ignore_eos else own | self.vocabulary.eos_ids

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.prompt)

    def get_grammar(self, choice: int) -> GrammarState | None:
        return self.grammars[choice] if self.grammars else None


class ChoiceSteps:
    """Makes the steps of one choice."""

    def __init__(self, parts: AnswerParts, choice: int) -> None:
        self.choice = choice
        self.finish: StepFinish | None = None
        self.counted = 0  # tokens so far, with the one that ended the answer
        self.cached_tokens: int | None = None  # reported with the first step
        self._size = parts.vocabulary_size
        self._stop_ids = parts.stop_ids
        self._grammar = parts.get_grammar(choice)
        self._prompt_tokens = parts.prompt_tokens if choice == 0 else None

    def add(
        self,
        ids: list[int],
        logprobs: list[Logprob],
        finish: StepFinish | None = None,
        matched: int | None = None,
    ) -> Step:
        """Make a step of new tokens, of which the last one may end the choice.

        `matched` is the stop token, for servers that name it apart from the ids.
        """
        if self.finish is not None:
            raise InvalidFrame("a choice continues after its end")
        check_range(ids, self._size)
        self.counted += len(ids)
        self.finish = finish
        stop_id = matched
        if finish == "stop" and ids and (ids[-1] in self._stop_ids or ids[-1] == matched):
            stop_id, ids = ids[-1], ids[:-1]
            logprobs = logprobs[: len(ids)]
        if self._grammar is not None:
            self._replay(self._grammar, ids, stop_id)
        prompt, cached = self._prompt_tokens, self.cached_tokens
        self._prompt_tokens = self.cached_tokens = None
        return Step(self.choice, None, ids, len(ids), logprobs, finish, stop_id, prompt, cached)

    def is_stop_id(self, token: int) -> bool:
        """Whether a token ends the choice; it may have no logprob."""
        return token in self._stop_ids

    def _replay(self, grammar: GrammarState, ids: list[int], stop_id: int | None) -> None:
        """Check tokens against the grammar of the job."""
        if stop_id is not None:
            check_tokens_allowed(grammar, [*ids, stop_id], self._stop_ids | {stop_id})
            return
        grammar.advance(*ids)
        if self.finish == "stop" and not grammar.is_accepting:
            raise make_dead_end_error()


def check_range(ids: Collection[int], vocabulary_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary_size:
            raise InvalidFrame(f"{token} is not an id of the vocabulary of {vocabulary_size}")


def clamp(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else min(max(logprob, MIN_LOGPROB), 0.0)
