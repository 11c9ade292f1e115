"""Sizes, durations and token counts as people write them: `4GB`, `512MiB`, `1h30m`, `300ms`, `8k`.

GB counts in thousands and GiB in 1024s; a bare letter (`4G`) counts in 1024s, as in Docker.
"""

from __future__ import annotations

import math
import re

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?b)?|b|bytes?)?", re.I)
SIZE_LETTERS = "kmgtp"
DURATION_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?)",
    re.I,
)
DURATION = re.compile(rf"(?:{DURATION_PART.pattern}\s*)+", re.I)
SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
TOKENS = re.compile(r"(-?\d+(?:\.\d+)?)\s*k", re.I)
FOREVER = -1.0


def parse_bytes(text: str) -> int:
    """Parse a size, or raise `ValueError`."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, letter, suffix = match.groups()
    if letter is None:
        return int(number)
    base = 1000 if (suffix or "").lower() == "b" else 1024
    return round(float(number) * float(base) ** (SIZE_LETTERS.index(letter.lower()) + 1))


def parse_seconds(text: str) -> float:
    """Parse a duration, or raise `ValueError`. `forever` is -1."""
    if text.strip().lower() in ("forever", "never"):
        return FOREVER
    if DURATION.fullmatch(text.strip()):
        return sum(
            float(number) * SECONDS[unit.lower() if unit.lower() == "ms" else unit[0].lower()]
            for number, unit in DURATION_PART.findall(text)
        )
    return float(text)


def parse_tokens(text: str) -> int:
    """Parse a number of tokens, or raise `ValueError`; `8k` is 8192."""
    match = TOKENS.fullmatch(text.strip())
    return round(float(match[1]) * 1024) if match else int(text)


def format_bytes(size: int) -> str:
    """Write a size exactly, with the unit that makes it shortest."""
    texts = [str(size)]
    for base, suffix in ((1024, "iB"), (1000, "B")):
        for power, letter in enumerate(SIZE_LETTERS.upper(), start=1):
            if size and size % base**power == 0:
                texts.append(f"{size // base**power}{letter}{suffix}")
    return min(texts, key=lambda text: len(text.rstrip("iBKMGTP")))


def format_seconds(seconds: float) -> str:
    """Write a duration in the units that `parse_seconds` reads."""
    if seconds < 0:
        return "forever"
    if not math.isfinite(seconds) or seconds == 0:
        return f"{seconds:g}s"
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    parts = []
    for unit in ("d", "h", "m"):
        count, seconds = divmod(seconds, SECONDS[unit])
        parts += [f"{count:g}{unit}"] if count else []
    return "".join([*parts, f"{seconds:g}s"] if seconds else parts)
