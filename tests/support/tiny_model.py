"""A small but real model: one layer of gated units with random weights from a fixed seed.

It is untrained, so its output is random; whatever is valid about an answer is the engine's doing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class TinyModel:
    """A recurrent model; `batches` are the sizes of its forward passes."""

    def __init__(self, size: int = 259, width: int = 24, spare: int = 5) -> None:
        draw = np.random.default_rng(7).normal
        self.embedding = draw(0, 1, (size, width))
        self.input_weights = draw(0, 0.4, (3, width, width))
        self.hidden_weights = draw(0, 0.4, (3, width, width))
        self.output_weights = draw(0, 0.6, (width, size + spare))  # padded beyond the vocabulary
        self.width = width
        self.batches: list[int] = []

    def begin(self, prompt: Sequence[int]) -> tuple[Floats, Floats]:
        state = np.zeros(self.width)
        for token in prompt:
            state = self._cell(state[None], [token])[0]
        return state, state @ self.output_weights

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Floats:
        self.batches.append(len(states))
        updated = self._cell(np.stack(states), tokens)
        for state, new in zip(states, updated, strict=True):
            state[:] = new
        return np.asarray(updated @ self.output_weights)

    def _cell(self, hidden: Floats, tokens: Sequence[int]) -> Floats:
        embedded = self.embedding[list(tokens)]
        inputs = [embedded @ weights for weights in self.input_weights]
        update, reset = (
            1 / (1 + np.exp(-(inputs[gate] + hidden @ self.hidden_weights[gate])))
            for gate in (0, 1)
        )
        candidate = np.tanh(inputs[2] + (reset * hidden) @ self.hidden_weights[2])
        return np.asarray(update * hidden + (1 - update) * candidate)
