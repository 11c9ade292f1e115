"""Bring your own engine: what is adapted, what passes through, and what is rejected."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from dragoman.engines import get_capabilities
from dragoman.engines.adapter import adapt
from dragoman.engines.merge import merge_streams
from dragoman.engines.request_engine import (
    SAMPLING_PARAM_NAMES,
    GenerateRequest,
    build_sampling_params,
)
from dragoman.errors import EngineFailed, Overloaded
from dragoman.testing import ScriptedEngine, check_engine
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Engine, Job, Sampling, Step


class RecordingEngine:
    """A user's engine that yields given chunks and records its requests."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks
        self.requests: list[GenerateRequest] = []
        self.open = 0

    async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
        self.requests.append(obj)
        self.open += 1
        try:
            for chunk in self.chunks:
                await asyncio.sleep(0)
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.open -= 1


class CumulativeEngine:
    """A correct engine of that kind: the answer so far, one word longer each time."""

    words = ("It", " is", " a", " town", " by", " the", " sea", ".", " Yes", ".")

    def __init__(self, delta: bool = False) -> None:
        self.yields = "delta" if delta else "cumulative"
        self.open = 0

    async def generate_request(self, obj: GenerateRequest) -> AsyncIterator[dict[str, Any]]:
        limit = min(obj.sampling_params.get("max_new_tokens", 99), len(self.words))
        self.open += 1
        try:
            for count in range(1, limit + 1):
                await asyncio.sleep(0)
                shown = (
                    self.words[count - 1 : count] if self.yields == "delta" else self.words[:count]
                )
                reason = None
                if count == limit:
                    reason = {"type": "length" if limit < len(self.words) else "stop"}
                yield make_chunk(
                    "".join(shown),
                    reason,
                    prompt_tokens=len((obj.text or "").split()),
                    completion_tokens=count,
                )
        finally:
            self.open -= 1


def make_chunk(text: Any, reason: Any = None, **meta: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": reason, **meta}}


def make_job(prompt: list[int] | str = "hi", *, n: int = 1, **sampling: Any) -> Job:
    return Job(id="j", prompt=prompt, n=n, sampling=Sampling(**sampling))


async def collect(engine: Engine, job: Job) -> list[Step]:
    await engine.admit(job)
    async with aclosing(engine.generate(job)) as stream:
        return [step async for step in stream]


def play(own: object, job: Job | None = None) -> list[Step]:
    return asyncio.run(collect(adapt(own), job or make_job()))


def test_cumulative_text_becomes_deltas() -> None:
    counts = {"prompt_tokens": 3}
    steps = play(
        RecordingEngine(
            make_chunk("", **counts),
            make_chunk("He", completion_tokens=1, **counts),
            make_chunk("He", completion_tokens=1, **counts),
            make_chunk("Hello", completion_tokens=3, **counts),
            make_chunk("Hello.", "stop", completion_tokens=4, **counts),
        )
    )
    assert steps == [
        Step(0, "", prompt_tokens=3),
        Step(0, "He", tokens=1),
        Step(0, "llo", tokens=2),
        Step(0, ".", tokens=1, finish="stop"),
    ]


def test_deltas_are_passed_on_unchanged() -> None:
    engine = RecordingEngine(
        make_chunk("a", completion_tokens=1), make_chunk("a", "stop", completion_tokens=2)
    )
    engine.yields = "delta"  # type: ignore[attr-defined]
    marked = RecordingEngine(make_chunk("a", delta=True), make_chunk("a", "stop", delta=True))
    for own in (engine, marked):
        assert [(step.text, step.tokens) for step in play(own)] == [("a", 1), ("a", 1)]


@pytest.mark.parametrize("delta", [False, True])
def test_ids_without_text(delta: bool) -> None:
    yields = [[5], [6, 7]] if delta else [[5], [5, 6, 7]]
    meta = {"delta": delta, "finish_reason": None}
    own = RecordingEngine(
        {"output_ids": yields[0], "meta_info": meta},
        {"output_ids": yields[1], "meta_info": {**meta, "finish_reason": "stop"}},
    )
    assert [(step.text, step.ids, step.tokens) for step in play(own)] == [
        (None, [5], 1), (None, [6, 7], 2),
    ]  # fmt: skip


def test_tokens_are_counted_by_ids_if_the_engine_does_not_count() -> None:
    own = RecordingEngine(
        {"text": "ab", "output_ids": [1, 2]}, {"text": "abc", "output_ids": [1, 2, 3]}
    )
    assert [step.tokens for step in play(own)] == [2, 1, 0]


FINISHES = [
    ("stop", "stop", None),
    ("length", "length", None),
    ({"type": "stop", "matched": 7}, "stop", 7),
    ({"type": "stop", "matched": "END"}, "stop", None),
    ({"type": "length", "length": 3}, "length", None),
]


@pytest.mark.parametrize(("reason", "finish", "stop_id"), FINISHES)
def test_finish_reasons(reason: Any, finish: str, stop_id: int | None) -> None:
    last = play(RecordingEngine(make_chunk("a", reason), make_chunk("a and more")))[-1]
    assert (last.text, last.finish, last.stop_id) == ("a", finish, stop_id)


def test_an_end_without_a_reason_is_a_stop_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = RecordingEngine(make_chunk("ab", completion_tokens=2))
    assert play(own)[-1] == Step(0, finish="stop")
    assert "without a finish_reason" in caplog.text
    assert play(own, make_job(max_tokens=2))[-1] == Step(0, finish="length")


def test_text_that_is_not_an_extension_is_a_failure_not_a_duplicate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[str | None]:
        texts = []
        engine = adapt(RecordingEngine(make_chunk("Hello wor"), make_chunk("Hullo world", "stop")))
        async with aclosing(engine.generate(make_job())) as stream:
            texts.append((await anext(stream)).text)
            with pytest.raises(EngineFailed):
                await anext(stream)
        return texts

    assert asyncio.run(main()) == ["Hello wor"]
    assert "does not begin with the 9 characters before" in caplog.text


INVALID_CHUNKS = [
    (make_chunk("a", completion_tokens=math.nan), "nan"),
    (make_chunk("a", prompt_tokens=math.inf), "inf"),
    (make_chunk("a", completion_tokens="many"), "many"),
    (make_chunk(17), "int"),
    (make_chunk(b"bytes"), "bytes"),
    (make_chunk("half \ud83d of it"), "surrogate"),
    (make_chunk("a", "abort"), "abort"),
    (make_chunk("a", {"type": "abort", "message": "oom"}), "abort"),
    (make_chunk("a", 3), "3"),
    ({"text": "a", "meta_info": [1]}, "list"),
    ({"output_ids": [1.5]}, "1.5"),
    ({"output_ids": [1, math.nan]}, "nan"),
    ({"output_ids": 7}, "int"),
    ("just text", "str"),
    (None, "NoneType"),
]


@pytest.mark.parametrize(("chunk", "logged"), INVALID_CHUNKS)
def test_an_invalid_chunk_is_logged_and_reported(
    chunk: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineFailed) as caught:
        play(RecordingEngine(chunk))
    assert logged in caplog.text
    assert caught.value.message == "The engine returned an invalid answer."


def test_ids_that_are_not_an_extension_are_a_failure() -> None:
    with pytest.raises(EngineFailed):
        play(RecordingEngine({"output_ids": [1, 2]}, {"output_ids": [1, 3, 4]}))


def test_no_answer_at_all_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineFailed):
        play(RecordingEngine())
    assert "without yielding anything" in caplog.text


def test_an_exception_of_the_engine_is_logged_and_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(EngineFailed) as caught:
        play(RecordingEngine(make_chunk("a"), ValueError("/secret/path")))
    assert "/secret/path" in caplog.text
    assert "/secret/path" not in caught.value.message
    with pytest.raises(Overloaded):
        play(RecordingEngine(Overloaded("Come back later.")))


def test_a_coroutine_that_returns_a_stream_is_accepted() -> None:
    class Awaitable:
        async def generate_request(self, obj: GenerateRequest) -> AsyncIterator[Any]:
            async def stream() -> AsyncIterator[Any]:
                yield make_chunk(obj.text, "stop")

            return stream()

    assert play(Awaitable())[-1].text == "hi"


def test_a_value_instead_of_a_stream_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Whole:
        async def generate_request(self, obj: GenerateRequest) -> Any:
            return make_chunk("a", "stop")

    with pytest.raises(EngineFailed):
        play(Whole())
    assert "engine Whole returned a dict from `generate_request`" in caplog.text


def test_a_stream_that_cannot_be_closed_is_accepted() -> None:
    class Plain:
        def __init__(self) -> None:
            self._chunks = [make_chunk("a"), make_chunk("ab", "stop")]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> Any:
            return self._chunks.pop(0)

    class Engine:
        def generate_request(self, obj: GenerateRequest) -> Plain:
            return Plain()

    assert [step.text for step in play(Engine())] == ["a", "b"]


def test_the_request_carries_prompt_sampling_and_id() -> None:
    own = RecordingEngine(make_chunk("a", "stop"))
    play(own, make_job("text", temperature=0.0, top_k=0, max_tokens=5, seed=3))
    assert own.requests[-1] == GenerateRequest(
        text="text",
        rid="j",
        sampling_params={
            "temperature": 0.0, "top_k": -1, "max_new_tokens": 5, "sampling_seed": 3,
        },
    )  # fmt: skip
    play(own, make_job([1, 2]))
    assert (own.requests[-1].text, own.requests[-1].input_ids) == (None, [1, 2])
    assert own.requests[-1].stream


@pytest.mark.parametrize("name", sorted(SAMPLING_PARAM_NAMES))
def test_every_listed_field_reaches_the_engine(name: str) -> None:
    value: Any = (4,) if name == "stop_token_ids" else 1
    own = RecordingEngine(make_chunk("a", "stop"))
    play(own, make_job(**{name: value}))
    assert own.requests[0].sampling_params == {
        SAMPLING_PARAM_NAMES[name]: [4] if name == "stop_token_ids" else 1
    }
    assert SAMPLING_PARAM_NAMES[name] in build_sampling_params(
        Sampling(seed=0, max_tokens=1).with_defaults(DEFAULT_SAMPLING)
    )


def test_a_field_that_is_not_listed_is_not_sent() -> None:
    capabilities = get_capabilities(adapt(RecordingEngine()))
    unlisted = set(Sampling.__struct_fields__) - capabilities.sampling
    assert {"typical_p", "repeat_last_n", "logit_bias", "mirostat", "samplers"} <= unlisted
    assert not unlisted & set(
        build_sampling_params(Sampling(logit_bias={1: 2.0}).with_defaults(DEFAULT_SAMPLING))
    )
    assert capabilities.logprobs == -1
    assert (capabilities.token_prompts, capabilities.grammars) == (False, False)


def test_the_engines_own_capabilities_take_precedence() -> None:
    own = RecordingEngine()
    own.capabilities = Capabilities(token_prompts=True, context=7)  # type: ignore[attr-defined]
    assert get_capabilities(adapt(own)).context == 7


def test_choices_run_concurrently_with_their_own_ids_and_seeds() -> None:
    own = RecordingEngine(
        make_chunk("a", prompt_tokens=2), make_chunk("ab", "stop", prompt_tokens=2)
    )
    steps = play(own, make_job(n=3, seed=5))
    assert sorted(step.choice for step in steps) == [0, 0, 1, 1, 2, 2]
    assert [step.choice for step in steps[:3]] == [0, 1, 2]
    assert [step.prompt_tokens for step in steps if step.prompt_tokens] == [2]
    assert [request.rid for request in own.requests] == ["j-0", "j-1", "j-2"]
    assert [request.sampling_params["sampling_seed"] for request in own.requests] == [5, 6, 7]


@pytest.mark.parametrize("n", [1, 3])
def test_closing_closes_every_choice(n: int) -> None:
    async def main() -> None:
        own = RecordingEngine(*[make_chunk("a" * count) for count in range(1, 100)])
        stream = adapt(own).generate(make_job(n=n))
        await anext(stream)
        assert own.open == n
        await stream.aclose()
        assert own.open == 0

    asyncio.run(main())


def test_one_failing_choice_ends_the_others() -> None:
    class SecondChoiceFails(RecordingEngine):
        async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
            if obj.rid.endswith("-1"):
                raise ValueError
            async with aclosing(super().generate_request(obj)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def main() -> None:
        own = SecondChoiceFails(*[make_chunk("a" * count) for count in range(1, 100)])
        with pytest.raises(EngineFailed):
            await collect(adapt(own), make_job(n=3))
        assert own.open == 0

    asyncio.run(main())


def test_a_choice_that_fails_last_is_a_failure_too() -> None:
    class LastChoiceFails(RecordingEngine):
        async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
            yield make_chunk("a")
            if obj.rid.endswith("-0"):
                yield make_chunk("ab", "stop")
            for _ in range(50):
                await asyncio.sleep(0)
            raise ValueError

    steps: list[Step] = []

    async def main() -> None:
        async with aclosing(adapt(LastChoiceFails()).generate(make_job(n=2))) as stream:
            async for step in stream:
                steps.append(step)  # noqa: PERF401, steps before the failure count

    with pytest.raises(EngineFailed):
        asyncio.run(main())
    assert sorted((step.choice, step.text) for step in steps) == [(0, "a"), (0, "b"), (1, "a")]


def test_merging_no_streams_yields_nothing() -> None:
    async def main() -> list[Step]:
        return [step async for step in merge_streams([])]

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("delta", [False, True])
def test_an_adapted_engine_keeps_the_contract(delta: bool) -> None:
    own = CumulativeEngine(delta)
    results = asyncio.run(check_engine(adapt(own), step_timeout=5))
    assert {result.outcome for result in results} == {"passed", "skipped"}
    assert own.open == 0


def test_an_engine_passes_through_unchanged() -> None:
    engine = ScriptedEngine("x")
    assert adapt(engine) is engine


class OnlyGenerate:
    capabilities = Capabilities(logprobs=-1)
    closed = 0

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for choice in range(job.n):
            await asyncio.sleep(0)
            yield Step(choice, "x", tokens=1, prompt_tokens=None if choice else 1)
            yield Step(choice, finish="stop")

    async def aclose(self) -> None:
        self.closed += 1


def test_an_engine_with_only_generate_gets_an_admit() -> None:
    own = OnlyGenerate()
    results = asyncio.run(check_engine(adapt(own), step_timeout=5))
    assert {result.outcome for result in results} == {"passed", "skipped"}
    assert get_capabilities(adapt(own)) is OnlyGenerate.capabilities
    assert own.closed == 2


def test_closing_closes_the_engine_if_it_can_be_closed() -> None:
    class Closable(RecordingEngine):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

        async def embed(self, inputs: Any) -> Any:
            return [[0.0] for _ in inputs]

    own = Closable()
    adapted: Any = adapt(own)
    assert asyncio.run(adapted.embed(["a"])) == [[0.0]]
    asyncio.run(adapted.aclose())
    assert own.closed
    asyncio.run(adapt(RecordingEngine()).aclose())  # type: ignore[attr-defined]


class ReturnsText:
    async def generate(self, job: Job) -> str:
        return "x"


class SyncAdmit(OnlyGenerate):
    def admit(self, job: Job) -> None:
        pass


NOT_ENGINES = [
    (object(), "neither `generate"),
    (ReturnsText(), "must `yield`"),
    (SyncAdmit(), "must be `async`"),
    (ScriptedEngine, "is a class"),
    (None, "NoneType is not an engine"),
]


@pytest.mark.parametrize(("candidate", "message"), NOT_ENGINES)
def test_an_object_that_is_not_an_engine_is_rejected(candidate: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        adapt(candidate)


def test_a_long_answer_is_sent_and_counted_once() -> None:
    ids = list(range(4000))

    class Long:
        async def generate_request(self, obj: GenerateRequest) -> AsyncIterator[Any]:
            for count in range(1, 4001):
                yield {"text": "ab" * count, "output_ids": ids[:count]}

    steps = play(Long())
    assert sum(step.tokens for step in steps) == 4000
    assert "".join(step.text or "" for step in steps) == "ab" * 4000
