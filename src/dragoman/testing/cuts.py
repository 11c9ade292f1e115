"""Ways of cutting a text, for proving that what reads it does not care."""

from __future__ import annotations

import random
from collections.abc import Iterator


def every_cut(text: str, *, randoms: int = 20, seed: int = 0) -> Iterator[list[str]]:
    """Whole, at every single place, one character at a time, and in seeded random pieces.

    Joining any of the lists gives the text. The same text and seed give the same lists.
    """
    yield [text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    if len(text) > 2:
        yield list(text)
    dice = random.Random(f"{seed}:{text}")
    for _ in range(randoms if len(text) > 3 else 0):
        places = sorted(dice.sample(range(1, len(text)), dice.randint(2, len(text) - 2)))
        edges = zip([0, *places], [*places, len(text)], strict=True)
        yield [text[start:end] for start, end in edges]
