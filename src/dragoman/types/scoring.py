"""What a client wants to score, whatever the wire API."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


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
