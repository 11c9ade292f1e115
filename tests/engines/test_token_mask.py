"""Token masks of grammars: allowed tokens, ends, and states in which nothing is allowed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dragoman.engines.grammar import check_tokens_allowed
from dragoman.engines.token_mask import (
    CACHED_GRAMMARS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_NESTING,
    GrammarState,
    TokenMasker,
)
from dragoman.errors import BadRequest
from dragoman.testing import ByteTokenizer

TOKENIZER = ByteTokenizer(markup=("<call>",))
IDS = TOKENIZER.specials
START, END, CALL = IDS["<|im_start|>"], IDS["<|im_end|>"], IDS["<call>"]
SIZE = TOKENIZER.vocab_size
MASKER = TokenMasker(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
SCHEMA = (
    '%json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],'
    ' "additionalProperties": false,'
    ' "x-guidance": {"whitespace_flexible": false, "key_separator": ": "}}'
)


def make_grammar(start: str, **rules: str) -> str:
    lines = [f"start: {start}", *(f"{name}: {body}" for name, body in rules.items())]
    return "\n".join(["%llguidance {}", *lines])


def get_allowed(state: GrammarState) -> set[int]:
    mask = state.get_mask()
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def encode(text: str) -> set[int]:
    return set(text.encode())


@pytest.mark.parametrize(
    ("start", "before", "allowed"),
    [
        ('"ab"', b"", encode("a")),
        ('"ab"', b"a", encode("b")),
        ('"ab"', b"ab", {END}),
        ("/[ab]+/", b"", encode("ab")),
        ("/[ab]+/", b"ba", encode("ab") | {END}),
        ('""', b"", {END}),
        ('"é" | "è"', b"\xc3", {0xA8, 0xA9}),
        ('"yes" | "yet" | "no"', b"ye", encode("st")),
        (SCHEMA, b'{"a"', encode(":")),
        (SCHEMA, b'{"a": ', encode("-0123456789")),
        (SCHEMA, b'{"a": 1}', {END}),
        ('"<call>" /a*/', b"", encode("<") | {CALL}),  # markup is text
        ('"<call>" /a*/', [CALL], encode("a") | {END}),
        ('"<|im_start|>"', b"", encode("<")),  # a control token is not
        (f"<[{START}]> /a*/", b"", {START}),
        ('<|im_start|> "a"', [START], encode("a")),
        (f'"a" <[{END}]>', b"a", {END}),  # a stop token that the grammar names
    ],
    ids=str,
)
def test_a_mask_holds_the_allowed_tokens(
    start: str, before: bytes | list[int], allowed: set[int]
) -> None:
    state = MASKER.start_grammar(make_grammar(start))
    state.advance(*before)
    assert get_allowed(state) == allowed
    is_named = f"<[{END}]>" in start
    assert state.is_accepting == (END in allowed and not is_named)
    assert state.must_end == (allowed == {END} and not is_named)
    assert state.can_end_with(END) == (END in allowed)


@pytest.mark.parametrize("spare", [0, 9, -9])
def test_a_mask_is_applied_to_logits_of_any_length(spare: int) -> None:
    logits = np.arange(SIZE + spare, dtype=np.float32)
    MASKER.start_grammar(make_grammar("/[ab]/")).apply_mask(logits)
    remaining = np.flatnonzero(logits > -np.inf)
    assert remaining.tolist() == [97, 98]
    assert logits[remaining].tolist() == [97.0, 98.0]


def test_stop_tokens_are_allowed_where_the_grammar_accepts_whatever_their_text() -> None:
    ends = {END, ord("b"), 256}
    masker = TokenMasker(TOKENIZER.pieces, ends, TOKENIZER.control)
    state = masker.start_grammar(make_grammar("/[abc]{2,}/"), stop_ids=[ord("c")])
    state.advance(ord("a"))
    assert get_allowed(state) == encode("a")
    state.advance(ord("a"))
    assert get_allowed(state) == encode("abc") | ends


def test_without_stop_tokens_an_answer_must_end_where_nothing_is_allowed() -> None:
    masker = TokenMasker([bytes([byte]) for byte in range(256)], (), ())
    state = masker.start_grammar(make_grammar('"a" | ""'))
    logits = np.zeros(300)
    state.apply_mask(logits)
    assert np.flatnonzero(logits == 0).tolist() == [97]
    assert state.is_accepting
    assert not state.must_end
    state.advance(97)
    state.get_mask()
    assert state.must_end


def test_a_mask_is_computed_once_and_can_be_awaited() -> None:
    state = MASKER.start_grammar(make_grammar("/[ab]/"))
    first = state.start_mask()
    assert state.start_mask() is first

    async def wait() -> bytes:
        return await asyncio.wrap_future(state.start_mask())

    assert asyncio.run(wait()) == first.result() == state.get_mask()
    state.advance(97)
    assert state.start_mask() is not first


def test_every_method_waits_for_the_worker() -> None:
    rule = make_grammar("/([a-z]{1,9} ){1,40}/")
    state = MASKER.start_grammar(rule)
    for token in b"one two three " * 3:
        state.start_mask()
        state.advance(token)
        state.start_mask()
        assert state.is_accepting == (token == 32)
        state.start_mask()
        assert not state.must_end


def test_states_of_one_grammar_are_independent_in_any_thread() -> None:
    rule = make_grammar("/a[0-9]{3}|b[a-z]{3}/")

    def walk(text: bytes) -> list[int]:
        state = MASKER.start_grammar(rule)
        counts = []
        for token in text:
            state.start_mask()
            counts.append(len(get_allowed(state)))
            state.advance(token)
        assert state.must_end
        return counts

    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(walk, [b"a123", b"bxyz"] * 20))
    assert counts == [[2, 10, 10, 10], [2, 26, 26, 26]] * 20


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (make_grammar("nosuch"), "nosuch"),
        (make_grammar("("), "is invalid"),
        (make_grammar(f"<[{SIZE + 7}]>"), "is invalid"),
        (make_grammar("<|nosuch|>"), "is invalid"),
        ("", "empty"),
        (" \n", "empty"),
        (make_grammar('"a"' + " " * MAX_GRAMMAR_CHARACTERS), "too long"),
        (make_grammar("(" * (MAX_NESTING + 1) + '"a"' + ")" * (MAX_NESTING + 1)), "nested"),
        (make_grammar("X", X="/[0-9]/ & /[a-z]/"), "no token is allowed"),
        (make_grammar('start "a"'), "no token is allowed"),
    ],
)
def test_an_invalid_grammar_is_rejected(rule: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as rejected:
        MASKER.start_grammar(rule)
    assert (rejected.value.param, rejected.value.code) == ("grammar", "invalid_grammar")
    assert "\n" not in rejected.value.message


def test_a_state_that_allows_nothing_is_an_error_and_not_an_end() -> None:
    state = MASKER.start_grammar(make_grammar('"a" | "b" X', X="/[0-9]/ & /[a-z]/"))
    state.advance(ord("b"))
    for call in (state.get_mask, state.get_mask, lambda: state.advance(48)):
        with pytest.raises(BadRequest, match="no token is allowed") as rejected:
            call()
        assert (rejected.value.param, rejected.value.code) == ("grammar", "invalid_grammar")
    assert not state.is_accepting
    assert not state.must_end


@pytest.mark.parametrize("token", [ord("x"), START, 5000])
def test_a_token_that_is_not_allowed_is_rejected(token: int) -> None:
    state = MASKER.start_grammar(make_grammar("/[ab]+/"))
    with pytest.raises(BadRequest, match="no token is allowed"):
        state.advance(token)


def test_a_limited_number_of_grammars_is_cached() -> None:
    masker = TokenMasker(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
    for number in [*range(CACHED_GRAMMARS * 3), 0]:
        state = masker.start_grammar(make_grammar(f'"{number}"'))
        state.advance(*str(number).encode())
        assert state.must_end


def test_a_choice_that_becomes_too_costly_breaks_no_other() -> None:
    costly = make_grammar("S", S=r'/"[^"]{0,3000}"/ & ~/(?s:.*)<ab>(?s:.*)/')
    for _ in range(2):
        state = MASKER.start_grammar(costly)
        state.advance(*b'"<a')
        assert ord("x") in get_allowed(state)
        state.advance(ord("b"))
        with pytest.raises(BadRequest, match="too complex"):
            state.get_mask()


# how the GGUF engine checks the answers of its server


@pytest.mark.parametrize(
    ("start", "ids", "is_allowed"),
    [
        ("/[ab]+/", [97, 98], True),
        ("/[ab]+/", [97, END, 120], True),  # tokens after a stop token do not matter
        ("/[ab]+/", [END], False),
        ("/[ab]+/", [97, 120], False),
        (f'"a" <[{END}]>', [97, END], True),
        (f'"a" <[{END}]> "b"', [97, END], False),
    ],
)
def test_an_answer_that_breaks_its_grammar_is_an_error(
    start: str, ids: list[int], is_allowed: bool
) -> None:
    state = MASKER.start_grammar(make_grammar(start))
    if is_allowed:
        check_tokens_allowed(state, ids, frozenset({END}))
        return
    with pytest.raises(BadRequest, match="no token is allowed"):
        check_tokens_allowed(state, ids, frozenset({END}))
