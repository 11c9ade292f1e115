"""Models in use stay loaded; idle ones are evicted in the right order and at the right time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import EngineDown, ModelBroken, ModelNotFound, Unavailable
from dragoman.models.catalog import ModelSource
from dragoman.models.model import Model
from dragoman.models.registry import ModelRegistry
from tests.support.fake_models import (
    TIMEOUT,
    FakeLoader,
    get_size,
    get_state,
    run_scenario,
    wait_until,
    write_models,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_models(tmp_path)


def test_least_recently_used_model_is_evicted_first(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        for name in ("a", "b", "a"):
            (await models.acquire(name)).release()
        (await models.acquire("c")).release()
        assert [get_state(models, name) for name in "abc"] == ["ready", "unloaded", "ready"]
        assert loader.engines["b"].closed == 1

    run_scenario(root, scenario, memory=2 * get_size(root, "a"))


def test_busy_model_is_never_evicted(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        a, b = await models.acquire("a"), await models.acquire("b")
        with pytest.raises(Unavailable) as caught:
            await models.acquire("c")
        assert caught.value.retry_after == 5
        assert [engine.closed for engine in loader.engines.values()] == [0, 0]
        b.release()
        (await models.acquire("c")).release()
        assert [get_state(models, name) for name in "abc"] == ["ready", "unloaded", "ready"]
        a.release()

    run_scenario(root, scenario, memory=2 * get_size(root, "a"))


def test_pinned_model_is_never_evicted(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("pinned")).release()
        with pytest.raises(Unavailable):
            await models.acquire("b")
        assert get_state(models, "pinned") == "ready"

    yaml = "pinned: {path: a.gguf, pin: true, keep_alive: 0}"
    run_scenario(root, scenario, yaml=yaml, memory=get_size(root, "a"))


def test_two_loads_do_not_reserve_the_same_memory(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        gate = loader.gates["a"] = asyncio.Event()
        first = asyncio.create_task(models.acquire("a"))
        await wait_until(lambda: bool(loader.loads))
        with pytest.raises(Unavailable):
            await models.acquire("b")
        gate.set()
        (await first).release()
        (await models.acquire("b")).release()
        assert loader.loads == ["a", "b"]

    run_scenario(root, scenario, memory=get_size(root, "a"))


def test_load_waits_until_the_evicted_model_is_closed(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("a")).release()
        loader.engines["a"].may_close.clear()
        requests = [asyncio.create_task(models.acquire("b")) for _ in range(2)]
        await wait_until(lambda: get_state(models, "a") == "unloaded")
        assert loader.loads == ["a"]
        loader.engines["a"].may_close.set()
        for lease in await asyncio.gather(*requests):
            lease.release()
        assert loader.loads == ["a", "b"]

    run_scenario(root, scenario, memory=get_size(root, "a"))


def test_model_larger_than_the_memory_limit_is_broken(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        with pytest.raises(ModelBroken, match="at most"):
            await models.acquire("big")

    run_scenario(root, scenario, memory=get_size(root, "a"))


def test_idle_model_is_unloaded_after_its_keep_alive(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        lease = await models.acquire("brief")
        await asyncio.sleep(0.01)
        assert get_state(models, "brief") == "ready"  # the timer does not run while it is used
        lease.release()
        lease.release()
        await wait_until(lambda: get_state(models, "brief") == "unloaded")
        await wait_until(lambda: loader.engines["brief"].closed == 1)
        (await models.acquire("b")).release()
        await asyncio.sleep(0.01)
        assert get_state(models, "b") == "ready"  # forever by default
        await models.load("brief")  # loaded but never used
        await wait_until(lambda: get_state(models, "brief") == "unloaded")

    run_scenario(root, scenario, yaml="brief: {path: a.gguf, keep_alive: 0.002}")


def test_use_stops_the_idle_timer(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        first = await models.acquire("a")
        second = await models.acquire("a")
        first.release()
        await asyncio.sleep(0.005)
        assert get_state(models, "a") == "ready"
        second.release()
        third = await models.acquire("a")  # before the timer fires
        await asyncio.sleep(0.005)
        assert get_state(models, "a") == "ready"
        assert loader.loads == ["a"]
        third.release()
        await wait_until(lambda: get_state(models, "a") == "unloaded")

    run_scenario(root, scenario, keep_alive=0)


def test_unloading_waits_for_users(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        lease = await models.acquire("a")
        engine = loader.engines["a"]
        entry = await models.unload("a")
        assert entry.state == "unloaded"
        assert engine.closed == 0
        (await models.acquire("a")).release()  # a second instance
        assert loader.loads == ["a", "a"]
        lease.release()
        await wait_until(lambda: engine.closed == 1)
        await models.unload("a")
        assert loader.engines["a"].closed == 1
        assert (await models.unload("a")).state == "unloaded"  # twice is fine

    run_scenario(root, scenario)


def test_unloading_stops_a_load(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        loader.gates["a"] = asyncio.Event()
        requests = asyncio.create_task(models.acquire("a"))
        await wait_until(lambda: bool(loader.loads))
        assert (await models.unload("a")).state == "unloaded"
        with pytest.raises(Unavailable):
            await requests
        loader.gates["a"].set()
        (await models.acquire("a")).release()

    run_scenario(root, scenario)


def test_unloading_stops_a_load_that_has_not_begun(root: Path) -> None:
    """Both requests go on in the same turn of the event loop, after a refresh of the catalog."""

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        async def unload_after_refresh() -> str:
            with pytest.raises(ModelNotFound):
                await models.acquire("nobody")
            return (await models.unload("a")).state

        request = asyncio.create_task(models.acquire("a"))
        unloading = asyncio.create_task(unload_after_refresh())
        assert await unloading == "unloaded"
        with pytest.raises(Unavailable, match="unloaded while it was loading"):
            await request
        assert loader.loads == []
        (await models.acquire("a")).release()

    run_scenario(root, scenario)


def test_engine_that_fails_to_close_is_dropped(root: Path, caplog: Any) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("a")).release()
        engine = loader.engines["a"]

        async def fail() -> None:
            engine.closed += 1
            raise OSError("stuck")

        engine.aclose = fail  # type: ignore[method-assign]
        await models.unload("a")
        assert list(models.list_loaded()) == []

    run_scenario(root, scenario)
    assert "failed to close a" in caplog.text


@pytest.mark.parametrize("seed", range(8))
def test_random_use_keeps_the_invariants(seed: int, root: Path) -> None:
    """Random clients: memory is never exceeded, and no user loses a model."""
    rng = random.Random(seed)
    limit = 2 * get_size(root, "a")

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        open_models: Counter[str] = Counter()  # a closing model may be loaded again
        load_model = loader.__call__

        async def load(source: ModelSource) -> Model:
            open_models[source.id] += 1
            assert sum(get_size(root, name) for name in open_models.elements()) <= limit
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.1:
                open_models[source.id] -= 1
                raise EngineDown("Not now.")
            model = await load_model(source)
            engine: Any = model.engine
            close = engine.aclose

            async def aclose() -> None:
                await asyncio.sleep(0)
                open_models[source.id] -= 1
                await close()

            engine.aclose = aclose
            return model

        models._loader = load

        async def client() -> None:
            for _ in range(15):
                name = rng.choice("abc")
                try:
                    lease = await models.acquire(name, wait=rng.choice((0, TIMEOUT)))
                except Unavailable:
                    continue
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                    engine: Any = lease.model.engine
                    assert engine.closed == 0
                lease.release()

        async def operator() -> None:
            for _ in range(30):
                await asyncio.sleep(0)
                name = rng.choice("abc")
                if models.get(name).state == "ready" and not is_busy(models, name):
                    await models.unload(name)

        await asyncio.gather(*(client() for _ in range(10)), operator())
        assert loader.loads

    run_scenario(root, scenario, memory=limit, keep_alive=0)


def is_busy(models: ModelRegistry, name: str) -> bool:
    """Whether a model is in use. A busy model may be unloaded and loaded again beside itself."""
    slot = models._find_slot(name, "")
    return slot is not None and slot.loaded is not None and bool(slot.loaded.users)


def test_idle_model_that_can_sleep_stays_loaded(root: Path) -> None:
    """The keep-alive and an unload put it to sleep; its engine wakes by itself."""

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        naps: list[str] = []

        async def sleep() -> None:
            naps.append("nap")

        lease = await models.acquire("a")
        lease.model.capabilities = replace(lease.model.capabilities, can_sleep=True)
        engine: Any = lease.model.engine
        engine.sleep = sleep
        lease.release()
        await wait_until(lambda: len(naps) == 1)
        await models.unload("a")
        assert len(naps) == 2
        assert get_state(models, "a") == "ready"
        assert loader.engines["a"].closed == 0

    run_scenario(root, scenario, keep_alive=0.01)


def test_two_unloads_of_a_model_that_cannot_sleep(root: Path) -> None:
    """The second one finds the model unloaded when its own attempt has failed, too."""

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        attempts: list[asyncio.Event] = []

        async def sleep() -> None:
            attempts.append(asyncio.Event())
            await attempts[-1].wait()
            raise Unavailable("It does not sleep.")

        lease = await models.acquire("a")
        lease.model.capabilities = replace(lease.model.capabilities, can_sleep=True)
        engine: Any = lease.model.engine
        engine.sleep = sleep
        lease.release()
        unloads = [asyncio.create_task(models.unload("a")) for _ in range(2)]
        await wait_until(lambda: len(attempts) == 2)
        for attempt, unload in zip(attempts, unloads, strict=True):
            attempt.set()
            assert (await unload).state == "unloaded"
        assert loader.engines["a"].closed == 1

    run_scenario(root, scenario)
