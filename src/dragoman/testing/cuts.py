"""Ways to cut a text into pieces, for testing that a streaming parser gives the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator


def every_cut(text: str, *, random_cuts: int = 20, seed: int = 0) -> Iterator[list[str]]:
    """Yield the whole text, two pieces cut at every position, characters, and random pieces.

    The pieces of each list join to the text. The same text and seed yield the same lists.
    """
    yield [text]
    for position in range(1, len(text)):
        yield [text[:position], text[position:]]
    if len(text) > 2:
        yield list(text)
    generator = random.Random(f"{seed}:{text}")
    for _ in range(random_cuts if len(text) > 3 else 0):
        count = generator.randint(2, len(text) - 2)
        positions = sorted(generator.sample(range(1, len(text)), count))
        edges = zip([0, *positions], [*positions, len(text)], strict=True)
        yield [text[start:end] for start, end in edges]
