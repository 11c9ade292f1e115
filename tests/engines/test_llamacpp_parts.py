"""The parts of the GGUF engine that need no model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.engines.llamacpp.choice import ChoiceProgress
from dragoman.engines.llamacpp.client import EventSplitter, ResponseParser
from dragoman.engines.llamacpp.params import (
    SEED_COUNT,
    NativeError,
    NativeEvent,
    NativeLogprob,
    NativeRequest,
    build_payload,
    convert_error,
    convert_logprob,
    event_decoder,
)
from dragoman.engines.llamacpp.partial_characters import PieceIndex
from dragoman.engines.llamacpp.slots import SlotPool
from dragoman.errors import BadRequest, ContextOverflow, EngineFailed
from dragoman.types import DEFAULT_SAMPLING, Adapter, Job, Logprob, Sampling, Step

# what a job asks for -> what the server is told

ASK = NativeRequest(prompt=[1, 2], max_tokens=7, seed=5)
GRAMMAR = '%llguidance {}\nstart: "a"'


def told(sampling: Sampling | None = None, ask: NativeRequest = ASK, **job: Any) -> dict[str, Any]:
    chosen = (sampling or Sampling()).with_defaults(DEFAULT_SAMPLING)
    asked = Job(id="a", prompt=[1, 2], sampling=chosen, **job)
    return build_payload(asked, ask, 1000, {"x": 0, "y": 1})


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temperature": 0.3}, {"temperature": 0.3}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_k": 1, "temperature": 2.0}, {"temperature": 0.0, "top_k": 1}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_p": 0.4}, {"top_p": 0.4}),
        ({"top_p": 0.0}, {"top_p": 0.0}),
        ({"min_p": 0.2}, {"min_p": 0.2}),
        ({"typical_p": 0.6}, {"typical_p": 0.6}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"frequency_penalty": -1.5}, {"frequency_penalty": -1.5}),
        ({"repetition_penalty": 1.2}, {"repeat_penalty": 1.2}),
        ({"repeat_last_n": 9}, {"repeat_last_n": 9}),
        ({"repeat_last_n": 0}, {"repeat_last_n": 0}),
        ({"repeat_last_n": -1}, {"repeat_last_n": 1000}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"logit_bias": {3: 1.5, 4: -100.0}}, {"logit_bias": [[3, 1.5], [4, False]]}),
        ({"logit_bias": {5: 400.0}}, {"logit_bias": [[5, 100.0]]}),
    ],
    ids=str,
)
def test_d23_every_sampling_field_reaches_the_server(
    sampling: dict[str, Any], said: dict[str, Any]
) -> None:
    body = told(Sampling(**sampling))
    assert {name: body[name] for name in said} == said
    plain = told()
    changed = {name for name in body if body[name] != plain[name]}
    assert changed == {name for name in said if said[name] != plain[name]}


def test_d26_nothing_said_is_exactly_our_defaults() -> None:
    body = told()
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert (body["typical_p"], body["repeat_penalty"], body["repeat_last_n"]) == (1.0, 1.0, 64)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert (body["ignore_eos"], body["logit_bias"], body["n_probs"]) == (False, [], 0)
    assert "grammar" not in body
    assert body == build_payload(
        Job(id="a", prompt=[1], sampling=Sampling()), ASK, 1000, {"x": 0, "y": 1}
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 5}, {"n_probs": 5}),
        ({"cache_prompt": False}, {"cache_prompt": False}),
        ({"grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ],
    ids=str,
)
def test_fields_of_a_job_reach_the_server(job: dict[str, Any], said: dict[str, Any]) -> None:
    body = told(**job)
    assert {name: body[name] for name in said} == said


@pytest.mark.parametrize(
    ("adapters", "scales"),
    [
        ((), [0.0, 0.0]),
        ((Adapter("y", 0.5),), [0.0, 0.5]),
        ((Adapter("x"), Adapter("y", 2.0)), [1.0, 2.0]),
    ],
)
def test_d72_every_adapter_is_named_in_every_request(
    adapters: tuple[Adapter, ...], scales: list[float]
) -> None:
    said = told(lora=adapters)["lora"]
    assert said == [{"id": number, "scale": scale} for number, scale in enumerate(scales)]


def test_nothing_that_ends_an_answer_may_come_in_an_unending_request() -> None:
    ask = NativeRequest(prompt=[1], max_tokens=3, seed=1, forbid_end=True)
    body = told(Sampling(stop_token_ids=(8,), logit_bias={9: 1.0}), ask)
    assert body["ignore_eos"] is True
    assert body["logit_bias"] == [[9, 1.0], [8, False]]


def test_under_a_grammar_no_token_is_forbidden_for_good() -> None:
    body = told(Sampling(logit_bias={4: -1000.0}), grammar=GRAMMAR)
    assert body["logit_bias"] == [[4, -100.0]]


@pytest.mark.parametrize("seed", [0, 5, -1, 2**31, 2**32 - 1, 2**63])
def test_any_seed_is_a_seed(seed: int) -> None:
    said = told(ask=NativeRequest(prompt=[1], max_tokens=1, seed=seed))["seed"]
    assert 0 <= said < SEED_COUNT
    assert said == told(ask=NativeRequest(prompt=[1], max_tokens=1, seed=seed))["seed"]


def test_logprobs_keep_as_many_alternatives_as_were_asked_for() -> None:
    prob = NativeLogprob(3, -0.5, [NativeLogprob(3, -0.5), NativeLogprob(4, -3.4e38)])
    assert convert_logprob(prob, 0) == Logprob(3, -0.5)
    assert convert_logprob(prob, 2) == Logprob(3, -0.5, (Logprob(3, -0.5), Logprob(4, -9999.0)))


@pytest.mark.parametrize(
    ("fault", "kind", "param"),
    [
        (
            NativeError(400, "too long", "exceed_context_size_error", 1200),
            ContextOverflow,
            "messages",
        ),
        (NativeError(400, "Failed to start: failed to parse grammar"), BadRequest, "grammar"),
        (NativeError(400, "Prompt contains invalid tokens"), EngineFailed, None),
        (NativeError(500, "/secret/grammar.cpp: compute error"), EngineFailed, None),
    ],
)
def test_d73_what_the_server_complains_about(
    fault: NativeError, kind: type[Exception], param: str | None
) -> None:
    error = convert_error(fault, 1000)
    assert type(error) is kind
    assert error.param == param
    assert "/" not in error.message
    if kind is ContextOverflow:
        assert error.message == (
            "This model's maximum context length is 1000 tokens. However, your prompt has "
            "1200 tokens. Please shorten it."
        )


def test_events_with_fields_we_do_not_know_are_read() -> None:
    event = event_decoder.decode(
        b'{"index":1,"content":"a","tokens":[5],"new":{"x":[1]},"stop":false}'
    )
    assert (event.index, event.content, event.tokens) == (1, "a", [5])


# HTTP

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"c\r\ndata: {\"a\":1\r\n3\r\n}\n\n\r\n5\r\n:\n\nda\r\n9\r\nta: {}\n\nx\r\n0\r\n\r\n"
)  # fmt: skip
LENGTH = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 11\r\n\r\nhello world"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_chunked_response_is_read_however_it_is_cut(size: int) -> None:
    reply, events, found = ResponseParser(), EventSplitter(), []
    for at in range(0, len(CHUNKED), size):
        found += events.feed(reply.feed(CHUNKED[at : at + size]))
    assert reply.status == 200
    assert reply.is_complete
    assert found == [b'{"a":1}', b"{}"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_response_with_a_length_is_read_however_it_is_cut(size: int) -> None:
    reply, body = ResponseParser(), b""
    for at in range(0, len(LENGTH), size):
        body += reply.feed(LENGTH[at : at + size])
    assert (reply.status, reply.is_complete, body) == (400, True, b"hello world")


# tokens that nobody told us

PIECES = [bytes([byte]) for byte in range(256)] + [b" \xe6\x97", b"\xf0\x9f", b"the", b" the"]


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ([0xE6, 0x97], 0xA5),
        ([256], 0xA5),
        ([257, 0x98], 0x80),
        ([0x20, 0xF0, 0x9F, 0x98], 0x80),
        ([0xE6, 0x97, 0xA5, 0xE6, 0x9C], 0xAC),
    ],
)
def test_missing_tokens_are_found_from_the_bytes(before: list[int], last: int) -> None:
    text = b"".join(PIECES[token] for token in [*before, last]).decode(errors="ignore")
    found = PieceIndex(PIECES).find_missing(text, last, len(before))
    assert found is not None
    assert len(found) == len(before)
    assert b"".join(PIECES[token] for token in [*found, last]).decode(errors="ignore") == text


@pytest.mark.parametrize(("before", "last"), [([0xE6], 259), ([256], 258), ([0xF0, 0xE6], 0x41)])
def test_bytes_that_are_no_text_are_found_by_how_they_read(before: list[int], last: int) -> None:
    text = b"".join(PIECES[token] for token in [*before, last]).decode(errors="replace")
    found = PieceIndex(PIECES).find_missing(text, last, len(before))
    assert found is not None
    again = b"".join(PIECES[token] for token in [*found, last]).decode(errors="replace")
    assert again.replace("\ufffd\ufffd", "\ufffd") == text.replace("\ufffd\ufffd", "\ufffd")


def test_tokens_that_cannot_be_are_not_made_up() -> None:
    assert PieceIndex(PIECES).find_missing("abc", ord("c"), 5) is None


# choices


def test_a_choice_ends_at_its_limit() -> None:
    track = ChoiceProgress(1, 3, frozenset({9}))
    assert track.add_tokens([4, 5], []) == [Step(1, None, [4, 5], 2)]
    assert track.add_tokens([6, 7], []) == [Step(1, None, [6], 1, finish="length")]
    assert track.request_ended


def test_d5_a_stop_token_ends_a_choice_and_is_no_part_of_it() -> None:
    track = ChoiceProgress(0, 5, frozenset({9}))
    marks = [Logprob(4, -1.0), Logprob(9, -2.0), Logprob(5, -3.0)]
    assert track.add_tokens([4, 9, 5], marks) == [
        Step(0, None, [4], 1, marks[:1]),
        Step(0, None, [], 1, marks[1:2], "stop", 9),
    ]


def test_a_stop_token_beyond_the_limit_does_not_count() -> None:
    assert ChoiceProgress(0, 1, frozenset({9})).add_tokens([4, 9], []) == [
        Step(0, None, [4], 1, finish="length")
    ]


def test_counts_go_out_once() -> None:
    track = ChoiceProgress(0, 5, frozenset())
    track.prompt_tokens, track.cached_tokens = 12, 3
    steps = track.add_tokens([1], []) + track.add_tokens([2], [])
    assert [(step.prompt_tokens, step.cached_tokens) for step in steps] == [(12, 3), (None, None)]


def test_a_request_that_ends_inside_a_character_has_lost_tokens() -> None:
    track = ChoiceProgress(0, 5, frozenset())
    track.start_request(5)
    assert track.count_new_tokens(NativeEvent(tokens_predicted=3)) == 3
    track.add_tokens([1, 2, 3], [])
    track.end_request(NativeEvent(stop=True, tokens_predicted=5))
    assert (track.lost_tokens, track.ended_early, track.finish) == (2, False, None)


# slots


def test_slots_are_given_first_come_first_served() -> None:
    async def go() -> list[str]:
        slots, order = SlotPool(2), []
        leave = asyncio.Event()

        async def one(name: str, count: int) -> None:
            async with slots.acquire(count):
                order.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(one(*each)) for each in [("a", 1), ("b", 2), ("c", 1)]]
        await asyncio.sleep(0)
        assert order == ["a"]  # `c` would fit, but `b` came before it
        leave.set()
        await asyncio.gather(*tasks)
        assert slots.free == 2
        return order

    assert asyncio.run(go()) == ["a", "b", "c"]


def test_who_walks_away_from_the_queue_holds_nobody_up() -> None:
    async def go() -> None:
        slots = SlotPool(2)

        async def one(count: int) -> None:
            async with slots.acquire(count):
                pass

        async with slots.acquire(1):
            wide = asyncio.create_task(one(2))
            await asyncio.sleep(0)
            narrow = asyncio.create_task(one(1))
            await asyncio.sleep(0)
            wide.cancel()
            async with asyncio.timeout(1):
                await narrow
        assert slots.free == 2
        assert (await asyncio.gather(wide, return_exceptions=True))[
            0
        ].__class__ is asyncio.CancelledError

    asyncio.run(go())
