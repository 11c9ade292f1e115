"""Models are found by name, loaded once and listed."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import (
    DragomanError,
    EngineDown,
    ModelBroken,
    ModelLoading,
    ModelNotFound,
    Unsupported,
)
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.engine import EngineModelOptions, make_engine_model
from dragoman.models.loaders.gguf import load
from dragoman.models.mapping import ModelOptions
from dragoman.models.registry import ModelEntry, ModelPolicy, ModelRegistry
from dragoman.models.residency import Lease
from dragoman.pipeline.admission import Admission
from tests.support.fake_models import (
    FakeEngine,
    FakeLoader,
    get_size,
    get_state,
    run_scenario,
    wait_until,
    write_models,
)
from tests.support.model_files import write_model_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_models(tmp_path)


def test_concurrent_first_requests_load_once(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        gate = loader.gates["a"] = asyncio.Event()
        requests = [asyncio.create_task(models.acquire(name)) for name in ["a", "A ", "a:x"] * 20]
        await wait_until(lambda: loader.loads == ["a"])
        entry = models.get("a")
        assert (entry.state, entry.progress) == ("loading", 0.5)
        gate.set()
        leases = await asyncio.gather(*requests)
        assert loader.loads == ["a"]
        assert len({id(lease.model) for lease in leases}) == 1
        for lease in leases:
            lease.release()

    run_scenario(root, scenario)


def test_lease_has_its_model(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        with await models.acquire("a") as model:
            assert model.id == "a"
            assert model.engine is loader.engines["a"]
            assert Admission().get_gate(model).slots == 3
            assert list(models.list_loaded()) == [model]
        assert get_state(models, "a") == "ready"

    run_scenario(root, scenario)


def test_two_names_of_one_file_share_one_model(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        one, two = await models.acquire("fast"), await models.acquire("quick")
        assert one.model is two.model
        assert (one.model.id, one.model.aliases) == ("fast", ("quick", "a"))
        other = await models.acquire("tuned")  # other options, another model
        assert other.model is not one.model
        assert loader.loads == ["fast", "tuned"]

    run_scenario(
        root, scenario, yaml="fast: a.gguf\nquick: a.gguf\ntuned: {path: a.gguf, context: 9}"
    )


def test_unknown_name_is_rejected_with_the_available_models(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        for operation in (models.acquire, models.load, models.unload):
            with pytest.raises(ModelNotFound) as caught:
                await operation("nope\x1b[31m\n")
            assert caught.value.status == 404
            assert caught.value.param == "model"
            assert caught.value.message.startswith("The model `nope\ufffd[31m` does not exist.")
            assert "a, b, big, c" in caught.value.message
        with pytest.raises(ModelNotFound):
            models.get("nope")
        assert loader.loads == []

    run_scenario(root, scenario)


def test_new_file_is_found(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        with pytest.raises(ModelNotFound):
            await models.acquire("new")
        write_model_file(root / "new.gguf")
        (await models.acquire("new")).release()

    run_scenario(root, scenario)


def test_request_that_waits_too_long_gets_retry_after(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        gate = loader.gates["a"] = asyncio.Event()
        with pytest.raises(ModelLoading) as caught:
            await models.acquire("a", wait=0)
        assert caught.value.status == 503
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 1
        gate.set()
        (await models.acquire("a")).release()  # the load continued
        assert loader.loads == ["a"]

    run_scenario(root, scenario)


def test_cancelled_request_does_not_stop_the_load(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        gate = loader.gates["a"] = asyncio.Event()
        cancelled, waiting = (asyncio.create_task(models.acquire("a")) for _ in range(2))
        await wait_until(lambda: bool(loader.loads))
        cancelled.cancel()
        gate.set()
        (await waiting).release()
        assert cancelled.cancelled()
        assert loader.loads == ["a"]

    run_scenario(root, scenario)


def test_broken_file_is_tried_once_until_it_changes(root: Path) -> None:
    write_model_file(root / "bad.gguf", b"not a model at all")

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        for _ in range(3):
            with pytest.raises(ModelBroken) as caught:
                await models.acquire("bad")
            assert caught.value.status == 500
            assert "`bad` cannot be loaded" in caught.value.message
            assert "not a GGUF file" in caught.value.message
            assert str(root) not in caught.value.message
        entry = models.get("bad")
        assert entry.state == "failed"
        assert entry.error is not None
        write_model_file(root / "bad.gguf")
        (await models.acquire("bad")).release()
        assert loader.loads == ["bad"]

    run_scenario(root, scenario)


def test_served_file_that_was_missing_is_tried_again(root: Path, tmp_path: Path) -> None:
    file = write_model_file(tmp_path / "served.gguf")

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        models.catalog.add(models.catalog.open_path(file), ["mine"])
        models.catalog.refresh()
        file.rename(tmp_path / "away")
        with pytest.raises(ModelBroken, match="No such file"):
            await models.acquire("mine")
        (tmp_path / "away").rename(file)
        (await models.acquire("mine")).release()
        assert loader.loads == ["served"]

    run_scenario(root, scenario)


@pytest.mark.parametrize("error", [ModelBroken("It is odd."), RuntimeError("/secret/path")])
def test_failed_load_is_not_tried_again(error: Exception, root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        loader.errors["a"] = error
        messages = set()
        for _ in range(3):
            with pytest.raises(ModelBroken) as caught:
                await models.acquire("a")
            messages.add(caught.value.message)
        assert len(loader.loads) == 1
        assert "secret" not in messages.pop()
        assert not messages
        assert get_state(models, "a") == "failed"
        del loader.errors["a"]
        entry = await models.load("a")  # an operator may try again
        assert entry.state == "ready"
        (await models.acquire("a")).release()

    run_scenario(root, scenario)


def test_temporary_failure_is_tried_again(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        loader.errors["a"] = EngineDown("No engine now.", retry_after=3)
        with pytest.raises(EngineDown) as caught:
            await models.acquire("a")
        assert caught.value.retry_after == 3
        assert get_state(models, "a") == "unloaded"
        del loader.errors["a"]
        (await models.acquire("a")).release()

    run_scenario(root, scenario)


def test_every_waiting_request_gets_the_error(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        gate = loader.gates["a"] = asyncio.Event()
        loader.errors["a"] = ModelBroken("It is odd.")
        requests = [asyncio.create_task(models.acquire("a")) for _ in range(5)]
        await wait_until(lambda: bool(loader.loads))
        gate.set()
        errors = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(error, ModelBroken) for error in errors)
        assert len({id(error) for error in errors}) == 5  # each has its own traceback
        assert loader.loads == ["a"]

    run_scenario(root, scenario)


def test_unknown_names_can_mean_the_default_model(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("gpt-4o")).release()
        (await models.acquire("b")).release()
        (await models.acquire("")).release()
        assert loader.loads == ["a", "b"]
        assert models.default_name == "a"

    run_scenario(root, scenario, any_model=True)


def test_operators_model_is_the_default(root: Path) -> None:
    async def scenario() -> None:
        catalog = ModelCatalog(root)
        loader = FakeLoader()
        catalog.add(catalog.open_path(root / "c.gguf"), ["served", "gpt-4"])
        models = ModelRegistry(catalog, loader)
        assert models.default_name == "c"
        with await models.acquire("") as model, await models.acquire("GPT-4") as same:
            assert model is same
            assert model.aliases == ("served", "gpt-4")
        assert next(entry.id for entry in models.list_models()) == "c"
        await models.aclose()

    asyncio.run(scenario())


def test_registry_without_models(tmp_path: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        assert models.default_name == ""
        assert models.list_models() == []
        with pytest.raises(ModelNotFound, match="No models are installed"):
            await models.acquire("")

    run_scenario(tmp_path, scenario, any_model=True)


def test_list_has_state_and_info(root: Path) -> None:
    write_model_file(root / "odd.gguf", b"xxxx")

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("b")).release()
        entries: dict[str, ModelEntry] = {entry.id: entry for entry in models.list_models()}
        assert {name: entry.state for name, entry in entries.items()} == {
            "named": "unloaded",
            "b": "ready",
            "big": "unloaded",
            "c": "unloaded",
            "odd": "failed",
        }
        info = entries["named"].info
        assert (info.architecture, info.context, info.lora) == ("llama", 77, ("poet",))
        assert info.size == get_size(root, "a")
        assert info.created == int((root / "a.gguf").stat().st_mtime)
        write_model_file(root / "later.gguf")
        models.list_models()
        await wait_until(lambda: "later" in {entry.id for entry in models.list_models()})
        (root / "b.gguf").unlink()
        (root / "later.gguf").unlink()
        await wait_until(lambda: "later" not in {entry.id for entry in models.list_models()})
        assert "b" in {entry.id for entry in models.list_models()}  # it is still loaded

    run_scenario(root, scenario, yaml="named: {path: a.gguf, context: 77, lora: {poet: p.gguf}}")


def test_listing_needs_no_event_loop(root: Path) -> None:
    models = ModelRegistry(ModelCatalog(root), FakeLoader())
    write_model_file(root / "later.gguf")
    assert "later" in {entry.id for entry in models.list_models()}


def test_created_is_stable(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        created = set()
        for _ in range(3):
            created.add(models.get("a").info.created)
            with pytest.raises(ModelNotFound):
                await models.acquire("look again")
        assert len(created) == 1

    run_scenario(root, scenario)


def test_progress_is_reported_and_logged(root: Path, caplog: Any) -> None:
    reports: list[tuple[str, str, float]] = []

    async def scenario() -> None:
        def record_report(name: str, what: str, done: float) -> None:
            reports.append((name, what, done))

        models = ModelRegistry(ModelCatalog(root), FakeLoader(), listener=record_report)
        (await models.acquire("a")).release()
        await models.aclose()

    with caplog.at_level(logging.INFO, "dragoman.models"):
        asyncio.run(scenario())
    assert reports == [("a", "loading", 0.0), ("a", "half way", 0.5), ("a", "ready", 1.0)]
    assert "a: half way (50 %)" in caplog.text
    assert "a: ready after" in caplog.text


def test_closing_closes_everything(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        lease = await models.acquire("a")
        loader.gates["b"] = asyncio.Event()
        requests = asyncio.create_task(models.acquire("b"))
        await wait_until(lambda: "b" in loader.loads)
        await models.aclose()
        assert loader.engines["a"].closed == 1
        with pytest.raises(DragomanError):
            await requests
        lease.release()  # too late, but harmless
        assert loader.engines["a"].closed == 1

    run_scenario(root, scenario)


def test_registry_of_a_custom_engine() -> None:
    async def scenario() -> None:
        engine = FakeEngine(context=5, lora=("x",), embeddings=3, logprobs=-1)
        model = make_engine_model(engine, EngineModelOptions(name="mine"))
        policy = ModelPolicy(keep_alive=0)
        models = ModelRegistry.from_model(model, aliases=["gpt-4"], policy=policy)
        lease: Lease = await models.acquire("GPT-4")
        assert lease.model.engine is engine
        assert lease.model.tokenizer is None
        assert lease.model.info.capabilities == ("completion", "embedding", "lora")
        assert lease.model.info.context == 5
        lease.release()
        assert models.default_name == "mine"
        with pytest.raises(ModelNotFound):
            await models.acquire("other")
        with pytest.raises(Unsupported):
            await models.unload("mine")
        assert [(entry.id, entry.state) for entry in models.list_models()] == [("mine", "ready")]
        await models.aclose()
        assert engine.closed == 0  # the caller closes it

    asyncio.run(scenario())


def test_options_with_defaults() -> None:
    defaults = ModelOptions(context=1, lora={"a": "x"}, pin=True)
    assert ModelOptions(context=2, lora={"b": "y"}).with_defaults(defaults) == ModelOptions(
        context=2, lora={"a": "x", "b": "y"}, pin=True
    )


def test_created_is_the_change_time_of_the_file(tmp_path: Path) -> None:
    file = write_model_file(tmp_path / "old.gguf")
    os.utime(file, (1_600_000_000, 1_600_000_000))

    async def check() -> None:
        models = ModelRegistry(ModelCatalog(tmp_path), load)
        assert [entry.info.created for entry in models.list_models()] == [1_600_000_000]
        await models.aclose()

    asyncio.run(check())
