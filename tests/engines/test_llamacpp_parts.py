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
from dragoman.engines.llamacpp.slot import CacheLabel
from dragoman.engines.llamacpp.slots import SlotPool
from dragoman.errors import ContextOverflow, EngineFailed, InvalidGrammar
from dragoman.types import DEFAULT_SAMPLING, Adapter, Capabilities, Job, Logprob, Sampling, Step

# the request to the server

REQUEST = NativeRequest(prompt=[1, 2], max_tokens=7, seed=5)
GRAMMAR = '%llguidance {}\nstart: "a"'


def build_body(
    sampling: Sampling | None = None, request: NativeRequest = REQUEST, **fields: Any
) -> dict[str, Any]:
    resolved = (sampling or Sampling()).with_defaults(DEFAULT_SAMPLING)
    job = Job(id="a", prompt=[1, 2], sampling=resolved, **fields)
    return build_payload(job, request, 1000, {"x": 0, "y": 1})


@pytest.mark.parametrize(
    ("sampling", "expected"),
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
def test_every_sampling_field_reaches_the_server(
    sampling: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = build_body(Sampling(**sampling))
    assert {name: body[name] for name in expected} == expected
    plain = build_body()
    changed = {name for name in body if body[name] != plain[name]}
    assert changed == {name for name in expected if expected[name] != plain[name]}


def test_fields_that_are_not_set_have_our_defaults() -> None:
    body = build_body()
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert (body["typical_p"], body["repeat_penalty"], body["repeat_last_n"]) == (1.0, 1.0, 64)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert (body["ignore_eos"], body["logit_bias"], body["n_probs"]) == (False, [], 0)
    assert "grammar" not in body
    assert body == build_payload(
        Job(id="a", prompt=[1], sampling=Sampling()), REQUEST, 1000, {"x": 0, "y": 1}
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 5}, {"n_probs": 5}),
        ({"cache_prompt": False}, {"cache_prompt": False}),
        ({"grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ],
    ids=str,
)
def test_fields_of_a_job_reach_the_server(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    body = build_body(**fields)
    assert {name: body[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("adapters", "scales"),
    [
        ((), [0.0, 0.0]),
        ((Adapter("y", 0.5),), [0.0, 0.5]),
        ((Adapter("x"), Adapter("y", 2.0)), [1.0, 2.0]),
    ],
)
def test_every_request_sets_every_adapter(
    adapters: tuple[Adapter, ...], scales: list[float]
) -> None:
    lora = build_body(lora=adapters)["lora"]
    assert lora == [{"id": number, "scale": scale} for number, scale in enumerate(scales)]


def test_a_request_can_forbid_every_end() -> None:
    request = NativeRequest(prompt=[1], max_tokens=3, seed=1, forbid_end=True)
    body = build_body(Sampling(stop_token_ids=(8,), logit_bias={9: 1.0}), request)
    assert body["ignore_eos"] is True
    assert body["logit_bias"] == [[9, 1.0], [8, False]]


def test_under_a_grammar_no_token_is_forbidden_completely() -> None:
    body = build_body(Sampling(logit_bias={4: -1000.0}), grammar=GRAMMAR)
    assert body["logit_bias"] == [[4, -100.0]]


@pytest.mark.parametrize("seed", [0, 5, -1, 2**31, 2**32 - 1, 2**63])
def test_any_integer_is_a_seed(seed: int) -> None:
    sent = build_body(request=NativeRequest(prompt=[1], max_tokens=1, seed=seed))["seed"]
    assert 0 <= sent < SEED_COUNT
    assert sent == build_body(request=NativeRequest(prompt=[1], max_tokens=1, seed=seed))["seed"]


def test_logprobs_have_the_requested_number_of_alternatives() -> None:
    native = NativeLogprob(3, -0.5, [NativeLogprob(3, -0.5), NativeLogprob(4, -3.4e38)])
    assert convert_logprob(native, 0) == Logprob(3, -0.5)
    assert convert_logprob(native, 2) == Logprob(3, -0.5, (Logprob(3, -0.5), Logprob(4, -9999.0)))


@pytest.mark.parametrize(
    ("native", "error_class", "param"),
    [
        (
            NativeError(400, "too long", "exceed_context_size_error", 1200),
            ContextOverflow,
            "messages",
        ),
        (NativeError(400, "Failed to start: failed to parse grammar"), InvalidGrammar, "grammar"),
        (NativeError(400, "Prompt contains invalid tokens"), EngineFailed, None),
        (NativeError(500, "/secret/grammar.cpp: compute error"), EngineFailed, None),
    ],
)
def test_errors_of_the_server_are_converted(
    native: NativeError, error_class: type[Exception], param: str | None
) -> None:
    error = convert_error(native, Capabilities(context=1000, trained_context=131072))
    assert type(error) is error_class
    assert error.param == param
    assert "/" not in error.message
    if error_class is ContextOverflow:
        assert error.message == (
            "This model's maximum context length is 1000 tokens (it was trained for 131072 tokens; "
            "the server's --context can raise it). However, your messages resulted in 1200 tokens. "
            "Please shorten your messages."
        )


def test_unknown_fields_of_events_are_ignored() -> None:
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
def test_a_chunked_response_is_parsed_however_it_is_cut(size: int) -> None:
    parser, splitter, events = ResponseParser(), EventSplitter(), []
    for start in range(0, len(CHUNKED), size):
        events += splitter.feed(parser.feed(CHUNKED[start : start + size]))
    assert parser.status == 200
    assert parser.is_complete
    assert events == [b'{"a":1}', b"{}"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_response_with_a_length_is_parsed_however_it_is_cut(size: int) -> None:
    parser, body = ResponseParser(), b""
    for start in range(0, len(LENGTH), size):
        body += parser.feed(LENGTH[start : start + size])
    assert (parser.status, parser.is_complete, body) == (400, True, b"hello world")


# tokens that the server does not report

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
    missing = PieceIndex(PIECES).find_missing(text, last, len(before))
    assert missing is not None
    assert len(missing) == len(before)
    assert b"".join(PIECES[token] for token in [*missing, last]).decode(errors="ignore") == text


@pytest.mark.parametrize(("before", "last"), [([0xE6], 259), ([256], 258), ([0xF0, 0xE6], 0x41)])
def test_invalid_bytes_are_replaced_by_tokens_with_the_same_text(
    before: list[int], last: int
) -> None:
    text = b"".join(PIECES[token] for token in [*before, last]).decode(errors="replace")
    missing = PieceIndex(PIECES).find_missing(text, last, len(before))
    assert missing is not None
    again = b"".join(PIECES[token] for token in [*missing, last]).decode(errors="replace")
    assert again.replace("\ufffd\ufffd", "\ufffd") == text.replace("\ufffd\ufffd", "\ufffd")


def test_impossible_tokens_are_not_invented() -> None:
    assert PieceIndex(PIECES).find_missing("abc", ord("c"), 5) is None


# choices


def test_a_choice_ends_at_its_limit() -> None:
    choice = ChoiceProgress(1, 3, frozenset({9}))
    assert choice.add_tokens([4, 5], []) == [Step(1, None, [4, 5], 2)]
    assert choice.add_tokens([6, 7], []) == [Step(1, None, [6], 1, finish="length")]
    assert choice.has_request_ended


def test_a_stop_token_ends_a_choice_and_is_not_part_of_it() -> None:
    choice = ChoiceProgress(0, 5, frozenset({9}))
    logprobs = [Logprob(4, -1.0), Logprob(9, -2.0), Logprob(5, -3.0)]
    assert choice.add_tokens([4, 9, 5], logprobs) == [
        Step(0, None, [4], 1, logprobs[:1]),
        Step(0, None, [], 1, logprobs[1:2], "stop", 9),
    ]


def test_a_stop_token_beyond_the_limit_does_not_count() -> None:
    assert ChoiceProgress(0, 1, frozenset({9})).add_tokens([4, 9], []) == [
        Step(0, None, [4], 1, finish="length")
    ]


def test_counts_of_the_prompt_are_reported_once() -> None:
    choice = ChoiceProgress(0, 5, frozenset())
    choice.prompt_tokens, choice.cached_tokens = 12, 3
    steps = choice.add_tokens([1], []) + choice.add_tokens([2], [])
    assert [(step.prompt_tokens, step.cached_tokens) for step in steps] == [(12, 3), (None, None)]


def test_a_request_that_ends_inside_a_character_has_lost_tokens() -> None:
    choice = ChoiceProgress(0, 5, frozenset())
    choice.start_request(5)
    assert choice.count_new_tokens(NativeEvent(tokens_predicted=3)) == 3
    choice.add_tokens([1, 2, 3], [])
    choice.end_request(NativeEvent(stop=True, tokens_predicted=5))
    assert (choice.lost_tokens, choice.has_ended_early, choice.finish) == (2, False, None)


# slots


def test_slots_are_assigned_first_come_first_served() -> None:
    async def go() -> list[str]:
        slots, order = SlotPool(2), []
        release = asyncio.Event()

        async def hold_slots(name: str, count: int) -> None:
            async with slots.acquire(count, CacheLabel()):
                order.append(name)
                await release.wait()

        tasks = [asyncio.create_task(hold_slots(*task)) for task in [("a", 1), ("b", 2), ("c", 1)]]
        await asyncio.sleep(0)
        assert order == ["a"]  # `c` would fit, but `b` came before it
        release.set()
        await asyncio.gather(*tasks)
        assert slots.free == 2
        return order

    assert asyncio.run(go()) == ["a", "b", "c"]


def test_a_cancelled_request_blocks_no_other() -> None:
    async def go() -> None:
        slots = SlotPool(2)

        async def hold_slots(count: int) -> None:
            async with slots.acquire(count, CacheLabel()):
                pass

        async with slots.acquire(1, CacheLabel()):
            wide = asyncio.create_task(hold_slots(2))
            await asyncio.sleep(0)
            narrow = asyncio.create_task(hold_slots(1))
            await asyncio.sleep(0)
            wide.cancel()
            async with asyncio.timeout(1):
                await narrow
        assert slots.free == 2
        (result,) = await asyncio.gather(wide, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError)

    asyncio.run(go())


def test_a_request_is_cancelled_when_a_slot_becomes_free() -> None:
    async def go() -> None:
        slots = SlotPool(1)

        async def hold_slot() -> None:
            async with slots.acquire(1, CacheLabel()):
                pass

        async with slots.acquire(1, CacheLabel()):
            waiting = asyncio.create_task(hold_slot())
            await asyncio.sleep(0)
            waiting.cancel()  # it runs on after the slot is free
        (result,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError)
        assert slots.free == 1

    asyncio.run(go())


ANN, BOB = CacheLabel("ann"), CacheLabel("bob")


async def respond(result: str = "response") -> str:
    await asyncio.sleep(0)
    return result


async def fail() -> str:
    await asyncio.sleep(0)
    raise EngineFailed("rejected")


def test_a_slot_is_reused_by_its_own_label_only() -> None:
    async def may_reuse(slots: SlotPool, label: CacheLabel) -> bool:
        async with slots.acquire(1, label, [1, 2, 3]) as lease:
            return lease.may_reuse

    async def go() -> None:
        slots = SlotPool(1)
        assert not await may_reuse(slots, ANN)  # the server may have used it before
        async with slots.acquire(1, ANN) as lease:
            await lease.request([1, 2], respond())
        assert await may_reuse(slots, ANN)
        assert not await may_reuse(slots, BOB)
        assert not await may_reuse(slots, CacheLabel("ann", (Adapter("poet"),)))
        async with slots.acquire(1, BOB) as lease:
            with pytest.raises(EngineFailed):
                await lease.request([1, 2], fail())
        # a rejected request has not cleared the slot, so it is nobody's
        assert not await may_reuse(slots, BOB)
        assert not await may_reuse(slots, ANN)

    asyncio.run(go())


def test_further_slots_of_a_job_are_nobodys_afterwards() -> None:
    """The server picks the slots of further choices itself, so they may hold anything."""

    async def go() -> list[bool]:
        slots = SlotPool(2)
        for _ in range(2):
            async with slots.acquire(1, BOB, [7]) as lease:
                await lease.request([7], respond())
        async with slots.acquire(2, ANN, [1]) as lease:
            await lease.request([1], respond())
        return sorted([(await reuse(slots, label)) for label in (ANN, BOB)])

    async def reuse(slots: SlotPool, label: CacheLabel) -> bool:
        async with slots.acquire(2, label, [1 if label == ANN else 7]) as lease:
            return lease.may_reuse

    assert asyncio.run(go()) == [False, True]


def test_a_cancelled_request_keeps_its_slot_until_the_server_responds() -> None:
    """It could otherwise run after the slot has another label."""

    async def go() -> None:
        slots = SlotPool(1)
        discarded: list[str] = []
        is_sent, may_respond = asyncio.Event(), asyncio.Event()

        async def respond_late() -> str:
            is_sent.set()
            await may_respond.wait()
            return "late response"

        async def run_job() -> None:
            async with slots.acquire(1, ANN) as lease:
                await lease.request([1, 2], respond_late(), discarded.append)

        job = asyncio.create_task(run_job())
        await is_sent.wait()
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        assert (job.cancelled(), slots.free, discarded) == (True, 0, [])
        may_respond.set()
        async with asyncio.timeout(5), slots.acquire(1, BOB, [1, 2]) as lease:
            assert discarded == ["late response"]
            assert not lease.may_reuse

    asyncio.run(go())


def test_slots_are_taken_from_nobody_then_from_who_has_the_most() -> None:
    async def use(slots: SlotPool, label: CacheLabel, prompt: list[int]) -> int:
        async with slots.acquire(1, label, prompt) as lease:
            await lease.request(prompt, respond())
            return lease.slot.number

    async def go() -> list[int]:
        slots = SlotPool(3)
        return [
            await use(slots, label, prompt)
            for label, prompt in [
                (ANN, [1]),  # all are empty
                (BOB, [2]),
                (BOB, [3]),
                (ANN, [1, 5]),  # it continues the first
                (CacheLabel("eve"), [4]),  # the older one of Bob's, who has two
                (BOB, [3, 6]),
            ]
        ]

    assert asyncio.run(go()) == [2, 1, 0, 2, 1, 0]
