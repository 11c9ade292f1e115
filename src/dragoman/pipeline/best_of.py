"""Of more choices than were asked for, the likeliest."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.events import Completion, Delta, Token, Usage


def select_best(whole: Completion, many: int, keep: int, logprobs: bool) -> Iterator[Delta]:
    """Of each prompt's `many` choices the `keep` likeliest, as deltas of whole choices."""
    everything, usage, index = whole.choices(), whole.usage, 0
    for at in range(0, len(everything), many):
        ranked = sorted(everything[at : at + many], key=lambda c: -compute_mean_logprob(c.tokens))
        for choice in ranked[:keep]:
            yield Delta(
                index,
                choice.text,
                tokens=tuple(choice.tokens) if logprobs else (),
                finish=choice.finish,
                stop=choice.stop,
                usage=usage,
            )
            index, usage = index + 1, Usage()


def compute_mean_logprob(tokens: list[Token]) -> float:
    """Mean logprob of a choice; one that said nothing is the least likely."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else float("-inf")
