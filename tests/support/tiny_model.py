"""A real model, if a small one: one layer of gated units with weights drawn from a fixed seed.

It has learnt nothing, so it says anything at all: whatever is right about its answers, somebody
else has seen to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class TinyModel:
    """Takes tokens into a hidden state, which is all it remembers. `batches` are its passes."""

    def __init__(self, size: int = 259, width: int = 24, spare: int = 5) -> None:
        draw = np.random.default_rng(7).normal
        self.embedding = draw(0, 1, (size, width))
        self.inward = draw(0, 0.4, (3, width, width))
        self.onward = draw(0, 0.4, (3, width, width))
        self.outward = draw(0, 0.6, (width, size + spare))  # room for tokens that are not there
        self.width = width
        self.batches: list[int] = []

    def begin(self, prompt: Sequence[int]) -> tuple[Floats, Floats]:
        state = np.zeros(self.width)
        for token in prompt:
            state = self._cell(state[None], [token])[0]
        return state, state @ self.outward

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Floats:
        self.batches.append(len(states))
        after = self._cell(np.stack(states), tokens)
        for state, new in zip(states, after, strict=True):
            state[:] = new
        return np.asarray(after @ self.outward)

    def _cell(self, hidden: Floats, tokens: Sequence[int]) -> Floats:
        seen = self.embedding[list(tokens)]
        keep, forget = (
            1 / (1 + np.exp(-(seen @ self.inward[at] + hidden @ self.onward[at]))) for at in (0, 1)
        )
        new = np.tanh(seen @ self.inward[2] + (forget * hidden) @ self.onward[2])
        return np.asarray(keep * hidden + (1 - keep) * new)
