"""Picking tokens by their logits, and telling how likely they were.

What narrows the choice comes in the order that the GGUF engine has, so that one request means the
same here and there: bias, penalties, grammar, top_k, typical_p, top_p, min_p, temperature. Logprobs
are those of the model alone, before all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dragoman.engines.token_mask import GrammarState, dead_end_error
from dragoman.types import DEFAULT_SAMPLING, Logprob, Sampling

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

# fields of `Sampling`; `max_tokens` and what ends an answer are seen to by `choice`
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "repeat_last_n",
        "seed",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
    }
)
NEVER = -100.0  # a bias of this or less forbids the token
FORBIDDEN = -1e9  # finite: where all that a grammar allows is forbidden, it is said all the same
LEAST_LOGPROB = -9999.0
FEW = 1024  # tokens that are sorted before all are: seldom does it take more to be nearly sure


class TokenSampler:
    """Picks the tokens of one choice. `ends` are those that `ignore_eos` is about."""

    def __init__(
        self, sampling: Sampling, seed: int, prompt: Sequence[int], ends: frozenset[int]
    ) -> None:
        self._sampling = sampling.with_defaults(DEFAULT_SAMPLING)
        self._random = np.random.default_rng(seed % 2**64)
        self._history = list(prompt)
        self._begin = len(prompt)
        stops = frozenset(self._sampling.stop_token_ids or ())
        self._unheard = sorted(ends - stops) if self._sampling.ignore_eos else []
        self._early = sorted(ends | stops)  # what may not come before `min_tokens`

    def pick(self, logits: Floats, following: GrammarState | None) -> int:
        """The next token; it counts as said."""
        scores = logits.copy()
        self._bias(scores)
        self._penalize(scores)
        if following is not None:
            following.apply_mask(scores)
            if scores.max() == -np.inf:
                raise dead_end_error()
        token = int(scores.argmax()) if self._sampling.greedy else self._drawn(scores)
        self._history.append(token)
        return token

    def _bias(self, scores: Floats) -> None:
        said = self._sampling
        for token, bias in (said.logit_bias or {}).items():
            scores[token] += FORBIDDEN if bias <= NEVER else min(bias, -NEVER)
        if self._unheard:
            scores[self._unheard] += FORBIDDEN
        if len(self._history) - self._begin < (said.min_tokens or 0):
            scores[self._early] += FORBIDDEN

    def _penalize(self, scores: Floats) -> None:
        """Make what was said before less likely, prompt included, as far back as is looked at."""
        said = self._sampling
        factor = said.repetition_penalty or 1.0
        once, each = said.presence_penalty or 0.0, said.frequency_penalty or 0.0
        back = said.repeat_last_n or 0
        seen = self._history[-back:] if back > 0 else self._history if back else []
        if not seen or (factor, once, each) == (1.0, 0.0, 0.0):
            return
        tokens, counts = np.unique(np.array(seen), return_counts=True)
        old = scores[tokens]
        scores[tokens] = np.where(old > 0, old / factor, old * factor) - (counts * each + once)

    def _drawn(self, scores: Floats) -> int:
        """One of the tokens that are left, as likely as it is."""
        ids: Ints = np.flatnonzero(scores > -np.inf)
        kept = scores[ids]
        for narrow, value in self._narrowing():
            few = narrow(kept, value)
            ids, kept = ids[few], kept[few]
        warmth = max(self._sampling.temperature or 0.0, 1e-6)
        heights = np.cumsum(np.exp((kept - kept.max()) / warmth))
        at = np.searchsorted(heights, self._random.random() * heights[-1], side="right")
        return int(ids[min(int(at), len(ids) - 1)])

    def _narrowing(self) -> list[tuple[Callable[[Floats, float], Ints], float]]:
        said = self._sampling
        found: list[tuple[Callable[[Floats, float], Ints], float]] = []
        if (said.top_k or 0) > 0:
            found.append((select_top_k, said.top_k or 0))
        if said.typical_p is not None and said.typical_p < 1:
            found.append((select_typical, said.typical_p))
        if said.top_p is not None and said.top_p < 1:
            found.append((select_top_p, said.top_p))
        if (said.min_p or 0) > 0:
            found.append((select_min_p, said.min_p or 0))
        return found


def select_top_k(scores: Floats, count: float) -> Ints:
    """Places of the so many highest scores, highest first."""
    few = min(int(count), len(scores))
    some = np.argpartition(scores, -few)[-few:] if few < len(scores) else np.arange(len(scores))
    return np.asarray(some[np.argsort(-scores[some], kind="stable")])


def select_typical(scores: Floats, mass: float) -> Ints:
    """Places of the tokens that are about as surprising as the model expects to be."""
    logprobs = log_softmax(scores)
    chances = np.exp(logprobs)
    surprise = -float((chances * logprobs).sum())
    order = np.argsort(np.abs(-logprobs - surprise), kind="stable")
    return _filling(order, chances, mass)


def select_top_p(scores: Floats, mass: float) -> Ints:
    """Places of the fewest tokens that are so likely together."""
    chances = np.exp(log_softmax(scores))
    order = select_top_k(chances, FEW)
    if chances[order].sum() < mass:
        order = select_top_k(chances, len(chances))
    return _filling(order, chances, mass)


def _filling(order: Ints, chances: Floats, mass: float) -> Ints:
    return order[: int(np.searchsorted(np.cumsum(chances[order]), mass)) + 1]


def select_min_p(scores: Floats, part: float) -> Ints:
    """Places of the tokens that are at least this part as likely as the likeliest."""
    return np.flatnonzero(scores >= scores.max() + np.log(min(part, 1.0)))


def log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def make_logprob(logits: Floats, token: int, top: int) -> Logprob:
    """How likely the model found a token, and the likeliest beside it."""
    logprobs = np.maximum(log_softmax(logits), LEAST_LOGPROB)
    others = select_top_k(logprobs, top) if top else ()
    best = tuple(Logprob(int(other), float(logprobs[other])) for other in others)
    return Logprob(token, float(logprobs[token]), best)
