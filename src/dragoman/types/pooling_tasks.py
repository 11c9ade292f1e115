"""What a client wants to embed or to score, whatever the wire API."""

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


class NamedText(Struct, frozen=True):
    """A text, and the client's name of it for errors."""

    text: str
    param: str


class ScoreTask(Struct, frozen=True, kw_only=True):
    """Pairs of a query and a document, whose relevance is wanted."""

    model: str
    pairs: Sequence[tuple[NamedText, NamedText]]
    document_tokens: int | None = None  # to which a longer document is cut
    pair_tokens: int | None = None  # to which a longer pair is cut; -1 is what the model reads
    owner: str = ""
