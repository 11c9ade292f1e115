"""Prompts that begin the same and come at the same time are processed once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp.saved_states import StateStore
from dragoman.engines.llamacpp.shared_prefill import SharedPrefills
from dragoman.engines.llamacpp.slot import make_cache_label
from dragoman.engines.llamacpp.slots import SlotPool
from dragoman.errors import EngineFailed
from dragoman.types import Job
from tests.support.llama_engine import EngineRunner, generate

PREFIX = list(range(100, 200))
ALICE, BOB = "alice", "bob"


class StateClient:
    """The part of the native server that saves and restores states."""

    def __init__(self, *, saves: bool = True) -> None:
        self.actions: list[str] = []
        self._saves = saves

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        self.actions.append(path.partition("=")[2])
        await asyncio.sleep(0)
        if not self._saves:
            return 500, b"no"
        return 200, json.dumps({"n_saved": 1 << 20, "n_written": 1000}).encode()


class Prompts:
    """Jobs that prepare their slots, whose prompts are processed when the test allows it."""

    def __init__(self, client: StateClient, *, limit: int = 1 << 20, slots: int = 4) -> None:
        self.client = client
        self.store = StateStore(client, "", limit, 1)  # type: ignore[arg-type]
        prefills = SharedPrefills(float)
        prefills.min_tokens, prefills.min_seconds = 32, 0.0
        self.pool = SlotPool(slots, self.store, prefills)
        self.processed: list[int] = []  # tokens of each prefill
        self.may_finish = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.error: Exception | None = None

    async def prepare(
        self, prompt: list[int], scope: str = ALICE, **fields: Any
    ) -> tuple[int, int]:
        """Return how many tokens are in the slot for the prompt, and how many it processed."""
        job = Job(id="1", prompt=prompt, cache_scope=scope, **fields)
        async with self.pool.acquire(1, make_cache_label(job), prompt) as lease:

            async def process() -> None:
                self.processed.append(len(prompt))
                self.has_begun.set()
                await self.may_finish.wait()
                if self.error is not None:
                    error, self.error = self.error, None
                    raise error

            async def prefill(prefix: Sequence[int]) -> None:
                await lease.request(prefix, process())

            await lease.prepare(job, prompt, prefill)
            kept = lease.slot.count_reusable(lease.label, prompt)
            await asyncio.sleep(0)  # the others have their slots, too
            return kept, lease.computed_prefix


def run_async(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def make_prompts(count: int) -> list[list[int]]:
    return [[*PREFIX, number, number] for number in range(count)]


async def start(prompts: Prompts, *works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start jobs in order, and wait until the first processes its prompt and all others wait."""
    tasks = [asyncio.create_task(work) for work in works]
    await prompts.has_begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_followers_get_the_state_of_the_leader() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        tasks = await start(prompts, *map(prompts.prepare, make_prompts(4)))
        assert prompts.processed == [102]
        prompts.may_finish.set()
        first, *others = await asyncio.gather(*tasks)
        assert first == (101, 101)
        assert others == [(100, 0)] * 3
        assert sorted(prompts.client.actions) == ["restore"] * 3 + ["save"]

    run_async(run())


def test_a_prompt_without_followers_is_not_saved() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        prompts.may_finish.set()
        assert await prompts.prepare(make_prompts(1)[0]) == (101, 101)
        assert prompts.client.actions == []

    run_async(run())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"scope": ALICE}, {"scope": BOB}),
        ({"scope": ALICE}, {"scope": ALICE, "cache_prompt": False}),
        ({"scope": ""}, {"scope": BOB}),
    ],
)
def test_nothing_is_shared_between_owners(first: dict[str, Any], second: dict[str, Any]) -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        prompt = make_prompts(1)[0]
        tasks = await start(
            prompts, prompts.prepare(prompt, **first), prompts.prepare(prompt, **second)
        )
        prompts.may_finish.set()
        await asyncio.gather(*tasks)
        assert "restore" not in prompts.client.actions
        expected = 1 if "cache_prompt" in second else 2
        assert len(prompts.processed) == expected

    run_async(run())


def test_short_common_prefixes_are_not_waited_for() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        others = [PREFIX[:20] + [number] * 60 for number in range(3)]
        tasks = await start(prompts, *map(prompts.prepare, others))
        assert len(prompts.processed) == 3
        prompts.may_finish.set()
        await asyncio.gather(*tasks)

    run_async(run())


def test_a_follower_leads_if_the_leader_is_cancelled() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        tasks = await start(prompts, *map(prompts.prepare, make_prompts(4)))
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(prompts.processed) == 2  # one of the others leads now
        prompts.may_finish.set()
        results = await asyncio.gather(*tasks[1:])
        assert sorted(results) == [(100, 0), (100, 0), (101, 101)]

    run_async(run())


def test_a_follower_leads_if_the_leader_fails() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        tasks = await start(prompts, *map(prompts.prepare, make_prompts(3)))
        prompts.error = EngineFailed("no")
        prompts.may_finish.set()
        with pytest.raises(EngineFailed):
            await tasks[0]
        assert sorted(await asyncio.gather(*tasks[1:])) == [(100, 0), (101, 101)]

    run_async(run())


def test_a_follower_that_is_cancelled_changes_nothing() -> None:
    async def run() -> None:
        prompts = Prompts(StateClient())
        tasks = await start(prompts, *map(prompts.prepare, make_prompts(2)))
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        prompts.may_finish.set()
        assert await tasks[0] == (101, 101)
        assert prompts.client.actions == []  # nobody was left to save it for
        assert prompts.pool.free == 4

    run_async(run())


@pytest.mark.parametrize(
    ("saves", "limit"), [(False, 1 << 20), (True, 50)], ids=["saving fails", "too large"]
)
def test_without_a_state_all_process_their_prompts(saves: bool, limit: int) -> None:
    async def run() -> None:
        prompts = Prompts(StateClient(saves=saves), limit=limit)
        tasks = await start(prompts, *map(prompts.prepare, make_prompts(4)))
        prompts.may_finish.set()
        results = await asyncio.gather(*tasks)
        assert results == [(101, 101)] * 4
        assert len(prompts.processed) == 4
        assert prompts.store.size == 0
        assert prompts.pool.free == 4

    run_async(run())


# with the real engine


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    runner = EngineRunner(path=str(default_model), context=256, threads=1, slots=4)
    assert runner.engine.slots.prefills is not None
    runner.engine.slots.prefills.min_tokens = 32
    runner.engine.slots.prefills.min_seconds = 0.0
    yield runner
    runner.close()


@pytest.mark.real_model
def test_the_real_engine_processes_a_common_prefix_once(runner: EngineRunner) -> None:
    prompts = [[20 + index * 37 for index in range(44)] + [500 + number] * 8 for number in range(4)]

    async def run(scope: str) -> list[tuple[list[int], int]]:
        jobs = [
            generate(runner.engine, prompt, max_tokens=3, cache_scope=scope) for prompt in prompts
        ]
        outputs = await asyncio.gather(*jobs)
        return [(output.get_ids(), output.count_cached()) for output in outputs]

    answers = runner.run(run(ALICE))
    assert sorted(cached for _, cached in answers) == [0, 44, 44, 44]
    for prompt, (ids, _) in zip(prompts, answers, strict=True):
        alone = runner.run(generate(runner.engine, prompt, max_tokens=3, cache_prompt=False))
        assert alone.get_ids() == ids
    assert sorted(cached for _, cached in runner.run(run(BOB))) == [0, 44, 44, 44]


@pytest.mark.real_model
def test_cancelling_the_leader_leaves_nothing_behind(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prefills = runner.engine, runner.engine.slots.prefills
    assert prefills is not None
    find = prefills.find
    prompt = [30 + index * 41 for index in range(150)]
    label = make_cache_label(Job(id="1", prompt=prompt, cache_scope=ALICE))

    async def run() -> tuple[int, int]:
        has_followed = asyncio.Event()

        def find_and_tell(*arguments: Any) -> Any:
            leading = find(*arguments)
            if leading is not None:
                has_followed.set()
            return leading

        monkeypatch.setattr(prefills, "find", find_and_tell)
        works = [
            generate(engine, [*prompt, number], max_tokens=2, cache_scope=ALICE)
            for number in (50, 60)
        ]
        leader, follower = map(asyncio.create_task, works)
        await has_followed.wait()
        leader.cancel()
        await asyncio.wait([leader])
        output = await follower
        async with engine.slots.acquire(4, label):  # all slots become free
            return output.count_tokens(), output.count_cached()

    assert runner.run(run()) == (2, 0)
