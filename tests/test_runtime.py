"""Which models a server gets from its settings and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import config, runtime
from dragoman.models.registry import ModelRegistry
from dragoman.testing import ScriptedEngine
from tests.support.fake_models import FakeLoader
from tests.support.model_files import write_model_file


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    fake = FakeLoader()
    monkeypatch.setattr(runtime, "load", fake)
    return fake


def run_models(
    model: str, use: Callable[[ModelRegistry], Awaitable[None]], **options: object
) -> None:
    """Build the registry as `dragoman serve MODEL` does, use it, and close it."""

    async def run() -> None:
        models = runtime.build_models(config.load(options, {}), model)
        try:
            await use(models)
        finally:
            await models.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        ("{file}", {}),
        ("{link}", {}),
        ("{{path: {file}}}", {}),
        ("{{path: {link}, context: 512}}", {"context": 512}),
        ("{{path: {file}, context: 512, slots: 2}}", {"context": "512", "slots": 2}),
        (
            "{{path: {file}, lora: {{poet: ../other/poet.lora}}}}",
            {"lora": "poet={dir}/../other/poet.lora"},
        ),
        ("{{path: {file}, chat_template: t.jinja}}", {"chat_template": "{dir}/../models/t.jinja"}),
    ],
)
def test_one_file_under_two_names_is_loaded_once(
    entry: str, options: dict[str, object], tmp_path: Path, loader: FakeLoader
) -> None:
    root = tmp_path / "models"
    file = write_model_file(tmp_path / "other" / "m.gguf")
    root.mkdir()
    write_model_file(tmp_path / "other" / "poet.lora", general_type="adapter")
    (root / "t.jinja").touch()
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    (root / "models.yaml").write_text("writer: " + entry.format(file=file, link=link))
    flags = {
        name: value.format(dir=root) if isinstance(value, str) else value
        for name, value in options.items()
    }

    async def use(models: ModelRegistry) -> None:
        for name in (models.default_name, "writer", "m"):
            with await models.acquire(name):
                pass
        assert [(entry.id, entry.aliases) for entry in models.list_models()] == [("m", ("writer",))]

    run_models(str(file), use, models_dir=str(root), **flags)
    assert loader.loads == ["m"]


def test_other_options_are_another_model(tmp_path: Path, loader: FakeLoader) -> None:
    file = write_model_file(tmp_path / "m.gguf")
    (tmp_path / "models.yaml").write_text("writer: {path: m.gguf, context: 512}")

    async def use(models: ModelRegistry) -> None:
        for name in ("m", "writer"):
            with await models.acquire(name):
                pass

    run_models(str(file), use, models_dir=str(tmp_path))
    assert loader.loads == ["m", "writer"]


@pytest.mark.parametrize(("default", "expected"), [("", "a"), ("b", "b"), ("sub/C", "sub/c")])
def test_directory_serves_all_its_models(
    default: str, expected: str, tmp_path: Path, loader: FakeLoader
) -> None:
    folder = tmp_path / "ggufs"
    write_model_file(folder / "a.gguf")
    write_model_file(folder / "b.gguf", size=2)
    write_model_file(folder / "c.gguf", size=3)
    write_model_file(folder / "sub" / "c.gguf", size=4)
    write_model_file(folder / "notes.txt", b"text")

    async def use(models: ModelRegistry) -> None:
        assert models.default_name == expected
        assert {entry.id for entry in models.list_models()} == {"a", "b", "c", "sub/c"}
        for name in ("a", "b", "c", "sub/c", "alias"):
            with await models.acquire(name):
                pass

    options = {"default_model": default, "served_name": "alias"}
    run_models(str(folder), use, models_dir=str(tmp_path / "models"), **options)
    assert sorted(loader.loads) == ["a", "b", "c", "sub/c"]


def test_broken_file_in_a_directory_is_not_the_default_model(
    tmp_path: Path, loader: FakeLoader, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_file(tmp_path / "ggufs" / "a.gguf", b"GGUF, but the download stopped")
    write_model_file(tmp_path / "ggufs" / "b.gguf")

    async def use(models: ModelRegistry) -> None:
        assert models.default_name == "b"
        with await models.acquire("b"):
            pass

    run_models(str(tmp_path / "ggufs"), use, models_dir=str(tmp_path / "models"))
    assert "model `a`" in caplog.text


def test_models_have_no_effect_beside_an_engine(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("models: {m: m.gguf}\nlimits: {queue: 3}")
    app = dragoman.app(ScriptedEngine("x"), config=str(file))
    assert app.settings.queue == 3
    assert "`models` has no effect" in caplog.text


def test_models_of_the_configuration_file(tmp_path: Path, loader: FakeLoader) -> None:
    write_model_file(tmp_path / "one.gguf")
    write_model_file(tmp_path / "two.gguf", size=2)
    root = tmp_path / "models"
    root.mkdir()
    (root / "models.yaml").write_text("second: ../one.gguf\nthird: ../one.gguf")
    file = tmp_path / "d.yaml"
    file.write_text("models: {first: one.gguf, second: {path: two.gguf, context: 8k}}")

    async def use(models: ModelRegistry) -> None:
        assert [entry.id for entry in models.list_models()] == ["first", "second"]
        assert models.get("third").id == "first"
        catalog = runtime.open_catalog(config.load({"config": str(file), "models_dir": str(root)}))
        second = catalog.find("second")
        assert second is not None
        assert (second.path.name, second.options.context) == ("two.gguf", 8192)

    run_models("first", use, models_dir=str(root), config=str(file))
