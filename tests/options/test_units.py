"""Sizes, durations and token counts are read and written as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.options.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4GB", 4 * 10**9),
        ("4gb", 4 * 10**9),
        ("4 GiB", 4 << 30),
        ("4G", 4 << 30),
        ("512MiB", 512 << 20),
        ("1.5k", 1536),
        ("2TB", 2 * 10**12),
        ("7B", 7),
        ("-1", -1),
    ],
)
def test_sizes_are_read_in_their_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("1.5", 1.5),
        ("300ms", 0.3),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30 min", 5400),
        ("2 days", 172800),
        ("1w", 604800),
        ("1.5h", 5400),
        ("-1", -1),
        ("forever", -1),
        ("Never", -1),
    ],
)
def test_durations_are_read_in_their_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "tokens"), [("8192", 8192), ("8k", 8192), ("1.5K", 1536)])
def test_token_counts_are_read_in_their_units(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "x", "4XB", "4GBs", "GB", "1,5GB", "--1", "5mm", "h5", "1h30"]
)
def test_other_texts_are_invalid(text: str) -> None:
    for parse in (parse_bytes, parse_seconds, parse_tokens):
        with pytest.raises(ValueError):
            parse(text)


@given(st.integers(0, 1 << 50) | st.integers(0, 5000).map(lambda n: n * 1000**2))
def test_written_size_reads_as_itself(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.integers(0, 10**7) | st.integers(1, 999).map(lambda n: n / 1000))
def test_written_duration_reads_as_itself(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds)
