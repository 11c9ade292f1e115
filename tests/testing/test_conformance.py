"""The conformance suite: correct engines pass, and each broken one fails its own check."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman.engines.step_queue import StepConsumer
from dragoman.testing import CheckResult, NotConformant, Reply, ScriptedEngine, check_engine
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.delivering_engine import DeliveringEngine
from dragoman.testing.engine_checks import CHECKS
from dragoman.types import Capabilities, Job, Step
from dragoman.types.text_pair import TextPair

TEXT = "A reply that is long enough to be cut in half, with ünïcode in it."
VOCABULARY_SIZE = len(ByteTokenizer().pieces)
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
    ids=["text", "tokens", "variants", "limits", "plain", "empty"],
)
def test_correct_engines_pass(engine: ScriptedEngine) -> None:
    results = asyncio.run(check_engine(engine, step_timeout=5))
    assert [result.name for result in results] == [check.__name__ for check in CHECKS]
    assert {result.outcome for result in results} <= {"passed", "skipped"}
    assert all(result.note for result in results if result.outcome == "skipped")


def test_no_check_is_skipped_for_an_engine_that_claims_everything() -> None:
    engine = DeliveringEngine(TEXT, tokens=True, context=500, lora=("a",), scores=True)
    engine.capabilities = replace(engine.capabilities, vocabulary_size=VOCABULARY_SIZE)
    results = asyncio.run(check_engine(engine, step_timeout=5))
    assert {result.outcome for result in results} == {"passed"}
    assert all(result.about for result in results)


class Broken(ScriptedEngine):
    """A correct engine whose steps a subclass corrupts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(TEXT, **settings)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                for corrupted in self.corrupt(step, job):
                    yield corrupted

    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [step]


class YieldsLists(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [msgspec.to_builtins(step)]


class YieldsTexts(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [step.text]


class UnknownFinish(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, finish="eos")]


class NegativeCount(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, tokens=-1)]


class IdsWithoutTokenizer(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, text=None, ids=[7])]


class YieldsNoDicts:
    async def generate_request(self, obj: Any) -> AsyncGenerator[Any, None]:
        yield "text"


class WrongType(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, text=b"bytes")]


class NeverFinishes(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, finish=None)]


class FinishesTwice(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [step, step] if step.finish else [step]


class YieldsAfterFinish(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [step, Step(step.choice, "more", tokens=1)] if step.finish else [step]


class YieldsNothing(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return []


class NumbersFromOne(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, choice=step.choice + 1)]


class OneChoiceOnly(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [step] if step.choice == 0 else []


class ReportsWrongFinish(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, finish="stop")] if step.finish else [step]


class IgnoresMaxTokens(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(replace(job, sampling=replace(job.sampling, max_tokens=None)))


class Nondeterministic(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(TEXT)
        self._answers = itertools.count()

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        answer = str(next(self._answers))
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                yield replace(step, text=answer) if step.text else step


class NondeterministicWhenSeeded(Nondeterministic):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        is_seeded = job.sampling.seed is not None
        return super().generate(job) if is_seeded else ScriptedEngine.generate(self, job)


class CountsPromptTwice(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, prompt_tokens=5)]


class CountsNothing(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, tokens=0, logprobs=[])]


class CountsIdsWrong(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, tokens=1) if step.ids else step]


class ReportsTooManyCachedTokens(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, cached_tokens=99) if step.prompt_tokens else step]


class IgnoresCachePrompt(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, cached_tokens=2) if step.prompt_tokens else step]


class SharesCachedPrompts(Broken):
    def __init__(self) -> None:
        super().__init__(cached=2)
        self.capabilities = replace(self.capabilities, cache_scopes=True)


class SharesMoreThanThePrefix(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, cache_scopes=True, public_prefixes=True)

    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        is_shared = step.prompt_tokens and job.public_prefix
        return [replace(step, cached_tokens=5) if is_shared else step]


class NoLogprobs(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, logprobs=[])]


class UnrequestedLogprobs(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(replace(job, logprobs=1))


class NanLogprobs(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [
            replace(step, logprobs=[replace(entry, logprob=math.nan) for entry in step.logprobs])
        ]


class TooManyAlternatives(ScriptedEngine):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        return super().generate(job if job.logprobs is None else replace(job, logprobs=9))


class NoPromptLogprobs(Broken):
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
        return [replace(step, prompt_logprobs=[])]


class MixesUpJobs(ScriptedEngine):
    """Every running job answers the prompt of the newest one."""

    def __init__(self) -> None:
        super().__init__({"Once": "O" * 30, "One": "1" * 30, "capital": "C" * 30})
        self._prompt: list[int] | str = ""

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
    def corrupt(self, step: Step, job: Job) -> Sequence[Any]:
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
    """A closed job keeps the only slot for ever."""

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


class AdmitReturnsValue(ScriptedEngine):
    async def admit(self, job: Job) -> Any:
        return True


class AdmitHangs(ScriptedEngine):
    async def admit(self, job: Job) -> None:
        await asyncio.sleep(60)


class Awaited(ScriptedEngine):
    async def generate(self, job: Job) -> Any:  # type: ignore[override]
        return [Step(finish="stop")]


class NotAsync(ScriptedEngine):
    def generate(self, job: Job) -> Any:
        yield Step(finish="stop")


class NotClosable(ScriptedEngine):
    def generate(self, job: Job) -> Any:
        return iter([Step(finish="stop")])


class ShortVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[1.0] for _ in inputs]


class NanVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[math.nan] * 16 for _ in inputs]


class FixedScores(ScriptedEngine):
    """Returns the scores that a test says."""

    def __init__(self, *values: float) -> None:
        super().__init__(TEXT, scores=True)
        self._values = list(values)

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        return self._values


class ChangingVectors(ScriptedEngine):
    async def embed(self, inputs: Any, adapters: Any = ()) -> list[list[float]]:
        return [[float(index)] * 16 for index, _ in enumerate(inputs)]


class TextTokens(ScriptedEngine):
    async def tokenize(self, text: str, special: bool = False) -> Any:
        return text.split()


class ClosesOnce(ScriptedEngine):
    async def aclose(self) -> None:
        assert not self.is_closed
        await super().aclose()


class DeliversTheEnd(DeliveringEngine):
    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        consumer.consume([Step(choice, finish="stop") for choice in range(job.n)])


class MisspellsField(ScriptedEngine):
    """Lists a sampling field that does not exist, which would never be honoured."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.capabilities = replace(self.capabilities, sampling=frozenset({"temprature"}))


class RejectsPlainJobs(ScriptedEngine):
    """Has a vocabulary, but not all of its tokens can be in a prompt."""

    def __init__(self) -> None:
        super().__init__(TEXT, tokens=True)
        self.capabilities = replace(self.capabilities, vocabulary_size=VOCABULARY_SIZE)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if job.prompt == [0]:
            raise ValueError("no token 0")
        async with aclosing(super().generate(job)) as steps:
            async for step in steps:
                yield step


class RejectsListedField(ScriptedEngine):
    """Lists a sampling field but cannot take it."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        fields = self.capabilities.sampling | {"mirostat"}
        self.capabilities = replace(self.capabilities, sampling=fields)

    async def admit(self, job: Job) -> None:
        if job.sampling.mirostat:
            raise ValueError("no mirostat")


class Minimal:
    """Promises vectors and tokens but has no method for them."""

    capabilities = Capabilities(embeddings=8, tokenize=True, logprobs=-1)

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for choice in range(job.n):
            yield Step(choice, "x", tokens=1, prompt_tokens=None if choice else 1, finish="stop")


BROKEN: list[tuple[Callable[[], Any], str, str]] = [
    (object, "is_an_engine", "neither `generate(job)`"),
    (Awaited, "is_an_engine", "it must `yield` steps"),
    (NotAsync, "is_an_engine", "write it as `async def generate(self, job)`"),
    (MisspellsField, "is_an_engine", "Did you mean `temperature`?"),
    (Minimal, "is_an_engine", "promise `embed`, which it does not have"),
    (AdmitReturnsValue, "admits_an_ordinary_job", "returned True"),
    (AdmitsNone, "admits_an_ordinary_job", "RuntimeError was raised: not today"),
    (AdmitHangs, "admits_an_ordinary_job", "did not return within"),
    (NotClosable, "generates_an_async_generator", "cannot be closed"),
    (YieldsNothing, "yields_steps", "nothing was yielded"),
    (YieldsLists, "yields_steps", "yielded a list: yield `dragoman.Step(ids=[...])` instead"),
    (YieldsTexts, "yields_steps", "yielded a str: yield `dragoman.Step(text=...)` instead"),
    (WrongType, "yields_steps", "text=b'bytes': expected `str | null`, got `bytes`"),
    (UnknownFinish, "yields_steps", "finish='eos': it must be 'stop' or 'length'"),
    (NegativeCount, "yields_steps", "tokens=-1: a count cannot be negative"),
    (IdsWithoutTokenizer, "yields_steps", "no tokenizer: give it one"),
    (YieldsNoDicts, "yields_steps", 'yield `{"text": ..., "meta_info"'),
    (NeverFinishes, "finishes_each_choice_once", 'yield `dragoman.Step(finish="stop")` at the'),
    (FinishesTwice, "finishes_each_choice_once", "another step"),
    (YieldsAfterFinish, "finishes_each_choice_once", "another step"),
    (NumbersFromOne, "numbers_choices_from_zero", "with choices [1]"),
    (OneChoiceOnly, "numbers_choices_from_zero", "n=3 was answered with choices [0]"),
    (ReportsWrongFinish, "respects_max_tokens", "8 of 8 tokens ended as 'stop'"),
    (lambda: IgnoresMaxTokens(TEXT), "respects_max_tokens", "max_tokens=8"),
    (Nondeterministic, "repeats_a_greedy_answer", "differ"),
    (NondeterministicWhenSeeded, "repeats_a_seeded_answer", "differs"),
    (CountsPromptTwice, "counts_tokens", "not once"),
    (CountsNothing, "counts_tokens", "has text but no tokens"),
    (lambda: CountsIdsWrong(tokens=True), "counts_tokens", "ids counts 1 tokens"),
    (ReportsTooManyCachedTokens, "counts_tokens", "99 cached tokens"),
    (IgnoresCachePrompt, "keeps_cache_scopes_apart", "though `cache_prompt` is false"),
    (SharesCachedPrompts, "keeps_cache_scopes_apart", "reused in another `cache_scope`"),
    (SharesMoreThanThePrefix, "keeps_cache_scopes_apart", "of a `public_prefix` of 4"),
    (NoLogprobs, "reports_logprobs_on_request", "0 logprobs for 8 tokens"),
    (lambda: UnrequestedLogprobs(TEXT), "reports_logprobs_on_request", "without being requested"),
    (NanLogprobs, "reports_logprobs_on_request", "nan is not"),
    (lambda: TooManyAlternatives(TEXT), "reports_logprobs_on_request", "9 alternatives"),
    (NoPromptLogprobs, "reports_prompt_logprobs_on_request", "0 prompt logprobs"),
    (MixesUpJobs, "isolates_jobs", "beside other"),
    (lambda: IgnoresStopTokens(TEXT, tokens=True), "stops_at_a_stop_token", "finish 'length'"),
    (lambda: ShowsStopToken(tokens=True), "stops_at_a_stop_token", "as stop token"),
    (RejectsPlainJobs, "runs_plain_jobs", "no token 0"),
    (RejectsListedField, "takes_listed_sampling_fields", "no mirostat"),
    (lambda: ClosesSlowly(TEXT), "closing_cancels", "half way did not return"),
    (BusyAfterClose, "closing_cancels", "no step came"),
    (SwallowsCancel, "cancelling_the_task_cancels", "swallowed"),
    (lambda: AdmitsAll(TEXT, context=50), "rejects_long_prompts", "was admitted"),
    (lambda: AdmitsAll(TEXT, lora=("a",)), "rejects_unknown_adapters", "was admitted"),
    (lambda: ShortVectors(TEXT), "embeds", "[1, 1, 1]"),
    (lambda: NanVectors(TEXT), "embeds", "finite"),
    (lambda: ChangingVectors(TEXT), "embeds", "two different vectors"),
    (lambda: FixedScores(0.5), "scores", "gave 1 scores"),
    (lambda: FixedScores(0.5, -1.0, 0.5), "scores", "from 0 to 1"),
    (lambda: FixedScores(0.5, 0.5, 0.6), "scores", "two different scores"),
    (lambda: TextTokens(TEXT), "tokenizes", "list of ids"),
    (lambda: DeliversTheEnd(TEXT), "delivers_what_it_yields", "delivered ('', [])"),
    (lambda: ClosesOnce(TEXT), "closes_twice", ""),
]


HANGING = {"did not return within", "half way did not return", "no step came"}


@pytest.mark.parametrize(
    ("make_engine", "name", "note"), BROKEN, ids=[f"{row[1]}-{row[2]}" for row in BROKEN]
)
def test_a_broken_engine_fails_its_check(
    make_engine: Callable[[], Any], name: str, note: str
) -> None:
    async def main() -> list[CheckResult]:
        with pytest.raises(NotConformant) as caught:
            await check_engine(make_engine(), step_timeout=0.3 if note in HANGING else 10)
        assert f"- {name}: " in str(caught.value)
        return caught.value.results

    results = {result.name: result for result in asyncio.run(main())}
    assert results[name].outcome == "failed"
    assert note in results[name].note


def test_every_check_has_an_engine_that_fails_it() -> None:
    names = {check.__name__ for check in CHECKS}
    assert {row[1] for row in BROKEN} == names | {"is_an_engine"}


def test_the_checks_of_determinism_can_be_turned_off() -> None:
    results = asyncio.run(check_engine(Nondeterministic(), step_timeout=5, deterministic=False))
    skipped = {result.name for result in results if result.outcome == "skipped"}
    assert {"repeats_a_greedy_answer", "repeats_a_seeded_answer"} <= skipped


@pytest.mark.parametrize("is_async", [False, True])
def test_the_caller_can_make_the_jobs(is_async: bool) -> None:
    engine = ScriptedEngine({"[magic]": TEXT})

    def make_job(text: str) -> Any:
        job = Job(id="x", prompt=f"[magic] {text}")

        async def make_later() -> Job:
            return job

        return make_later() if is_async else job

    results = asyncio.run(check_engine(engine, make_job=make_job, step_timeout=5))
    assert {result.outcome for result in results} <= {"passed", "skipped"}
    assert all("[magic]" in str(job.prompt) for job in engine.jobs)
