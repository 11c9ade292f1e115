"""Tokens to text: whole characters, stop strings and logprobs, however the text is split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import EngineFailed
from dragoman.pipeline.detokenize import Detokenizer, ReleasedText, StopMatcher
from dragoman.types import Logprob, Step

BYTES = [bytes([value]) for value in range(256)]
LONG = [*BYTES, b"hello", " wörld".encode(), "日本".encode(), b"", "😀".encode()[:3]]


def read(reader: Detokenizer, steps: Sequence[Step]) -> tuple[str, list[str], str | None]:
    """Feed steps up to a stop string and return all text, all tokens and the stop string."""
    text, tokens = "", []
    for step in steps:
        released = reader.feed(step)
        text += released.text
        tokens += [token.text for token in released.tokens]
        if released.stop is not None:
            return text, tokens, released.stop
    rest = reader.close()
    return text + rest.text, tokens + [token.text for token in rest.tokens], None


def split_into_steps(ids: Sequence[int], ends: Sequence[int], logprobs: bool = False) -> list[Step]:
    """Split the ids into steps that end at these positions."""
    positions = sorted({*(end % (len(ids) + 1) for end in ends), len(ids)})
    steps, start = [], 0
    for end in positions:
        entries = [Logprob(token, -0.5) for token in ids[start:end]] if logprobs else []
        steps.append(Step(ids=list(ids[start:end]), logprobs=entries))
        start = end
    return steps


@given(st.text(), st.lists(st.integers(0, 400), max_size=8))
def test_character_split_over_tokens_arrives_whole(text: str, ends: list[int]) -> None:
    steps = split_into_steps(text.encode(), ends)
    reader = Detokenizer(BYTES)
    deltas = [reader.feed(step).text for step in steps]
    assert "".join(deltas) + reader.close().text == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


def test_incomplete_character_is_dropped() -> None:
    reader = Detokenizer(BYTES)
    assert reader.feed(Step(ids=list("ok😀".encode()[:-1]))).text == "ok"
    assert reader.close() == ReleasedText("")


@given(
    st.text("ab<|", max_size=40),
    st.lists(st.text("ab<|", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_stops_do_not_depend_on_how_the_text_is_split(
    text: str, stops: list[str], ends: list[int]
) -> None:
    whole = read(Detokenizer(BYTES, stops=stops), split_into_steps(text.encode(), []))
    one_by_one = read(
        Detokenizer(BYTES, stops=stops), split_into_steps(text.encode(), range(len(text)))
    )
    pieces = read(Detokenizer(BYTES, stops=stops), split_into_steps(text.encode(), ends))
    assert whole == one_by_one == pieces
    assert not any(stop in whole[0] for stop in stops)
    assert text.startswith(whole[0])
    if whole[2] is None:
        assert whole[0] == text


@pytest.mark.parametrize(
    ("stops", "text", "before", "stop"),
    [
        (["b", "a"], "xxaxxb", "xx", "a"),
        (["END"], "It is the END.", "It is the ", "END"),
        (["", "."], "one. two", "one", "."),
        (["\n\n"], "a\nb\n\nc", "a\nb", "\n\n"),
        (["abcde", "bcd"], "abcdX", "a", "bcd"),
        (["bc", "abc"], "abc", "", "abc"),
        (["zz"], "plain", "plain", None),
        (["plain text"], "plain", "plain", None),
    ],
)
def test_first_complete_stop_wins(
    stops: list[str], text: str, before: str, stop: str | None
) -> None:
    assert read(Detokenizer(BYTES, stops=stops), split_into_steps(text.encode(), [1, 3]))[::2] == (
        before,
        stop,
    )


def test_only_a_possible_start_of_a_stop_is_held_back() -> None:
    stops = StopMatcher(["STOP"])
    assert stops.feed("no S") == ("no ", None)
    assert stops.feed("T") == ("", None)
    assert stops.feed("AY") == ("STAY", None)


@given(st.text(min_size=1, max_size=30), st.lists(st.integers(0, 200), max_size=6))
def test_every_token_has_one_logprob_in_order(text: str, ends: list[int]) -> None:
    ids = list(text.encode())
    reader = Detokenizer(BYTES, logprobs=True)
    data: list[bytes] = []
    for step in split_into_steps(ids, ends, logprobs=True):
        data += [token.data for token in reader.feed(step).tokens]
    data += [token.data for token in reader.close().tokens]
    assert data == [bytes([token]) for token in ids]


def test_logprobs_are_released_with_their_text() -> None:
    reader = Detokenizer(LONG, stops=["STOP"], logprobs=True)
    hello = reader.feed(Step(ids=[256], logprobs=[Logprob(256, -0.1)]))
    held = reader.feed(Step(ids=[ord("S")], logprobs=[Logprob(83, -0.2)]))
    released = reader.feed(Step(ids=[257], logprobs=[Logprob(257, -0.3)]))
    assert [token.text for token in hello.tokens] == ["hello"]
    assert held == ReleasedText("")
    assert (released.text, [token.text for token in released.tokens]) == (
        "S wörld",
        ["S", " wörld"],
    )


def test_tokens_of_a_stop_string_have_no_logprob() -> None:
    ids = [256, *b"STOP"]
    steps = split_into_steps(ids, range(len(ids)), logprobs=True)
    text, tokens, stop = read(Detokenizer(LONG, stops=["STOP"], logprobs=True), steps)
    assert (text, tokens, stop) == ("hello", ["hello"], "STOP")


def test_invalid_utf8_is_escaped() -> None:
    reader = Detokenizer(LONG, logprobs=True)
    token = reader.make_token(Logprob(260, -1.0, (Logprob(255, -2.0),)))
    assert (token.text, token.data) == ("\\xf0\\x9f\\x98", "😀".encode()[:3])
    assert token.top[0].text == "\\xff"


def test_hidden_special_tokens_are_not_text() -> None:
    reader = Detokenizer(LONG, hidden=frozenset({258}))
    assert reader.feed(Step(ids=[256, 258, 256])).text == "hellohello"


def test_text_of_an_engine_without_ids_is_cut_at_stops() -> None:
    reader = Detokenizer(None, stops=["!"])
    assert reader.feed(Step(text="hi")).text == "hi"
    assert reader.feed(Step(text=" you! there")) == ReleasedText(" you", (), "!")


@pytest.mark.parametrize("token", [-1, 10_000])
def test_unknown_token_is_an_engine_failure(token: int) -> None:
    with pytest.raises(EngineFailed):
        Detokenizer(BYTES).feed(Step(ids=[token]))


def test_nan_logprob_is_an_engine_failure() -> None:
    reader = Detokenizer(BYTES, logprobs=True)
    with pytest.raises(EngineFailed):
        reader.make_token(Logprob(1, math.nan))
    assert reader.make_token(Logprob(1, -math.inf)).logprob == -9999.0


def test_missing_logprobs_lose_no_text() -> None:
    reader = Detokenizer(BYTES, logprobs=True)
    assert reader.feed(Step(ids=[104, 105], logprobs=[Logprob(104, -1.0)])).text == "hi"
