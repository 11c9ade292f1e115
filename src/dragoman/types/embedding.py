"""What a client wants to embed, whatever the wire API."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class EmbeddingTask(Struct, frozen=True, kw_only=True):
    """Texts or token ids to embed."""

    model: str
    inputs: Sequence[str | list[int]]
    dimensions: int | None = None  # of the vectors; None is all of them
    truncates: bool = False  # cuts inputs that are too long, instead of an error
    keep_alive: float | None = None  # seconds that the idle model stays loaded; -1 is forever
    owner: str = ""
    warnings: tuple[str, ...] = ()  # one sentence for each field that has no effect
