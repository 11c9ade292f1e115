"""How errors name the types of values: as JSON and YAML know them."""

from __future__ import annotations

import re

TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_EXPECTED = re.compile(r"^Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`")
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")


def describe_mismatch(message: str) -> str | None:
    """Return a message of msgspec about a type as "must be …, not …"; None for any other."""
    match = _EXPECTED.match(message)
    if match is None:
        return None
    expected = " or ".join(TYPE_NAMES.get(w.strip(), w) for w in match["expected"].split("|"))
    got = TYPE_NAMES.get(match["got"], match["got"]).replace("true or false", "a boolean")
    return f"must be {expected}, not {got}"


def describe_invalid_value(message: str) -> str:
    """Return what msgspec says about a value, with the place inside the value."""
    found = describe_mismatch(message)
    if found is None:
        return message
    path = _PATH.search(message)
    return f"`{path['path'].lstrip('.')}` {found}" if path else found
