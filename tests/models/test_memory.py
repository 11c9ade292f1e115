"""Memory that is reserved before models are loaded, and the context that is listed for them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dragoman.errors import ModelBroken, ModelLoading, Unavailable
from dragoman.models.memory import MemoryPlanner
from dragoman.models.registry import ModelPolicy, ModelRegistry
from tests.support.command_line import run_command
from tests.support.fake_models import FakeLoader, get_state
from tests.support.model_files import make_catalog, make_gguf, write_model_file

# 4 KiB for each token of context: 537 MB for the 131,072 tokens that it claims
HEADER: dict[str, str | int] = {
    "llama_context_length": 131072,
    "llama_block_count": 4,
    "llama_embedding_length": 256,
    "llama_attention.head_count": 4,
}
YAML = """
small: {path: a.gguf, context: 8192, slots: 1}
other: {path: b.gguf, context: 8192, slots: 1}
wide: {path: c.gguf, context: 65536, slots: 1}
drafted: {path: a.gguf, context: 4096, slots: 1, draft_model: wide}
undrafted: {path: b.gguf, draft_model: nobody}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in "abcd":
        write_model_file(tmp_path / f"{name}.gguf", make_gguf(1, HEADER))
    return tmp_path


def run(
    root: Path, memory: int, scenario: Callable[[ModelRegistry, FakeLoader], Awaitable[None]]
) -> None:
    async def go() -> None:
        catalog, loader = make_catalog(root, YAML), FakeLoader()
        policy, planner = ModelPolicy(memory=memory), MemoryPlanner(memory)
        models = ModelRegistry(catalog, loader, policy, planner=planner)
        try:
            await scenario(models, loader)
        finally:
            await models.aclose()

    asyncio.run(go())


def test_models_are_evicted_by_the_memory_that_they_need(root: Path) -> None:
    """The files are equally small; what differs is the context."""

    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        for name in ("small", "other"):
            (await models.acquire(name)).release()
        assert [get_state(models, name) for name in ("small", "other")] == ["ready", "ready"]
        (await models.acquire("wide")).release()
        assert [get_state(models, name) for name in ("small", "other")] == ["unloaded", "unloaded"]

    run(root, 470_000_000, scenario)


def test_a_model_waits_while_the_memory_is_in_use(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        with await models.acquire("small"), pytest.raises((Unavailable, ModelLoading)):
            await models.acquire("wide")
        (await models.acquire("wide")).release()

    run(root, 470_000_000, scenario)


def test_a_model_that_does_not_fit_is_not_loaded(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        with pytest.raises(
            ModelBroken, match=r"needs about .* 1 x 65536 tokens; 300 MB is the limit"
        ):
            await models.acquire("wide")
        assert loader.loads == []

    run(root, 300_000_000, scenario)


def test_lists_show_the_context_that_is_served_before_anything_is_loaded(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        info = {entry.id: entry.info for entry in models.list_models()}
        assert (info["small"].context, info["small"].trained_context) == (8192, 131072)
        assert (info["d"].context or 0) < 131072
        assert info["d"].trained_context == 131072
        assert all((item.memory or 0) <= 400_000_000 for item in info.values())
        assert loader.loads == []

    run(root, 400_000_000, scenario)


def test_a_draft_model_may_be_given_by_name(root: Path) -> None:
    async def scenario(models: ModelRegistry, loader: FakeLoader) -> None:
        (await models.acquire("drafted")).release()
        with pytest.raises(ModelBroken, match="no draft model 'nobody'"):
            await models.acquire("undrafted")

    run(root, 0, scenario)


@pytest.mark.parametrize(
    ("arguments", "context"),
    [
        (("--memory", "400MB"), r"\d+ of 131072"),
        (("--context", "4096"), "4096 of 131072"),
        (("--memory", "64GB"), "131072"),
        (("--context", "4k", "--slots", "2", "-ctk", "q8_0"), "4096 of 131072"),
    ],
)
def test_list_shows_both_contexts_and_the_memory(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], context: str
) -> None:
    result = run_command(capsys, "list", "--models-dir", str(root), *arguments)
    assert result.code == 0
    heading, *rows = result.out.splitlines()
    assert "CONTEXT" in heading
    assert "MEMORY" in heading
    assert len(rows) == 4
    for row in rows:
        assert re.search(rf" {context}  .*[kMG]B  .*[kMG]B", row)


def test_list_prints_both_contexts_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_command(capsys, "list", "--models-dir", str(root), "--json", "--memory", "400MB")
    for model in json.loads(result.out):
        assert model["context"] < model["trained_context"] == 131072
        assert model["memory"] <= 400_000_000
