"""Options that are given as NAME=VALUE, several times."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from dragoman.options.values import InvalidOption


def read_paths(flag: str, pairs: Sequence[str]) -> dict[str, str]:
    """Return absolute paths by name."""
    values = [_split(flag, pair, "NAME=PATH") for pair in pairs]
    return {name: os.path.realpath(Path(text).expanduser()) for name, text in values if text}


def read_values(flag: str, pairs: Sequence[str]) -> dict[str, object]:
    """Return values by name; what is not JSON is text."""
    return {
        name: _parse_json(text)
        for name, text in (_split(flag, pair, "NAME=VALUE") for pair in pairs)
    }


def _split(flag: str, pair: str, form: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not (name.strip() and equals and text):
        raise InvalidOption(f"{flag} takes {form}, not {pair!r}")
    return name.strip(), text


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
