"""Vectors of embeddings: checked, shortened and scaled."""

from __future__ import annotations

import math

from dragoman.errors import BadRequest, EngineFailed


def check_vector(vector: list[float]) -> None:
    """Reject a vector that cannot be sent as JSON."""
    if not all(map(math.isfinite, vector)):
        raise EngineFailed("The engine returned a vector with values that are not numbers.")


def shorten_vector(vector: list[float], dimensions: int | None) -> list[float]:
    """Return the first dimensions, scaled back to unit length."""
    if dimensions is None or dimensions == len(vector):
        return vector
    return normalize_vector(vector, dimensions)


def normalize_vector(vector: list[float], dimensions: int | None = None) -> list[float]:
    """Return the first dimensions, scaled to unit length."""
    if dimensions is not None and dimensions > len(vector):
        raise BadRequest(
            f"`dimensions` must be at most {len(vector)} for this model.", param="dimensions"
        )
    head = vector[:dimensions]
    norm = math.sqrt(sum(x * x for x in head)) or 1.0
    return [x / norm for x in head]
