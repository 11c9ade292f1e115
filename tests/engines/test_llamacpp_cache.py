"""What the GGUF engine reuses of earlier prompts: much within a cache scope, nothing of others."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp.loading.settings import can_save_states, parse_settings
from dragoman.types import Adapter
from dragoman.types.common_prefix import count_common_prefix
from tests.support.llama_engine import CONTEXT, EngineRunner, generate, make_job
from tests.support.lora import make_adapter

pytestmark = pytest.mark.real_model

DIGITS = "%llguidance {}\nstart: /[0-9]{1,8}/"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 2, "temperature": 1.0},
    "more choices than slots": {"n": 3, "temperature": 1.0},
    "uncached": {"cache_prompt": False},
    "prompt logprobs": {"prompt_logprobs": 1, "logprobs": 1},
    "grammar": {"grammar": DIGITS},
    "another grammar": {"grammar": DIGITS + "\n// another"},
    "at least three tokens": {"min_tokens": 3, "max_tokens": 4},
}


def make_prompt(number: int, length: int = 24) -> list[int]:
    return [20 + (number * 7919 + index * 104_729) % 40_000 for index in range(length)]


def start_runner(default_model: Path, **settings: Any) -> EngineRunner:
    return EngineRunner(path=str(default_model), context=CONTEXT, threads=1, **settings)


@pytest.fixture(scope="module")
def single_slot(default_model: Path) -> Iterator[EngineRunner]:
    runner = start_runner(default_model, slots=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def two_slots(default_model: Path) -> Iterator[EngineRunner]:
    runner = start_runner(default_model, slots=2)
    yield runner
    runner.close()


@pytest.fixture(params=["single_slot", "two_slots"])
def runner(request: pytest.FixtureRequest) -> EngineRunner:
    runner: EngineRunner = request.getfixturevalue(request.param)
    return runner


def count_cached(runner: EngineRunner, prompt: list[int], scope: str, **fields: Any) -> int:
    work = generate(runner.engine, prompt, **{"max_tokens": 2} | fields, cache_scope=scope)
    return runner.run(work).count_cached()


@pytest.mark.parametrize("way", WAYS)
def test_a_right_guess_is_told_like_a_wrong_one(two_slots: EngineRunner, way: str) -> None:
    """Whatever way the victim or the attacker uses."""
    runner = two_slots
    first, second, *wrong = (make_prompt(10 * list(WAYS).index(way) + index) for index in range(4))
    count_cached(runner, first, "victim", **WAYS[way])
    guesses = [count_cached(runner, [*guess, 5], "attacker") for guess in (first, wrong[0])]
    assert guesses == [0, 0]
    count_cached(runner, second, "victim")
    guesses = [
        count_cached(runner, [*guess, 5], "attacker", **WAYS[way]) for guess in (second, wrong[1])
    ]
    assert guesses == [0, 0]


@pytest.mark.parametrize("scope", ["", "owner"])
def test_conversations_of_one_owner_stay_cached(runner: EngineRunner, scope: str) -> None:
    """More conversations than slots: what no slot has room for is saved and restored."""
    turns = [make_prompt(200 + number) for number in range(4)]
    for turn in turns:
        count_cached(runner, turn, scope)
    for turn in turns:
        assert count_cached(runner, [*turn, 7, 8], scope) >= len(turn)
    count_cached(runner, make_prompt(300), "somebody else")
    for turn in turns:
        assert count_cached(runner, [*turn, 7, 8, 9, 10], scope) >= len(turn)


def test_a_scope_reuses_no_more_than_it_has_sent(runner: EngineRunner) -> None:
    """Jobs of three owners that begin alike, some at once, some cancelled in between."""
    choose = random.Random(11)
    sent: dict[str, list[list[int]]] = defaultdict(list)

    async def run_job(scope: str, prompt: list[int], way: str, cancel_after: float | None) -> None:
        sent[scope].append(prompt)
        fields = {"max_tokens": 2} | WAYS[way]
        try:
            async with asyncio.timeout(cancel_after):
                output = await generate(runner.engine, prompt, **fields, cache_scope=scope)
        except TimeoutError:
            return
        earlier = (one for one in sent[scope] if one is not prompt)
        own = max((count_common_prefix(one, prompt) for one in earlier), default=0)
        assert output.count_cached() <= own, (scope, way)
        sent[scope] += [prompt + output.get_ids(choice) for choice in range(fields.get("n", 1))]

    async def go() -> None:
        for _ in range(7):
            jobs = []
            for _ in range(3):
                scope = choose.choice(("first", "second", "third"))
                prompt = make_prompt(choose.randrange(3), choose.choice((12, 24, 36)))
                prompt += [500 + choose.randrange(5)]
                cancel_after = choose.choice((None, None, 0.0, 0.001, 0.02, 0.1))
                jobs.append(run_job(scope, prompt, choose.choice(list(WAYS)), cancel_after))
            await asyncio.gather(*jobs)

    runner.run(go())


def test_a_job_that_is_cancelled_at_once_leaves_nothing_behind(single_slot: EngineRunner) -> None:
    """The native server may start on a request after its client is gone."""
    runner = single_slot

    async def cancel_soon(prompt: list[int], delay: int) -> None:
        stream = runner.engine.generate(make_job(prompt, cache_scope="victim"))
        task = asyncio.ensure_future(anext(stream))
        for _ in range(delay):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()

    async def go() -> list[int]:
        counts = []
        for delay in range(1, 9):
            secret = make_prompt(400 + delay)
            await cancel_soon(secret, delay)
            fields = {"max_tokens": 1, "cache_scope": f"attacker {delay}"}
            output = await generate(runner.engine, [*secret, 5], **fields)
            counts.append(output.count_cached())
        return counts

    assert set(runner.run(go())) == {0}


def test_a_public_prefix_is_shared_exactly(two_slots: EngineRunner) -> None:
    runner = two_slots
    prompt = make_prompt(600, 50)
    counts = {
        scope: count_cached(runner, [*prompt, 5, 6], scope, public_prefix=30)
        for scope in ("first owner", "second owner", "third owner")
    }
    assert counts == {"first owner": 0, "second owner": 30, "third owner": 30}
    assert count_cached(runner, [*prompt, 5, 6, 7], "first owner", public_prefix=30) >= 50
    assert count_cached(runner, prompt, "fourth owner") == 0  # the pipeline did not allow it
    assert count_cached(runner, prompt, "fifth owner", public_prefix=20) == 0  # another prefix


def test_saved_prompts_keep_to_their_limit(default_model: Path) -> None:
    """And the owner that needs the most loses its oldest first."""
    runner = start_runner(default_model, slots=1, cache_ram=2)
    try:
        count_cached(runner, make_prompt(1), "quiet")
        for number in range(5):
            count_cached(runner, make_prompt(10 + number), "busy")
        assert count_cached(runner, [*make_prompt(1), 5], "quiet") >= 24
        assert count_cached(runner, [*make_prompt(10), 5], "busy") == 0
        assert count_cached(runner, [*make_prompt(14), 5], "busy") >= 24
    finally:
        runner.close()


def test_adapters_are_kept_apart_as_owners_are(default_model: Path, tmp_path: Path) -> None:
    lora = {"poet": str(make_adapter(tmp_path / "poet.gguf", seed=1))}
    runner = start_runner(default_model, slots=2, lora=lora)
    try:
        prompt, poet = make_prompt(700), (Adapter("poet"),)
        assert not runner.engine.capabilities.public_prefixes
        assert count_cached(runner, prompt, "a", lora=poet) == 0
        assert count_cached(runner, prompt, "a") == 0
        assert count_cached(runner, prompt, "b", lora=poet) == 0
        assert count_cached(runner, [*prompt, 5], "b", lora=poet) >= 24
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"spec_type": "ngram-simple"}, True),
        ({"draft_model": "x"}, False),
        ({"spec_type": "draft-mtp"}, False),
        ({"lora": {"a": "x"}}, False),
    ],
)
def test_states_are_saved_where_they_are_complete(settings: dict[str, Any], expected: bool) -> None:
    assert can_save_states(parse_settings({"path": "x", **settings})) is expected


def test_closing_the_stream_frees_the_slot_when_the_server_has_answered(
    runner: EngineRunner,
) -> None:
    async def go() -> None:
        total = runner.engine.slots.free
        async with aclosing(runner.engine.generate(make_job(make_prompt(800)))) as steps:
            await anext(steps)
            assert runner.engine.slots.free == total - 1
        await generate(runner.engine, make_prompt(801), n=total)  # needs all of them
        assert runner.engine.slots.free == total

    runner.run(go())
