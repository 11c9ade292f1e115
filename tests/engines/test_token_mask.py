"""Masks of grammars: what may come next, what may end, and grammars that lead nowhere."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dragoman.engines.llamacpp.grammar import check_tokens_allowed
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


def grammar(start: str, **rules: str) -> str:
    lines = [f"start: {start}", *(f"{name}: {body}" for name, body in rules.items())]
    return "\n".join(["%llguidance {}", *lines])


def allowed(following: GrammarState) -> set[int]:
    mask = following.get_mask()
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def letters(text: str) -> set[int]:
    return set(text.encode())


@pytest.mark.parametrize(
    ("start", "said", "next_"),
    [
        ('"ab"', b"", letters("a")),
        ('"ab"', b"a", letters("b")),
        ('"ab"', b"ab", {END}),
        ("/[ab]+/", b"", letters("ab")),
        ("/[ab]+/", b"ba", letters("ab") | {END}),
        ('""', b"", {END}),
        ('"é" | "è"', b"\xc3", {0xA8, 0xA9}),
        ('"yes" | "yet" | "no"', b"ye", letters("st")),
        (SCHEMA, b'{"a"', letters(":")),
        (SCHEMA, b'{"a": ', letters("-0123456789")),
        (SCHEMA, b'{"a": 1}', {END}),
        ('"<call>" /a*/', b"", letters("<") | {CALL}),  # markup is text
        ('"<call>" /a*/', [CALL], letters("a") | {END}),
        ('"<|im_start|>"', b"", letters("<")),  # a control token is none
        (f"<[{START}]> /a*/", b"", {START}),
        ('<|im_start|> "a"', [START], letters("a")),
        (f'"a" <[{END}]>', b"a", {END}),  # an end that the grammar names
    ],
    ids=str,
)
def test_a_mask_is_what_may_come_next(start: str, said: bytes | list[int], next_: set[int]) -> None:
    following = MASKER.start_grammar(grammar(start))
    following.advance(*said)
    assert allowed(following) == next_
    named = f"<[{END}]>" in start
    assert following.is_accepting == (END in next_ and not named)
    assert following.must_end == (next_ == {END} and not named)
    assert following.can_end_with(END) == (END in next_)


@pytest.mark.parametrize("spare", [0, 9, -9])
def test_a_mask_is_laid_over_logits_of_any_length(spare: int) -> None:
    logits = np.arange(SIZE + spare, dtype=np.float32)
    MASKER.start_grammar(grammar("/[ab]/")).apply_mask(logits)
    kept = np.flatnonzero(logits > -np.inf)
    assert kept.tolist() == [97, 98]
    assert logits[kept].tolist() == [97.0, 98.0]


def test_ends_are_allowed_where_the_grammar_accepts_whatever_they_are_as_text() -> None:
    ends = {END, ord("b"), 256}
    masker = TokenMasker(TOKENIZER.pieces, ends, TOKENIZER.control)
    following = masker.start_grammar(grammar("/[abc]{2,}/"), stop_ids=[ord("c")])
    following.advance(ord("a"))
    assert allowed(following) == letters("a")
    following.advance(ord("a"))
    assert allowed(following) == letters("abc") | ends


def test_without_an_end_an_answer_is_over_where_nothing_follows() -> None:
    masker = TokenMasker([bytes([byte]) for byte in range(256)], (), ())
    following = masker.start_grammar(grammar('"a" | ""'))
    logits = np.zeros(300)
    following.apply_mask(logits)
    assert np.flatnonzero(logits == 0).tolist() == [97]
    assert following.is_accepting
    assert not following.must_end
    following.advance(97)
    following.get_mask()
    assert following.must_end


def test_a_mask_is_computed_once_and_can_be_awaited() -> None:
    following = MASKER.start_grammar(grammar("/[ab]/"))
    first = following.start_mask()
    assert following.start_mask() is first

    async def wait() -> bytes:
        return await asyncio.wrap_future(following.start_mask())

    assert asyncio.run(wait()) == first.result() == following.get_mask()
    following.advance(97)
    assert following.start_mask() is not first


def test_whatever_is_asked_waits_for_the_worker() -> None:
    rule = grammar("/([a-z]{1,9} ){1,40}/")
    following = MASKER.start_grammar(rule)
    for token in b"one two three " * 3:
        following.start_mask()
        following.advance(token)
        following.start_mask()
        assert following.is_accepting == (token == 32)
        following.start_mask()
        assert not following.must_end


def test_followings_of_one_grammar_go_their_own_ways_in_any_thread() -> None:
    rule = grammar("/a[0-9]{3}|b[a-z]{3}/")

    def walk(text: bytes) -> list[int]:
        following = MASKER.start_grammar(rule)
        counts = []
        for token in text:
            following.start_mask()
            counts.append(len(allowed(following)))
            following.advance(token)
        assert following.must_end
        return counts

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(walk, [b"a123", b"bxyz"] * 20))
    assert found == [[2, 10, 10, 10], [2, 26, 26, 26]] * 20


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (grammar("nosuch"), "nosuch"),
        (grammar("("), "cannot be read"),
        (grammar(f"<[{SIZE + 7}]>"), "cannot be read"),
        (grammar("<|nosuch|>"), "cannot be read"),
        ("", "empty"),
        (" \n", "empty"),
        (grammar('"a"' + " " * MAX_GRAMMAR_CHARACTERS), "too long"),
        (grammar("(" * (MAX_NESTING + 1) + '"a"' + ")" * (MAX_NESTING + 1)), "nested"),
        (grammar("X", X="/[0-9]/ & /[a-z]/"), "leads nowhere"),
        (grammar('start "a"'), "leads nowhere"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused(rule: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        MASKER.start_grammar(rule)
    assert (refused.value.param, refused.value.code) == ("grammar", "invalid_grammar")
    assert "\n" not in refused.value.message


def test_a_dead_end_is_an_error_and_no_end() -> None:
    following = MASKER.start_grammar(grammar('"a" | "b" X', X="/[0-9]/ & /[a-z]/"))
    following.advance(ord("b"))
    for ask in (following.get_mask, following.get_mask, lambda: following.advance(48)):
        with pytest.raises(BadRequest, match="leads nowhere") as refused:
            ask()
        assert (refused.value.param, refused.value.code) == ("grammar", "invalid_grammar")
    assert not following.is_accepting
    assert not following.must_end


@pytest.mark.parametrize("token", [ord("x"), START, 5000])
def test_a_token_that_is_not_allowed_is_not_taken(token: int) -> None:
    following = MASKER.start_grammar(grammar("/[ab]+/"))
    with pytest.raises(BadRequest, match="leads nowhere"):
        following.advance(token)


def test_only_so_many_grammars_are_remembered() -> None:
    masker = TokenMasker(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
    for number in [*range(CACHED_GRAMMARS * 3), 0]:
        following = masker.start_grammar(grammar(f'"{number}"'))
        following.advance(*str(number).encode())
        assert following.must_end


def test_one_choice_that_went_too_far_spoils_no_other() -> None:
    costly = grammar("S", S=r'/"[^"]{0,3000}"/ & ~/(?s:.*)<ab>(?s:.*)/')
    for _ in range(2):
        following = MASKER.start_grammar(costly)
        following.advance(*b'"<a')
        assert ord("x") in allowed(following)
        following.advance(ord("b"))
        with pytest.raises(BadRequest, match="too complex"):
            following.get_mask()


# what the GGUF engine checks its server's answers with


@pytest.mark.parametrize(
    ("start", "ids", "kept"),
    [
        ("/[ab]+/", [97, 98], True),
        ("/[ab]+/", [97, END, 120], True),  # what follows a stop is nobody's affair
        ("/[ab]+/", [END], False),
        ("/[ab]+/", [97, 120], False),
        (f'"a" <[{END}]>', [97, END], True),
        (f'"a" <[{END}]> "b"', [97, END], False),
    ],
)
def test_an_answer_that_leaves_its_grammar_is_an_error(
    start: str, ids: list[int], kept: bool
) -> None:
    following = MASKER.start_grammar(grammar(start))
    if kept:
        check_tokens_allowed(following, ids, frozenset({END}))
        return
    with pytest.raises(BadRequest, match="leads nowhere"):
        check_tokens_allowed(following, ids, frozenset({END}))
