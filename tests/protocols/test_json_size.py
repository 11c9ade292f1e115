"""The values of a body are counted without decoding it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.protocols.shared import json_size
from dragoman.protocols.shared.json_size import JsonSizeLimits, find_excess

NO_LIMITS = {"containers": 10**9, "strings": 10**9, "values": 10**9, "members": 10**9}
texts = st.text(st.sampled_from('ab"\\[{]},:\n é😀'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(texts, values, max_size=6)


def count(value: Any) -> dict[str, int]:
    """Count the lists and objects, and the strings, of a decoded value."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if isinstance(inner, list):
        counts = [count(item) for item in inner]
        names = len(value) if isinstance(value, dict) else 0
        return {
            "containers": 1 + sum(each["containers"] for each in counts),
            "strings": names + sum(each["strings"] for each in counts),
        }
    return {"containers": 0, "strings": int(isinstance(value, str))}


def has_excess(body: bytes, **limits: int) -> bool:
    every = {**NO_LIMITS, "wide_bytes": 10**9, "escapes": 10**9, **limits}
    return find_excess(body, JsonSizeLimits(**every)) is not None


@settings(max_examples=300)
@given(bodies, st.booleans(), st.sampled_from([3, 7, 1000]))
def test_values_are_counted_wherever_the_chunks_end(
    body: dict[str, Any], ascii_only: bool, chunk: int
) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "CHUNK", chunk)
        for name, number in {**count(body), "members": max(1, len(body))}.items():
            assert not has_excess(raw, **{name: number}), name
            if number and body:
                assert has_excess(raw, **{name: number - 1}), name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("plain text", 0),
        ("é" + "a" * 98, 100),
        ("\\u00e9" + "a" * 94, 100),
        ("\\\\u00e9", 0),  # a backslash, and then letters
        ("a" * 50 + '","' + "é" * 10, 20),
    ],
)
def test_text_beyond_ascii_counts_with_the_whole_of_its_string(text: str, size: int) -> None:
    raw = f'{{"a":["{text}"]}}'.encode()
    assert not has_excess(raw, wide_bytes=size)
    assert size == 0 or has_excess(raw, wide_bytes=size - 1)


@pytest.mark.parametrize("chunk", [4, 1000])
def test_a_body_that_is_not_utf8_is_noticed(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_size, "CHUNK", chunk)
    for raw in (b'{"a":"\xc3', b'{"a":"\xc3("}', b'{"a":"abcdefgh\xff"}'):
        with pytest.raises(UnicodeDecodeError):
            has_excess(raw)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(["a", "\\n", '\\"', "\\\\", "\\u0041", "\\/"])), st.integers(1, 9))
def test_escaped_characters_are_counted_wherever_the_chunks_end(
    parts: list[str], chunk: int
) -> None:
    body = ('{"a":"' + "".join(parts) + '"}').encode()
    escapes = sum(part != "a" for part in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "CHUNK", chunk)
        assert not has_excess(body, escapes=escapes)
        assert not escapes or has_excess(body, escapes=escapes - 1)
