"""Measures how long one step of the native server takes.

While the server computes a step, which may process a whole batch of prompt tokens, it answers
nothing. How long that takes on this machine decides when its silence means that it hangs.
"""

from __future__ import annotations

from dragoman.engines.llamacpp.params import PromptProgress

PATIENCE = 3.0  # how many times longer than expected something may take
DECAY = 0.7  # factor by which the time per token shrinks with each faster batch


class PromptSpeed:
    """Measures how long prompts take; `token_seconds` is a first guess."""

    def __init__(self, batch: int, token_seconds: float) -> None:
        self._batch = batch  # prompt tokens in one step, at most
        self._token_seconds = token_seconds
        self._media_seconds = 0.0  # of the slowest picture or sound so far

    @property
    def step_seconds(self) -> float:
        """How long a full batch takes, or a picture or sound, which is encoded in one step."""
        return max(self._batch * self._token_seconds, self._media_seconds)

    def expect_media(self, seconds: float) -> None:
        """Expect media that take this long to encode."""
        self._media_seconds = max(self._media_seconds, seconds)

    def estimate_seconds(self, tokens: int) -> float:
        """Return how long this many tokens of a prompt take."""
        return tokens * self._token_seconds

    def get_max_step_seconds(self, tokens: int) -> float:
        """Return how long a step with this many tokens may take at most."""
        return PATIENCE * tokens * self._token_seconds

    def add(self, progress: PromptProgress) -> None:
        """Add what the server reports after each batch."""
        tokens = progress.processed - progress.cache
        if tokens > 0:
            measured = progress.time_ms / 1000 / tokens
            self._token_seconds = max(measured, DECAY * self._token_seconds)
