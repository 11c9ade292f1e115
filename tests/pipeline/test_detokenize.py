"""Tokens to text: characters whole, stops found, logprobs beside their text, however it is cut."""

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
    """Feed steps until a stop was met: all text, all tokens, and the stop."""
    text, tokens = "", []
    for step in steps:
        gained = reader.feed(step)
        text += gained.text
        tokens += [token.text for token in gained.tokens]
        if gained.stop is not None:
            return text, tokens, gained.stop
    rest = reader.close()
    return text + rest.text, tokens + [token.text for token in rest.tokens], None


def cut(ids: Sequence[int], places: Sequence[int], logprobs: bool = False) -> list[Step]:
    """The ids in steps that end at the places."""
    ends = sorted({*(place % (len(ids) + 1) for place in places), len(ids)})
    steps, start = [], 0
    for end in ends:
        entries = [Logprob(token, -0.5) for token in ids[start:end]] if logprobs else []
        steps.append(Step(ids=list(ids[start:end]), logprobs=entries))
        start = end
    return steps


@given(st.text(), st.lists(st.integers(0, 400), max_size=8))
def test_d3_a_character_cut_over_tokens_arrives_whole(text: str, places: list[int]) -> None:
    steps = cut(text.encode(), places)
    reader = Detokenizer(BYTES)
    deltas = [reader.feed(step).text for step in steps]
    assert "".join(deltas) + reader.close().text == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


def test_d3_a_character_that_never_became_whole_is_dropped() -> None:
    reader = Detokenizer(BYTES)
    assert reader.feed(Step(ids=list("ok😀".encode()[:-1]))).text == "ok"
    assert reader.close() == ReleasedText("")


@given(
    st.text("ab<|", max_size=40),
    st.lists(st.text("ab<|", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_d4_d5_stops_are_cut_alike_for_every_way_of_cutting(
    text: str, stops: list[str], places: list[int]
) -> None:
    whole = read(Detokenizer(BYTES, stops=stops), cut(text.encode(), []))
    one_by_one = read(Detokenizer(BYTES, stops=stops), cut(text.encode(), range(len(text))))
    pieces = read(Detokenizer(BYTES, stops=stops), cut(text.encode(), places))
    assert whole == one_by_one == pieces
    assert not any(stop in whole[0] for stop in stops)
    assert text.startswith(whole[0])
    if whole[2] is None:
        assert whole[0] == text


@pytest.mark.parametrize(
    ("stops", "text", "before", "met"),
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
def test_d5_the_stop_that_is_complete_first_wins(
    stops: list[str], text: str, before: str, met: str | None
) -> None:
    assert read(Detokenizer(BYTES, stops=stops), cut(text.encode(), [1, 3]))[::2] == (before, met)


def test_d4_only_a_tail_that_may_become_a_stop_is_held_back() -> None:
    stops = StopMatcher(["STOP"])
    assert stops.feed("no S") == ("no ", None)
    assert stops.feed("T") == ("", None)
    assert stops.feed("AY") == ("STAY", None)


@given(st.text(min_size=1, max_size=30), st.lists(st.integers(0, 200), max_size=6))
def test_d34_every_token_has_one_entry_in_order(text: str, places: list[int]) -> None:
    ids = list(text.encode())
    reader = Detokenizer(BYTES, logprobs=True)
    seen: list[bytes] = []
    for step in cut(ids, places, logprobs=True):
        seen += [token.data for token in reader.feed(step).tokens]
    seen += [token.data for token in reader.close().tokens]
    assert seen == [bytes([one]) for one in ids]


def test_d34_entries_travel_with_the_text_they_stand_for() -> None:
    reader = Detokenizer(LONG, stops=["STOP"], logprobs=True)
    hello = reader.feed(Step(ids=[256], logprobs=[Logprob(256, -0.1)]))
    held = reader.feed(Step(ids=[ord("S")], logprobs=[Logprob(83, -0.2)]))
    freed = reader.feed(Step(ids=[257], logprobs=[Logprob(257, -0.3)]))
    assert [token.text for token in hello.tokens] == ["hello"]
    assert held == ReleasedText("")
    assert (freed.text, [token.text for token in freed.tokens]) == ("S wörld", ["S", " wörld"])


def test_tokens_of_a_stop_string_have_no_entry() -> None:
    ids = [256, *b"STOP"]
    steps = cut(ids, range(len(ids)), logprobs=True)
    text, tokens, stop = read(Detokenizer(LONG, stops=["STOP"], logprobs=True), steps)
    assert (text, tokens, stop) == ("hello", ["hello"], "STOP")


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    reader = Detokenizer(LONG, logprobs=True)
    token = reader.make_token(Logprob(260, -1.0, (Logprob(255, -2.0),)))
    assert (token.text, token.data) == ("\\xf0\\x9f\\x98", "😀".encode()[:3])
    assert token.top[0].text == "\\xff"


def test_control_tokens_are_not_text() -> None:
    reader = Detokenizer(LONG, hidden=frozenset({258}))
    assert reader.feed(Step(ids=[256, 258, 256])).text == "hellohello"


def test_text_of_an_engine_without_ids_passes_through_and_is_cut() -> None:
    reader = Detokenizer(None, stops=["!"])
    assert reader.feed(Step(text="hi")).text == "hi"
    assert reader.feed(Step(text=" you! there")) == ReleasedText(" you", (), "!")


@pytest.mark.parametrize("token", [-1, 10_000])
def test_an_unknown_token_is_the_engines_failure(token: int) -> None:
    with pytest.raises(EngineFailed):
        Detokenizer(BYTES).feed(Step(ids=[token]))


def test_d20_a_logprob_that_is_no_number_is_reported() -> None:
    reader = Detokenizer(BYTES, logprobs=True)
    with pytest.raises(EngineFailed):
        reader.make_token(Logprob(1, math.nan))
    assert reader.make_token(Logprob(1, -math.inf)).logprob == -9999.0


def test_entries_that_are_missing_lose_no_text() -> None:
    reader = Detokenizer(BYTES, logprobs=True)
    assert reader.feed(Step(ids=[104, 105], logprobs=[Logprob(104, -1.0)])).text == "hi"
