"""What is known about the content of one slot of the native server."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.types import Adapter, Job
from dragoman.types.common_prefix import count_common_prefix


class CacheLabel(Struct, frozen=True):
    """What a KV cache belongs to; one with another label must not be reused."""

    scope: str = ""
    adapters: tuple[Adapter, ...] = ()


def make_cache_label(job: Job) -> CacheLabel:
    return CacheLabel(job.cache_scope, job.lora)


class Slot:
    """What is known about one slot of the server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.label: CacheLabel | None = None  # None: its content may belong to any owner
        self.tokens: list[int] = []  # its content, as far as it is known
        self.used_at = 0
        self.is_free = True

    @property
    def is_empty(self) -> bool:
        return self.label is None or not self.tokens

    def count_reusable(self, label: CacheLabel, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt with this label the slot holds."""
        return count_common_prefix(self.tokens, prompt) if self.label == label else 0

    def clear_content(self) -> None:
        self.label, self.tokens = None, []
