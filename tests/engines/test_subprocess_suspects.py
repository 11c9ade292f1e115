"""Which requests are suspected of killing an engine, for how long, and how they are tried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dragoman.engines.subprocess.messages import CountPrompt, EmbedInputs, TokenizeText
from dragoman.engines.subprocess.progress import make_call
from dragoman.engines.subprocess.suspects import (
    FIRST_REFUSAL,
    JOB_FIELDS,
    MAX_SUSPECTS,
    REMEMBER_SECONDS,
    CrashSuspects,
    DeathCause,
    compute_digest,
)
from dragoman.errors import PoisonRequest, TooManyCrashes
from dragoman.types import Adapter, Job, Sampling

JOB = Job(id="a", prompt=[1, 2, 3])
# fields of a job that do not change what the engine computes, or may differ with each try; the
# prompt has the digests of its media
IGNORED_FIELDS = {"id", "cache_scope", "public_prefix", "priority", "trace", "media"}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1, 2, 4]},
        {"prompt": "text"},
        {"sampling": Sampling(temperature=0.5)},
        {"n": 2},
        {"logprobs": 1},
        {"prompt_logprobs": 1},
        {"grammar": "%llguidance {}\nstart: /a/"},
        {"lora": (Adapter("a"),)},
        {"cache_prompt": False},
    ],
    ids=str,
)
def test_another_request_has_another_digest(fields: dict[str, Any]) -> None:
    assert compute_digest(Job(**{"id": "a", "prompt": [1, 2, 3]} | fields)) != compute_digest(JOB)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "b"},
        {"cache_scope": "other"},
        {"priority": "batch"},
        {"trace": "step"},
        {"sampling": Sampling(seed=7).with_defaults(JOB.sampling)},
    ],
    ids=str,
)
def test_the_same_request_has_the_same_digest(fields: dict[str, Any]) -> None:
    assert compute_digest(Job(**{"id": "a", "prompt": [1, 2, 3]} | fields)) == compute_digest(JOB)


def test_every_field_of_a_job_counts_or_is_ignored_on_purpose() -> None:
    assert {*JOB_FIELDS} | IGNORED_FIELDS == {*Job.__struct_fields__}


def test_calls_have_digests_too() -> None:
    contents: list[EmbedInputs | TokenizeText] = [
        EmbedInputs(1, ["a"]),
        EmbedInputs(1, ["b"]),
        EmbedInputs(1, [[1]]),
        TokenizeText(1, "a", True),
        TokenizeText(1, "a", False),
    ]
    assert len({compute_digest(content) for content in contents}) == len(contents)
    assert compute_digest(EmbedInputs(1, ["a"])) == compute_digest(EmbedInputs(2, ["a"]))
    assert compute_digest(CountPrompt(1, [1], (), "a")) == compute_digest(CountPrompt(2, [1], ()))


class Steps:
    """The steps of a job that has some."""

    def get_state(self) -> int:
        return 0

    def has_changed(self, state: int) -> bool:
        return True


class Trial:
    """Suspects with a clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.suspects = CrashSuspects(lambda: self.now)

    def blame(self, *jobs: Job, cause: DeathCause = "crashed", has_token: bool = False) -> None:
        steps = Steps() if has_token else None
        self.suspects.record_death(make_call(0, "generate", job, steps) for job in jobs)
        self.suspects.count_death(cause)

    async def run(self, job: Job, *, is_harmless: bool = True) -> None:
        async with self.suspects.try_call(job) as outcome:
            outcome.is_harmless = is_harmless

    async def is_refused(self, job: Job) -> bool:
        try:
            await self.run(job, is_harmless=False)
        except PoisonRequest:
            return True
        return False


def run_trial(use: Callable[[Trial], Awaitable[None]]) -> None:
    async def go() -> None:
        await use(Trial())

    asyncio.run(go())


def test_the_second_death_counts_and_is_forgotten_after_an_hour() -> None:
    async def use(trial: Trial) -> None:
        for deaths in range(3):
            assert await trial.is_refused(JOB) == (deaths >= 2)
            trial.blame(JOB)
        trial.now += REMEMBER_SECONDS - 1
        assert await trial.is_refused(JOB)
        trial.now += 2
        assert not await trial.is_refused(JOB)
        trial.blame(JOB)
        assert not await trial.is_refused(JOB), "it starts again"

    run_trial(use)


@pytest.mark.parametrize("cause", ["hung", "killed"])
def test_after_deaths_of_unclear_cause_it_is_refused_for_a_short_time_that_doubles(
    cause: DeathCause,
) -> None:
    async def use(trial: Trial) -> None:
        trial.blame(JOB, cause=cause)
        assert not await trial.is_refused(JOB)
        for factor in (1, 2, 4):
            trial.blame(JOB, cause=cause)
            trial.now += factor * FIRST_REFUSAL - 1
            assert await trial.is_refused(JOB)
            trial.now += 2
            assert not await trial.is_refused(JOB)
        trial.blame(JOB)  # a crash leaves no doubt
        trial.now += REMEMBER_SECONDS - 1
        assert await trial.is_refused(JOB)

    run_trial(use)


@pytest.mark.parametrize(("cause", "counts"), [("killed", False), ("hung", True)])
def test_a_kill_counts_only_for_requests_without_a_token(cause: DeathCause, counts: bool) -> None:
    async def use(trial: Trial) -> None:
        for _ in range(3):
            trial.blame(JOB, cause=cause, has_token=True)
        assert await trial.is_refused(JOB) == counts

    run_trial(use)


def test_a_request_that_waits_is_refused_once_the_cause_of_a_death_is_known() -> None:
    async def use(trial: Trial) -> None:
        trial.blame(JOB)
        trial.suspects.record_death([make_call(0, "generate", JOB)])
        async with trial.suspects.try_call(JOB) as outcome:  # before the process has exited
            trial.suspects.count_death("crashed")
            with pytest.raises(PoisonRequest):
                outcome.check()

    run_trial(use)


def test_a_request_that_runs_twice_at_once_is_blamed_once() -> None:
    async def use(trial: Trial) -> None:
        trial.blame(JOB, JOB, JOB)
        assert not await trial.is_refused(JOB)

    run_trial(use)


def test_a_harmless_run_clears_a_suspect() -> None:
    async def use(trial: Trial) -> None:
        for _ in range(5):
            trial.blame(JOB)
            await trial.run(JOB)
        assert not await trial.is_refused(JOB)

    run_trial(use)


def test_suspects_run_one_at_a_time_and_others_beside_them() -> None:
    async def use(trial: Trial) -> None:
        jobs = [Job(id="a", prompt=[number]) for number in range(5)]
        trial.blame(*jobs[:3])
        running: set[int] = set()
        together: list[set[int]] = []

        async def run(number: int, job: Job) -> None:
            async with trial.suspects.try_call(job):
                running.add(number)
                for _ in range(10):
                    await asyncio.sleep(0)
                    together.append({*running})
                running.discard(number)

        await asyncio.gather(*(run(number, job) for number, job in enumerate(jobs)))
        assert max(len(numbers & {0, 1, 2}) for numbers in together) == 1
        assert any(numbers >= {0, 3, 4} for numbers in together)

    run_trial(use)


def test_a_suspect_that_waits_is_refused_if_the_same_request_kills_the_engine_meanwhile() -> None:
    async def use(trial: Trial) -> None:
        trial.blame(JOB)

        async def crash() -> None:
            async with trial.suspects.try_call(JOB):
                await asyncio.sleep(0)
                trial.blame(JOB)

        _, refused = await asyncio.gather(crash(), trial.is_refused(JOB))
        assert refused

    run_trial(use)


def test_requests_beside_an_owner_that_is_found_are_no_suspects() -> None:
    async def use(trial: Trial) -> None:
        for number in range(4):
            calls = [make_call(0, "generate", Job(id="a", prompt=[number]))]
            calls[0].owner = "poisoner"
            if number < 3:
                calls.append(make_call(1, "generate", JOB))
                calls[1].owner = "other"
            assert await trial.is_refused(JOB) == (number in (2, 3))
            trial.suspects.record_death(calls)
            trial.suspects.count_death("crashed")
        assert not await trial.is_refused(JOB)

    run_trial(use)


def test_owners_of_answers_that_have_tokens_are_not_counted() -> None:
    async def use(trial: Trial) -> None:
        for owner in ("poisoner", "busy"):
            trial.suspects.owners.check(owner)
        for number in range(3):
            poison = make_call(0, "generate", Job(id="a", prompt=[number]))
            answer = make_call(1, "generate", Job(id="b", prompt=[9, number]), Steps())
            poison.owner, answer.owner = "poisoner", "busy"
            trial.suspects.record_death([poison, answer])
            trial.suspects.count_death("crashed")
        trial.suspects.owners.check("busy")
        with pytest.raises(TooManyCrashes):
            trial.suspects.owners.check("poisoner")

    run_trial(use)


def test_memory_is_bounded() -> None:
    async def use(trial: Trial) -> None:
        for number in range(2 * MAX_SUSPECTS):
            trial.blame(Job(id="a", prompt=[number]))
        assert len(trial.suspects._suspects) == MAX_SUSPECTS

    run_trial(use)
