"""Sizes, durations and token counts as people write them: `4GB`, `512MiB`, `1h30m`, `300ms`, `8k`.

GB counts in thousands and GiB in 1024s; a bare letter (`4G`) counts in 1024s, as in Docker.
"""

from __future__ import annotations

import math
import re

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?b)?|b|bytes?)?", re.I)
SIZE_LETTERS = "kmgtp"
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.I)
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
    return round(float(number) * base ** (SIZE_LETTERS.index(letter.lower()) + 1))


def parse_seconds(text: str) -> float:
    """Parse a duration, or raise `ValueError`. `forever` is -1."""
    if text.strip().lower() in ("forever", "never"):
        return FOREVER
    if DURATION.fullmatch(text.strip()):
        return sum(
            float(number) * SECONDS[unit.lower()] for number, unit in DURATION_PART.findall(text)
        )
    return float(text)


def parse_tokens(text: str) -> int:
    """Parse a number of tokens, or raise `ValueError`; `8k` is 8192."""
    match = TOKENS.fullmatch(text.strip())
    return round(float(match[1]) * 1024) if match else int(text)


def format_bytes(size: int) -> str:
    """Write a size with the largest unit that leaves a short number."""
    for power in range(len(SIZE_LETTERS), 0, -1):
        unit = 1024**power
        if size >= unit and size % unit == 0:
            return f"{size // unit}{SIZE_LETTERS[power - 1].upper()}iB"
    return str(size)


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
