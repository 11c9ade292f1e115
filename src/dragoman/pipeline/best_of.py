"""Implements `best_of`: generate more choices than requested and return the likeliest."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.events import Completion, Delta, Token, Usage


def select_best(
    completion: Completion, generated: int, requested: int, with_logprobs: bool
) -> Iterator[Delta]:
    """Yield the `requested` likeliest of each prompt's `generated` choices, one delta for each."""
    choices, usage, index = completion.build_choices(), completion.usage, 0
    for first in range(0, len(choices), generated):
        ranked = sorted(
            choices[first : first + generated],
            key=lambda choice: -compute_mean_logprob(choice.tokens),
        )
        for choice in ranked[:requested]:
            yield Delta(
                index,
                choice.text,
                tokens=tuple(choice.tokens) if with_logprobs else (),
                finish=choice.finish,
                stop=choice.stop,
                usage=usage,
            )
            index, usage = index + 1, Usage()


def compute_mean_logprob(tokens: list[Token]) -> float:
    """Return the mean logprob of a choice; an empty choice is the least likely."""
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
