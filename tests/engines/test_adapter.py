"""Bring your own engine: what is adapted, what passes through, and what is refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from dragoman.engines import get_capabilities
from dragoman.engines.adapter import (
    SAMPLING_PARAM_NAMES,
    GenerateRequest,
    adapt,
    build_sampling_params,
)
from dragoman.engines.merge import merge_streams
from dragoman.errors import EngineFailed, Overloaded
from dragoman.testing import ScriptedEngine, check_engine
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Engine, Job, Sampling, Step


class Own:
    """A bring-your-own engine that yields what it was given, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[GenerateRequest] = []
        self.open = 0

    async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
        self.asked.append(obj)
        self.open += 1
        try:
            for answer in self.answers:
                await asyncio.sleep(0)
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            self.open -= 1


class Growing:
    """A sound engine of that kind: the answer so far, a word more each time."""

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
                yield answer(
                    "".join(shown),
                    reason,
                    prompt_tokens=len((obj.text or "").split()),
                    completion_tokens=count,
                )
        finally:
            self.open -= 1


def answer(text: Any, reason: Any = None, **meta: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": reason, **meta}}


def job(prompt: list[int] | str = "hi", *, n: int = 1, **sampling: Any) -> Job:
    return Job(id="j", prompt=prompt, n=n, sampling=Sampling(**sampling))


async def collect(engine: Engine, work: Job) -> list[Step]:
    await engine.admit(work)
    async with aclosing(engine.generate(work)) as stream:
        return [step async for step in stream]


def play(own: object, work: Job | None = None) -> list[Step]:
    return asyncio.run(collect(adapt(own), work or job()))


def test_cumulative_text_becomes_what_is_new() -> None:
    counts = {"prompt_tokens": 3}
    steps = play(
        Own(
            answer("", **counts),
            answer("He", completion_tokens=1, **counts),
            answer("He", completion_tokens=1, **counts),
            answer("Hello", completion_tokens=3, **counts),
            answer("Hello.", "stop", completion_tokens=4, **counts),
        )
    )
    assert steps == [
        Step(0, "", prompt_tokens=3),
        Step(0, "He", tokens=1),
        Step(0, "llo", tokens=2),
        Step(0, ".", tokens=1, finish="stop"),
    ]


def test_deltas_are_taken_as_they_are() -> None:
    engine = Own(answer("a", completion_tokens=1), answer("a", "stop", completion_tokens=2))
    engine.yields = "delta"  # type: ignore[attr-defined]
    marked = Own(answer("a", delta=True), answer("a", "stop", delta=True))
    for own in (engine, marked):
        assert [(step.text, step.tokens) for step in play(own)] == [("a", 1), ("a", 1)]


@pytest.mark.parametrize("delta", [False, True])
def test_ids_without_text(delta: bool) -> None:
    yields = [[5], [6, 7]] if delta else [[5], [5, 6, 7]]
    meta = {"delta": delta, "finish_reason": None}
    own = Own(
        {"output_ids": yields[0], "meta_info": meta},
        {"output_ids": yields[1], "meta_info": {**meta, "finish_reason": "stop"}},
    )
    assert [(step.text, step.ids, step.tokens) for step in play(own)] == [
        (None, [5], 1), (None, [6, 7], 2),
    ]  # fmt: skip


def test_tokens_are_counted_by_ids_where_the_engine_does_not_count() -> None:
    own = Own({"text": "ab", "output_ids": [1, 2]}, {"text": "abc", "output_ids": [1, 2, 3]})
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
    last = play(Own(answer("a", reason), answer("a and more")))[-1]
    assert (last.text, last.finish, last.stop_id) == ("a", finish, stop_id)


def test_d17_an_end_without_a_reason_is_a_stop_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = Own(answer("ab", completion_tokens=2))
    assert play(own)[-1] == Step(0, finish="stop")
    assert "without a finish_reason" in caplog.text
    assert play(own, job(max_tokens=2))[-1] == Step(0, finish="length")


def test_d19_text_that_is_not_an_extension_is_a_failure_not_a_duplicate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[str | None]:
        seen = []
        engine = adapt(Own(answer("Hello wor"), answer("Hullo world", "stop")))
        async with aclosing(engine.generate(job())) as stream:
            seen.append((await anext(stream)).text)
            with pytest.raises(EngineFailed):
                await anext(stream)
        return seen

    assert asyncio.run(main()) == ["Hello wor"]
    assert "does not begin with the 9 characters before" in caplog.text


UNREADABLE = [
    (answer("a", completion_tokens=math.nan), "nan"),
    (answer("a", prompt_tokens=math.inf), "inf"),
    (answer("a", completion_tokens="many"), "many"),
    (answer(17), "int"),
    (answer(b"bytes"), "bytes"),
    (answer("half \ud83d of it"), "surrogate"),
    (answer("a", "abort"), "abort"),
    (answer("a", {"type": "abort", "message": "oom"}), "abort"),
    (answer("a", 3), "3"),
    ({"text": "a", "meta_info": [1]}, "list"),
    ({"output_ids": [1.5]}, "1.5"),
    ({"output_ids": [1, math.nan]}, "nan"),
    ({"output_ids": 7}, "int"),
    ("just text", "str"),
    (None, "NoneType"),
]


@pytest.mark.parametrize(("said", "logged"), UNREADABLE)
def test_d20_what_cannot_be_read_is_logged_and_reported(
    said: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineFailed) as caught:
        play(Own(said))
    assert logged in caplog.text
    assert caught.value.message == "The engine gave an answer that cannot be read."


def test_ids_that_are_not_an_extension_are_a_failure() -> None:
    with pytest.raises(EngineFailed):
        play(Own({"output_ids": [1, 2]}, {"output_ids": [1, 3, 4]}))


def test_no_answer_at_all_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineFailed):
        play(Own())
    assert "without yielding anything" in caplog.text


def test_what_the_engine_raises_is_logged_and_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(EngineFailed) as caught:
        play(Own(answer("a"), ValueError("/secret/path")))
    assert "/secret/path" in caplog.text
    assert "/secret/path" not in caught.value.message
    with pytest.raises(Overloaded):
        play(Own(Overloaded("Come back later.")))


def test_a_coroutine_that_returns_a_stream_will_do() -> None:
    class Later:
        async def generate_request(self, obj: GenerateRequest) -> AsyncIterator[Any]:
            async def stream() -> AsyncIterator[Any]:
                yield answer(obj.text, "stop")

            return stream()

    assert play(Later())[-1].text == "hi"


def test_a_stream_that_is_none_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Whole:
        async def generate_request(self, obj: GenerateRequest) -> Any:
            return answer("a", "stop")

    with pytest.raises(EngineFailed):
        play(Whole())
    assert "instead of yielding" in caplog.text


def test_a_stream_that_cannot_be_closed_will_do() -> None:
    class Plain:
        def __init__(self) -> None:
            self._left = [answer("a"), answer("ab", "stop")]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> Any:
            return self._left.pop(0)

    class Engine:
        def generate_request(self, obj: GenerateRequest) -> Plain:
            return Plain()

    assert [step.text for step in play(Engine())] == ["a", "b"]


def test_the_request_carries_prompt_sampling_and_id() -> None:
    own = Own(answer("a", "stop"))
    play(own, job("text", temperature=0.0, top_k=0, max_tokens=5, seed=3))
    assert own.asked[-1] == GenerateRequest(
        text="text",
        rid="j",
        sampling_params={
            "temperature": 0.0, "top_k": -1, "max_new_tokens": 5, "sampling_seed": 3,
        },
    )  # fmt: skip
    play(own, job([1, 2]))
    assert (own.asked[-1].text, own.asked[-1].input_ids) == (None, [1, 2])
    assert own.asked[-1].stream


@pytest.mark.parametrize("name", sorted(SAMPLING_PARAM_NAMES))
def test_d23_every_field_it_claims_reaches_the_engine(name: str) -> None:
    value: Any = (4,) if name == "stop_token_ids" else 1
    own = Own(answer("a", "stop"))
    play(own, job(**{name: value}))
    assert own.asked[0].sampling_params == {
        SAMPLING_PARAM_NAMES[name]: [4] if name == "stop_token_ids" else 1
    }
    assert SAMPLING_PARAM_NAMES[name] in build_sampling_params(
        Sampling(seed=0, max_tokens=1).with_defaults(DEFAULT_SAMPLING)
    )


def test_what_it_does_not_claim_is_not_sent() -> None:
    can = get_capabilities(adapt(Own()))
    assert can.sampling is not None
    unclaimed = set(Sampling.__struct_fields__) - can.sampling
    assert unclaimed == {"typical_p", "repeat_last_n", "logit_bias"}
    assert not unclaimed & set(
        build_sampling_params(Sampling(logit_bias={1: 2.0}).with_defaults(DEFAULT_SAMPLING))
    )
    assert (can.logprobs, can.token_prompts, can.grammars) == (-1, False, False)


def test_the_engines_own_capabilities_win() -> None:
    own = Own()
    own.capabilities = Capabilities(token_prompts=True, context=7)  # type: ignore[attr-defined]
    assert get_capabilities(adapt(own)).context == 7


def test_d28_choices_run_side_by_side_with_their_own_ids_and_seeds() -> None:
    own = Own(answer("a", prompt_tokens=2), answer("ab", "stop", prompt_tokens=2))
    steps = play(own, job(n=3, seed=5))
    assert sorted(step.choice for step in steps) == [0, 0, 1, 1, 2, 2]
    assert [step.choice for step in steps[:3]] == [0, 1, 2]
    assert [step.prompt_tokens for step in steps if step.prompt_tokens] == [2]
    assert [request.rid for request in own.asked] == ["j-0", "j-1", "j-2"]
    assert [request.sampling_params["sampling_seed"] for request in own.asked] == [5, 6, 7]


@pytest.mark.parametrize("n", [1, 3])
def test_closing_closes_every_choice(n: int) -> None:
    async def main() -> None:
        own = Own(*[answer("a" * count) for count in range(1, 100)])
        stream = adapt(own).generate(job(n=n))
        await anext(stream)
        assert own.open == n
        await stream.aclose()
        assert own.open == 0

    asyncio.run(main())


def test_one_failing_choice_ends_the_others() -> None:
    class Second(Own):
        async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
            if obj.rid.endswith("-1"):
                raise ValueError
            async with aclosing(super().generate_request(obj)) as answers:
                async for said in answers:
                    yield said

    async def main() -> None:
        own = Second(*[answer("a" * count) for count in range(1, 100)])
        with pytest.raises(EngineFailed):
            await collect(adapt(own), job(n=3))
        assert own.open == 0

    asyncio.run(main())


def test_a_choice_that_fails_last_is_a_failure_too() -> None:
    class Last(Own):
        async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
            yield answer("a")
            if obj.rid.endswith("-0"):
                yield answer("ab", "stop")
            for _ in range(50):
                await asyncio.sleep(0)
            raise ValueError

    seen: list[Step] = []

    async def main() -> None:
        async with aclosing(adapt(Last()).generate(job(n=2))) as stream:
            async for step in stream:
                seen.append(step)  # noqa: PERF401, what came before the failure counts

    with pytest.raises(EngineFailed):
        asyncio.run(main())
    assert sorted((step.choice, step.text) for step in seen) == [(0, "a"), (0, "b"), (1, "a")]


def test_nothing_together_is_nothing() -> None:
    async def main() -> list[Step]:
        return [step async for step in merge_streams([])]

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("delta", [False, True])
def test_an_adapted_engine_keeps_the_contract(delta: bool) -> None:
    own = Growing(delta)
    results = asyncio.run(check_engine(adapt(own), patience=5))
    assert {result.outcome for result in results} == {"kept", "skipped"}
    assert own.open == 0


def test_an_engine_passes_through_untouched() -> None:
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


def test_an_engine_with_only_generate_is_given_an_admit() -> None:
    own = OnlyGenerate()
    results = asyncio.run(check_engine(adapt(own), patience=5))
    assert {result.outcome for result in results} == {"kept", "skipped"}
    assert get_capabilities(adapt(own)) is OnlyGenerate.capabilities
    assert own.closed == 2


def test_closing_reaches_the_engine_if_it_can_be_closed() -> None:
    class Closable(Own):
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
    asyncio.run(adapt(Own()).aclose())  # type: ignore[attr-defined]


class ReturnsText:
    async def generate(self, job: Job) -> str:
        return "x"


class SyncAdmit(OnlyGenerate):
    def admit(self, job: Job) -> None:
        pass


REFUSED = [
    (object(), "neither `generate"),
    (ReturnsText(), "must `yield`"),
    (SyncAdmit(), "must be `async`"),
    (ScriptedEngine, "is a class"),
    (None, "NoneType is no engine"),
]


@pytest.mark.parametrize(("own", "says"), REFUSED)
def test_d79_what_is_no_engine_is_refused_at_the_start(own: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        adapt(own)


def test_a_long_answer_is_told_and_counted_once() -> None:
    ids = list(range(4000))

    class Long:
        async def generate_request(self, obj: GenerateRequest) -> AsyncIterator[Any]:
            for count in range(1, 4001):
                yield {"text": "ab" * count, "output_ids": ids[:count]}

    steps = play(Long())
    assert sum(step.tokens for step in steps) == 4000
    assert "".join(step.text or "" for step in steps) == "ab" * 4000
