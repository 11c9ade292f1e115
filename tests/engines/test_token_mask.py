"""Masks of grammars: what may come next, what may end, and grammars that lead nowhere."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dragoman.engines.llamacpp.grammar import keep_to
from dragoman.engines.token_mask import DEEPEST, KEPT, LONGEST, Following, TokenMasker
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


def allowed(following: Following) -> set[int]:
    mask = following.mask()
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
    following = MASKER.follow(grammar(start))
    following.take(*said)
    assert allowed(following) == next_
    named = f"<[{END}]>" in start
    assert following.accepting == (END in next_ and not named)
    assert following.over == (next_ == {END} and not named)
    assert following.may_end(END) == (END in next_)


@pytest.mark.parametrize("spare", [0, 9, -9])
def test_a_mask_is_laid_over_logits_of_any_length(spare: int) -> None:
    logits = np.arange(SIZE + spare, dtype=np.float32)
    MASKER.follow(grammar("/[ab]/")).apply(logits)
    kept = np.flatnonzero(logits > -np.inf)
    assert kept.tolist() == [97, 98]
    assert logits[kept].tolist() == [97.0, 98.0]


def test_ends_are_allowed_where_the_grammar_accepts_whatever_they_are_as_text() -> None:
    ends = {END, ord("b"), 256}
    masker = TokenMasker(TOKENIZER.pieces, ends, TOKENIZER.control)
    following = masker.follow(grammar("/[abc]{2,}/"), stops=[ord("c")])
    following.take(ord("a"))
    assert allowed(following) == letters("a")
    following.take(ord("a"))
    assert allowed(following) == letters("abc") | ends


def test_without_an_end_an_answer_is_over_where_nothing_follows() -> None:
    masker = TokenMasker([bytes([byte]) for byte in range(256)], (), ())
    following = masker.follow(grammar('"a" | ""'))
    logits = np.zeros(300)
    following.apply(logits)
    assert np.flatnonzero(logits == 0).tolist() == [97]
    assert following.accepting
    assert not following.over
    following.take(97)
    following.mask()
    assert following.over


def test_a_mask_is_computed_once_and_can_be_awaited() -> None:
    following = MASKER.follow(grammar("/[ab]/"))
    first = following.ahead()
    assert following.ahead() is first

    async def wait() -> bytes:
        return await asyncio.wrap_future(following.ahead())

    assert asyncio.run(wait()) == first.result() == following.mask()
    following.take(97)
    assert following.ahead() is not first


def test_whatever_is_asked_waits_for_the_worker() -> None:
    rule = grammar("/([a-z]{1,9} ){1,40}/")
    following = MASKER.follow(rule)
    for token in b"one two three " * 3:
        following.ahead()
        following.take(token)
        following.ahead()
        assert following.accepting == (token == 32)
        following.ahead()
        assert not following.over


def test_followings_of_one_grammar_go_their_own_ways_in_any_thread() -> None:
    rule = grammar("/a[0-9]{3}|b[a-z]{3}/")

    def walk(text: bytes) -> list[int]:
        following = MASKER.follow(rule)
        counts = []
        for token in text:
            following.ahead()
            counts.append(len(allowed(following)))
            following.take(token)
        assert following.over
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
        (grammar('"a"' + " " * LONGEST), "too long"),
        (grammar("(" * (DEEPEST + 1) + '"a"' + ")" * (DEEPEST + 1)), "nested"),
        (grammar("X", X="/[0-9]/ & /[a-z]/"), "leads nowhere"),
        (grammar('start "a"'), "leads nowhere"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused(rule: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        MASKER.follow(rule)
    assert (refused.value.param, refused.value.code) == ("grammar", "invalid_grammar")
    assert "\n" not in refused.value.message


def test_a_dead_end_is_an_error_and_no_end() -> None:
    following = MASKER.follow(grammar('"a" | "b" X', X="/[0-9]/ & /[a-z]/"))
    following.take(ord("b"))
    for ask in (following.mask, following.mask, lambda: following.take(48)):
        with pytest.raises(BadRequest, match="leads nowhere") as refused:
            ask()
        assert (refused.value.param, refused.value.code) == ("grammar", "invalid_grammar")
    assert not following.accepting
    assert not following.over


@pytest.mark.parametrize("token", [ord("x"), START, 5000])
def test_a_token_that_is_not_allowed_is_not_taken(token: int) -> None:
    following = MASKER.follow(grammar("/[ab]+/"))
    with pytest.raises(BadRequest, match="leads nowhere"):
        following.take(token)


def test_only_so_many_grammars_are_remembered() -> None:
    masker = TokenMasker(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
    for number in [*range(KEPT * 3), 0]:
        following = masker.follow(grammar(f'"{number}"'))
        following.take(*str(number).encode())
        assert following.over


def test_one_choice_that_went_too_far_spoils_no_other() -> None:
    costly = grammar("S", S=r'/"[^"]{0,3000}"/ & ~/(?s:.*)<ab>(?s:.*)/')
    for _ in range(2):
        following = MASKER.follow(costly)
        following.take(*b'"<a')
        assert ord("x") in allowed(following)
        following.take(ord("b"))
        with pytest.raises(BadRequest, match="too complex"):
            following.mask()


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
    following = MASKER.follow(grammar(start))
    if kept:
        keep_to(following, ids, frozenset({END}))
        return
    with pytest.raises(BadRequest, match="leads nowhere"):
        keep_to(following, ids, frozenset({END}))
