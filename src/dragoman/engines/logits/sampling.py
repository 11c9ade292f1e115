"""Samples tokens from logits and reports logprobs.

The samplers run in the same order as in the GGUF engine, so that a request means the same in both:
bias, penalties, grammar, top_n_sigma, top_k, typical_p, top_p, min_p, XTC, temperature. Logprobs
are those of the model alone, before all of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dragoman.engines.token_mask import GrammarState, make_dead_end_error
from dragoman.types import DEFAULT_SAMPLING, Logprob, Sampling
from dragoman.types.sampling import FORBIDDING_BIAS, MIN_LOGPROB, MIN_XTC_THRESHOLD

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
Selector: TypeAlias = Callable[[Floats, float], Indices]

# `choice` enforces `max_tokens` and the tokens that end an answer
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "dynatemp_range",
        "dynatemp_exponent",
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
# finite: where a grammar allows only forbidden tokens, one of them is sampled all the same
FORBIDDEN = -1e9
XTC_THRESHOLD = 0.1  # where a job sets none
SORTED_FIRST = 1024  # tokens to sort before sorting all: they rarely hold less than top_p


class TokenSampler:
    """Samples the tokens of one choice. `ignore_eos` forbids the tokens of `eos_ids`."""

    def __init__(
        self, sampling: Sampling, seed: int, prompt: Sequence[int], eos_ids: frozenset[int]
    ) -> None:
        self._sampling = sampling.with_defaults(DEFAULT_SAMPLING)
        self._random = np.random.default_rng(seed % 2**64)
        self._history = list(prompt)
        self._prompt_length = len(prompt)
        stop_ids = frozenset(self._sampling.stop_token_ids or ())
        self._ignored_ids = sorted(eos_ids - stop_ids) if self._sampling.ignore_eos else []
        self._end_ids = sorted(eos_ids | stop_ids)  # forbidden before `min_tokens`

    def sample(self, logits: Floats, grammar: GrammarState | None) -> int:
        """Return the next token and add it to the history."""
        scores = logits.copy()
        self._add_biases(scores)
        self._add_penalties(scores)
        if grammar is not None:
            grammar.apply_mask(scores)
            if scores.max() == -np.inf:
                raise make_dead_end_error()
        is_greedy = self._sampling.is_greedy and not self._sampling.xtc_probability
        token = int(scores.argmax()) if is_greedy else self._draw(scores)
        self._history.append(token)
        return token

    def _add_biases(self, scores: Floats) -> None:
        sampling = self._sampling
        for token, bias in (sampling.logit_bias or {}).items():
            is_forbidden = bias <= FORBIDDING_BIAS
            scores[token] += FORBIDDEN if is_forbidden else min(bias, -FORBIDDING_BIAS)
        if self._ignored_ids:
            scores[self._ignored_ids] += FORBIDDEN
        if len(self._history) - self._prompt_length < (sampling.min_tokens or 0):
            scores[self._end_ids] += FORBIDDEN

    def _add_penalties(self, scores: Floats) -> None:
        """Make tokens that occurred before less likely, in the prompt too, within the window."""
        sampling = self._sampling
        factor = sampling.repetition_penalty or 1.0
        presence = sampling.presence_penalty or 0.0
        frequency = sampling.frequency_penalty or 0.0
        last_n = sampling.repeat_last_n or 0
        window = self._history[-last_n:] if last_n > 0 else self._history if last_n else []
        if not window or (factor, presence, frequency) == (1.0, 0.0, 0.0):
            return
        tokens, counts = np.unique(np.array(window), return_counts=True)
        old = scores[tokens]
        penalties = counts * frequency + presence
        scores[tokens] = np.where(old > 0, old / factor, old * factor) - penalties

    def _draw(self, scores: Floats) -> int:
        """Draw one of the tokens that the samplers leave, by their probabilities."""
        ids: Indices = np.flatnonzero(scores > -np.inf)
        remaining = scores[ids]
        for select, value in self._list_selectors():
            selected = select(remaining, value)
            ids, remaining = ids[selected], remaining[selected]
        temperature = max(self._get_temperature(remaining), 1e-6)
        cumulative = np.cumsum(np.exp((remaining - remaining.max()) / temperature))
        index = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(index), len(ids) - 1)])

    def _get_temperature(self, scores: Floats) -> float:
        """Return the temperature; a dynamic one grows with the entropy of what is left."""
        sampling = self._sampling
        centre, spread = sampling.temperature or 0.0, sampling.dynatemp_range or 0.0
        if not spread or len(scores) < 2:
            return centre
        logprobs = log_softmax(scores)
        entropy = -float((np.exp(logprobs) * logprobs).sum()) / math.log(len(scores))
        exponent = 1.0 if sampling.dynatemp_exponent is None else sampling.dynatemp_exponent
        low, high = max(0.0, centre - spread), centre + spread
        return float(low + (high - low) * min(max(entropy, 0.0), 1.0) ** exponent)

    def _list_selectors(self) -> list[tuple[Selector, float]]:
        sampling = self._sampling
        selectors: list[tuple[Selector, float]] = []
        if (sampling.top_n_sigma or 0) > 0:
            selectors.append((select_top_n_sigma, sampling.top_n_sigma or 0))
        if (sampling.top_k or 0) > 0:
            selectors.append((select_top_k, sampling.top_k or 0))
        if sampling.typical_p is not None and sampling.typical_p < 1:
            selectors.append((select_typical, sampling.typical_p))
        if sampling.top_p is not None and sampling.top_p < 1:
            selectors.append((select_top_p, sampling.top_p))
        if (sampling.min_p or 0) > 0:
            selectors.append((select_min_p, sampling.min_p or 0))
        chance = sampling.xtc_probability or 0
        if chance and self._random.random() < chance:
            threshold = XTC_THRESHOLD if sampling.xtc_threshold is None else sampling.xtc_threshold
            selectors.append((exclude_top_choices, max(threshold, MIN_XTC_THRESHOLD)))
        return selectors


def select_top_k(scores: Floats, count: float) -> Indices:
    """Return the indices of the `count` highest scores, highest first."""
    k = min(int(count), len(scores))
    top = np.argpartition(scores, -k)[-k:] if k < len(scores) else np.arange(len(scores))
    return np.asarray(top[np.argsort(-scores[top], kind="stable")])


def select_typical(scores: Floats, mass: float) -> Indices:
    """Return the indices of the tokens whose surprise is closest to the expected surprise."""
    logprobs = log_softmax(scores)
    probabilities = np.exp(logprobs)
    entropy = -float((probabilities * logprobs).sum())
    order = np.argsort(np.abs(-logprobs - entropy), kind="stable")
    return _take_mass(order, probabilities, mass)


def select_top_p(scores: Floats, mass: float) -> Indices:
    """Return the indices of the fewest tokens that have this much probability together."""
    probabilities = np.exp(log_softmax(scores))
    order = select_top_k(probabilities, SORTED_FIRST)
    if probabilities[order].sum() < mass:
        order = select_top_k(probabilities, len(probabilities))
    return _take_mass(order, probabilities, mass)


def _take_mass(order: Indices, probabilities: Floats, mass: float) -> Indices:
    return order[: int(np.searchsorted(np.cumsum(probabilities[order]), mass)) + 1]


def select_min_p(scores: Floats, fraction: float) -> Indices:
    """Return the indices of tokens at least this fraction as likely as the most likely one."""
    return np.flatnonzero(scores >= scores.max() + np.log(min(fraction, 1.0)))


def select_top_n_sigma(scores: Floats, deviations: float) -> Indices:
    """Return the indices of scores within `deviations` standard deviations of the highest one."""
    usual = scores[scores > FORBIDDEN / 2]
    spread = float(usual.std()) if len(usual) else 0.0
    return np.flatnonzero(scores >= scores.max() - deviations * spread)


def exclude_top_choices(scores: Floats, threshold: float) -> Indices:
    """Return all indices but those of tokens that are likelier than another likely token (XTC)."""
    probabilities = np.exp(log_softmax(scores))
    likely = np.flatnonzero(probabilities >= threshold)
    if len(likely) < 2:
        return np.arange(len(scores))
    kept = likely[np.argmin(probabilities[likely])]
    return np.flatnonzero((probabilities < threshold) | (np.arange(len(scores)) == kept))


def log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def make_logprob(logits: Floats, token: int, top: int) -> Logprob:
    """Return the logprob of a token, with those of the `top` most likely tokens."""
    logprobs = np.maximum(log_softmax(logits), MIN_LOGPROB)
    indices = select_top_k(logprobs, top) if top else ()
    best = tuple(Logprob(int(index), float(logprobs[index])) for index in indices)
    return Logprob(token, float(logprobs[token]), best)
