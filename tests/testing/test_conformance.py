"""The conformance suite: sound engines pass, and each broken one fails the check meant for it."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman.testing import CheckResult, NotConformant, Reply, ScriptedEngine, check_engine
from dragoman.testing.engine_checks import CHECKS
from dragoman.types import Capabilities, Job, Step

TEXT = "A reply that is long enough to be cut in half, with ünïcode in it."
replace = msgspec.structs.replace


@pytest.mark.parametrize(
    "engine",
    [
        ScriptedEngine(TEXT),
        ScriptedEngine(TEXT, tokens=True, context=500, lora=("a",)),
        ScriptedEngine(Reply(TEXT, variants=("Another reply.",), chunks="bytes"), tokens=True),
        ScriptedEngine(TEXT, context=100, lora=("a",), cached=3),
        ScriptedEngine(TEXT, pace=0.001, logprobs=-1, embeddings=0),
        ScriptedEngine(""),
    ],
    ids=["text", "tokens", "variants", "limits", "plain", "silent"],
)
def test_sound_engines_pass(engine: ScriptedEngine) -> None:
    results = asyncio.run(check_engine(engine, patience=5))
    assert [result.name for result in results] == [check.__name__ for check in CHECKS]
    assert {result.outcome for result in results} <= {"kept", "skipped"}
    assert all(result.note for result in results if result.outcome == "skipped")


def test_an_engine_that_claims_everything_is_checked_for_everything() -> None:
    engine = ScriptedEngine(TEXT, tokens=True, context=500, lora=("a",))
    results = asyncio.run(check_engine(engine, patience=5))
    assert {result.outcome for result in results} == {"kept"}
    assert all(result.about for result in results)


class Broken(ScriptedEngine):
    """A sound engine whose steps a subclass spoils."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(TEXT, **settings)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                for spoilt in self.spoil(step, job):
                    yield spoilt

    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [step]


class YieldsDicts(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [msgspec.to_builtins(step)]


class WrongType(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, text=b"bytes")]


class NeverFinishes(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, finish=None)]


class FinishesTwice(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [step, step] if step.finish else [step]


class TalksAfterFinish(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [step, Step(step.choice, "more", tokens=1)] if step.finish else [step]


class SaysNothing(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return []


class CountsFromOne(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, choice=step.choice + 1)]


class OneChoiceOnly(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [step] if step.choice == 0 else []


class ForgetsLength(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, finish="stop")] if step.finish else [step]


class IgnoresMaxTokens(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(replace(job, sampling=replace(job.sampling, max_tokens=None)))


class Whimsical(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(TEXT)
        self._mood = itertools.count()

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        mood = str(next(self._mood))
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                yield replace(step, text=mood) if step.text else step


class WhimsicalWhenSeeded(Whimsical):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        seeded = job.sampling.seed is not None
        return super().generate(job) if seeded else ScriptedEngine.generate(self, job)


class CountsPromptTwice(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, prompt_tokens=5)]


class CountsNothing(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, tokens=0, logprobs=[])]


class CountsIdsWrong(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, tokens=1) if step.ids else step]


class ClaimsTooMuchCache(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, cached_tokens=99) if step.prompt_tokens else step]


class NoLogprobs(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, logprobs=[])]


class UnaskedLogprobs(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(replace(job, logprobs=1))


class NanLogprobs(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, logprobs=[replace(m, logprob=math.nan) for m in step.logprobs])]


class TooManyAlternatives(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(job if job.logprobs is None else replace(job, logprobs=9))


class NoPromptLogprobs(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, prompt_logprobs=[])]


class MixesJobs(ScriptedEngine):
    """What the newest open job was asked is what every open job answers."""

    def __init__(self) -> None:
        super().__init__({"Once": "O" * 30, "One": "1" * 30, "capital": "C" * 30})
        self._prompt: list[int] | str = ""
        self._busy = 0

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self._prompt = job.prompt
        await asyncio.sleep(0)
        async with aclosing(super().generate(replace(job, prompt=self._prompt))) as steps:
            async for step in steps:
                yield step


class IgnoresStopTokens(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(replace(job, sampling=replace(job.sampling, stop_token_ids=())))


class ShowsStopToken(Broken):
    def spoil(self, step: Step, job: Job) -> Sequence[Any]:
        if step.stop_id is None:
            return [step]
        ids = [*step.ids, step.stop_id]
        return [replace(step, ids=ids, tokens=len(ids), logprobs=[])]


class ClosesSlowly(ScriptedEngine):
    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        try:
            async with aclosing(super().generate(job)) as steps:
                async for step in steps:
                    yield step
        except GeneratorExit:
            await asyncio.sleep(60)
            raise


class BusyAfterClose(ScriptedEngine):
    """A job that was closed keeps the only slot for ever."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self._slot = asyncio.Lock()

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        await self._slot.acquire()
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                yield step
        self._slot.release()


class SwallowsCancel(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(TEXT, pace=0.002)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        stream = super().generate(job)
        try:
            async for step in stream:
                yield step
        except asyncio.CancelledError:
            yield Step(finish="stop")
        finally:
            await stream.aclose()


class AdmitsAll(ScriptedEngine):
    async def admit(self, job: Job) -> None:
        pass


class AdmitsNone(ScriptedEngine):
    async def admit(self, job: Job) -> None:
        raise RuntimeError("not today")


class AdmitAnswers(ScriptedEngine):
    async def admit(self, job: Job) -> Any:
        return True


class AdmitHangs(ScriptedEngine):
    async def admit(self, job: Job) -> None:
        await asyncio.sleep(60)


class Awaited(ScriptedEngine):
    async def generate(self, job: Job) -> Any:  # type: ignore[override]
        return [Step(finish="stop")]


class NotClosable(ScriptedEngine):
    def generate(self, job: Job) -> Any:
        return iter([Step(finish="stop")])


class ShortVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[1.0] for _ in inputs]


class NanVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[math.nan] * 16 for _ in inputs]


class RestlessVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[float(at)] * 16 for at, _ in enumerate(inputs)]


class TextTokens(ScriptedEngine):
    async def tokenize(self, text: str, special: bool = False) -> Any:
        return text.split()


class ClosesOnce(ScriptedEngine):
    async def aclose(self) -> None:
        assert not self.closed
        await super().aclose()


class Minimal:
    """Promises vectors and tokens it has no method for."""

    capabilities = Capabilities(embeddings=8, tokenize=True, logprobs=-1)

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for choice in range(job.n):
            yield Step(choice, "x", tokens=1, prompt_tokens=None if choice else 1, finish="stop")


BROKEN: list[tuple[Callable[[], Any], str, str]] = [
    (AdmitAnswers, "admits_an_ordinary_job", "returned True"),
    (AdmitsNone, "admits_an_ordinary_job", "RuntimeError was raised: not today"),
    (AdmitHangs, "admits_an_ordinary_job", "did not return within"),
    (Awaited, "generates_an_async_generator", "without `await`"),
    (NotClosable, "generates_an_async_generator", "cannot be closed"),
    (SaysNothing, "yields_steps", "nothing was yielded"),
    (YieldsDicts, "yields_steps", "list instead of `Step`"),
    (WrongType, "yields_steps", "field of the wrong type"),
    (NeverFinishes, "finishes_each_choice_once", "without a `finish`"),
    (FinishesTwice, "finishes_each_choice_once", "another step"),
    (TalksAfterFinish, "finishes_each_choice_once", "another step"),
    (CountsFromOne, "numbers_choices_from_zero", "with choices [1]"),
    (OneChoiceOnly, "numbers_choices_from_zero", "n=3 was answered with choices [0]"),
    (ForgetsLength, "respects_max_tokens", "8 of 8 tokens ended as 'stop'"),
    (lambda: IgnoresMaxTokens(TEXT), "respects_max_tokens", "max_tokens=8"),
    (Whimsical, "repeats_a_greedy_answer", "differ"),
    (WhimsicalWhenSeeded, "repeats_a_seeded_answer", "differs"),
    (CountsPromptTwice, "counts_tokens", "not once"),
    (CountsNothing, "counts_tokens", "has text but no tokens"),
    (lambda: CountsIdsWrong(tokens=True), "counts_tokens", "ids counts 1 tokens"),
    (ClaimsTooMuchCache, "counts_tokens", "99 cached tokens"),
    (NoLogprobs, "reports_logprobs_on_request", "0 logprobs for 8 tokens"),
    (lambda: UnaskedLogprobs(TEXT), "reports_logprobs_on_request", "nobody asked"),
    (NanLogprobs, "reports_logprobs_on_request", "nan is not"),
    (lambda: TooManyAlternatives(TEXT), "reports_logprobs_on_request", "9 alternatives"),
    (NoPromptLogprobs, "reports_prompt_logprobs_on_request", "0 prompt logprobs"),
    (MixesJobs, "isolates_jobs", "beside other"),
    (lambda: IgnoresStopTokens(TEXT, tokens=True), "stops_at_a_stop_token", "said 'length'"),
    (lambda: ShowsStopToken(tokens=True), "stops_at_a_stop_token", "as stop token"),
    (lambda: ClosesSlowly(TEXT), "closing_cancels", "half way did not return"),
    (BusyAfterClose, "closing_cancels", "no step came"),
    (SwallowsCancel, "cancelling_the_task_cancels", "swallowed"),
    (lambda: AdmitsAll(TEXT, context=50), "rejects_long_prompts", "was admitted"),
    (lambda: AdmitsAll(TEXT, lora=("a",)), "rejects_unknown_adapters", "was admitted"),
    (lambda: ShortVectors(TEXT), "embeds", "[1, 1, 1]"),
    (lambda: NanVectors(TEXT), "embeds", "finite"),
    (lambda: RestlessVectors(TEXT), "embeds", "two different vectors"),
    (Minimal, "embeds", "there is no `embed`"),
    (Minimal, "tokenizes", "there is no `tokenize`"),
    (lambda: TextTokens(TEXT), "tokenizes", "list of ids"),
    (lambda: ClosesOnce(TEXT), "closes_twice", ""),
]


HANGING = {"did not return within", "half way did not return", "no step came"}


@pytest.mark.parametrize(
    ("make", "name", "says"), BROKEN, ids=[f"{row[1]}-{row[2]}" for row in BROKEN]
)
def test_a_broken_engine_fails_the_check_meant_for_it(
    make: Callable[[], Any], name: str, says: str
) -> None:
    async def main() -> list[CheckResult]:
        with pytest.raises(NotConformant) as caught:
            await check_engine(make(), patience=0.3 if says in HANGING else 10)
        assert f"- {name}: " in str(caught.value)
        return caught.value.results

    found = {result.name: result for result in asyncio.run(main())}
    assert found[name].outcome == "broken"
    assert says in found[name].note


def test_every_check_has_an_engine_that_fails_it() -> None:
    assert {row[1] for row in BROKEN} == {check.__name__ for check in CHECKS}


def test_an_engine_that_is_not_deterministic_may_say_so() -> None:
    results = asyncio.run(check_engine(Whimsical(), patience=5, deterministic=False))
    skipped = {result.name for result in results if result.outcome == "skipped"}
    assert {"repeats_a_greedy_answer", "repeats_a_seeded_answer"} <= skipped


@pytest.mark.parametrize("patient", [False, True])
def test_a_job_can_be_made_by_the_author(patient: bool) -> None:
    engine = ScriptedEngine({"[magic]": TEXT})

    def make_job(text: str) -> Any:
        made = Job(id="x", prompt=f"[magic] {text}")

        async def later() -> Job:
            return made

        return later() if patient else made

    results = asyncio.run(check_engine(engine, make_job=make_job, patience=5))
    assert {result.outcome for result in results} <= {"kept", "skipped"}
    assert all("[magic]" in str(work.prompt) for work in engine.jobs)
