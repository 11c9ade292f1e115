"""Patterns of schemas mean what they mean in JavaScript."""

from __future__ import annotations

import json

import pytest

from dragoman.testing.grammars import match_grammar
from tests.schema_cases import grammar

# a pattern, texts that match it, and texts that do not
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    # characters that JSON escapes
    (r'^[^"]$', ["a", "\\", "\n"], ['"']),
    (r"^[^\\]$", ["a", '"'], ["\\"]),
    (r'^[^\\/:*?"<>|]{1,255}$', ["a b.txt"], ["a/b", "\\", 'a"']),
    (r"^\W$", ['"', "\\", " "], ["a"]),
    (r"^[^\x7f]*$", ['a"\\\n'], ["\x7f"]),
    (r'^(?:[^"\\]|\\.)*$', ["a", '\\"'], ['"', "\\"]),
    # ranges that start or end with a hyphen
    (r"^[+--]$", ["+", ",", "-"], ["."]),
    (r"^[--/]$", ["-", ".", "/"], [","]),
    (r"^[^--0]$", ["a"], ["-", ".", "0"]),
    (r"^[a-z-9]$", ["b", "-", "9"], ["8"]),
    (r"^[-a\-]$", ["-", "a"], ["b"]),
    # characters that are operators elsewhere
    (r"^[\]\[&&~~^]$", ["]", "[", "&", "~", "^"], ["a"]),
    (r"^[a-z&&[b]$", ["a", "&", "["], ["1"]),
    # escapes
    (r"^[^]$", ["a", "\n"], [""]),
    (r"^\cA\cj$", ["\x01\n"], ["cA"]),
    (r"^[\0-\cZ]$", ["\x00", "\x05"], ["a"]),
    (r"^[\b]$", ["\b"], ["b"]),
    (r"^\uD83D\uDE00$", ["😀"], ["a"]),
    (r"^\\cA$", [r"\cA"], ["\x01"]),
]


@pytest.mark.parametrize(("pattern", "valid", "invalid"), PATTERNS)
def test_patterns(pattern: str, valid: list[str], invalid: list[str]) -> None:
    source, warnings = grammar({"type": "string", "pattern": pattern}, strict=True)
    assert source is not None
    assert warnings == []
    for text in [*valid, *invalid]:
        written = json.dumps(text, ensure_ascii=False)
        assert match_grammar(source, written)[0] is (text in valid), text


def test_an_intersection_that_llguidance_would_weaken_is_reported() -> None:
    schema = {"allOf": [{"type": "string", "pattern": pattern} for pattern in (r'^[^"]+$', "^a")]}
    _, warnings = grammar(schema, strict=False)
    assert [warning for warning in warnings if "is not enforced" in warning]
    with pytest.raises(ValueError, match="allOf"):
        grammar(schema, strict=True)
    plain = {"allOf": [{"type": "string", "pattern": pattern} for pattern in ("b$", "^a")]}
    assert grammar(plain, strict=True)[1] == []


@pytest.mark.parametrize("pattern", [r"^[]$", r"^[a"])
def test_classes_without_an_equivalent_are_reported(pattern: str) -> None:
    _, warnings = grammar({"type": "string", "pattern": pattern}, strict=False)
    assert warnings == ["`schema`: `/pattern` is not enforced."]
