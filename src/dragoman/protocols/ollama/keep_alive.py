"""How long a model stays loaded after a request: `keep_alive`.

A number is seconds, a string is a duration of Go with a unit (`300ms`, `5m`, `1h30m`, `-1m`). A
negative one keeps the model loaded for ever, 0 unloads it when the request has ended.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from dragoman.errors import InvalidValue
from dragoman.types import Json

KeepAlive: TypeAlias = Json  # of a request: a number, a string or null
FOREVER = -1.0
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))
_PART = re.compile(rf"(\d{{1,18}}(?:\.\d{{0,18}})?|\.\d{{1,18}})({_UNIT})", re.ASCII)
_DURATION = re.compile(rf"([+-]?)(0|(?:{_PART.pattern})+)", re.ASCII)
MAX_SECONDS = 10 * 365 * 24 * 3600.0  # longer is forever


def decode_keep_alive(value: KeepAlive) -> float | None:
    """Return the seconds that a model stays loaded; None is the server's own time."""
    if value is None:
        return None
    seconds = _parse_seconds(value)
    if seconds is None or math.isnan(seconds):
        raise InvalidValue(
            "`keep_alive` must be a number of seconds or a duration with a unit, such as `5m`.",
            param="keep_alive",
        )
    return FOREVER if seconds < 0 or seconds > MAX_SECONDS else seconds


def _parse_seconds(value: Json) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(max(-1, min(value, MAX_SECONDS + 1)))
    match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= 256 else None
    if match is None:
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(match[2]))
    return -total if match[1] == "-" else total
