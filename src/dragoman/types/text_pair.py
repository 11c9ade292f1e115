"""A pair of texts to score: a query and a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class TextPair(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A query and a document. An engine that takes token ids gets `ids`, any other the texts.

    `ids` are both texts with the special tokens that the model expects around them. From
    `document_start` on, tokens have the second token type; it is None for models that have one type
    only.
    """

    ids: list[int] = []
    document_start: int | None = None
    query: str = ""
    document: str = ""


class PairScorer(Protocol):
    """An engine that scores pairs of texts."""

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return the relevance of each document for its query, in order, between 0 and 1."""
        ...
