"""The engine keeps the contract, on the fast path and through `AsyncLLM`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.testing import check_engine
from tests.support.vllm_model import make_vllm_engine

SKIPPED = {"embeds", "scores"}  # a model that generates does neither


@pytest.mark.parametrize("reads_core", [True, False])
def test_generating_engine_keeps_the_contract(adapter: Path, *, reads_core: bool) -> None:
    async def run() -> tuple[list[str], set[str]]:
        engine = make_vllm_engine(lora={"poet": str(adapter)})
        engine._load.settings["reads_core"] = reads_core
        await engine.start()
        lines = engine.last_lines
        results = await check_engine(engine, step_timeout=120)
        return lines, {result.name for result in results if result.outcome == "skipped"}

    lines, skipped = asyncio.run(run())
    way = "directly" if reads_core else "through AsyncLLM"
    assert any(f"outputs are read {way}" in line for line in lines)
    assert skipped == SKIPPED


def test_pooling_engine_embeds() -> None:
    async def run() -> tuple[int, list[list[float]]]:
        engine = make_vllm_engine(embeddings=True)
        await engine.start()
        try:
            ids = [
                await engine.tokenize(text, False) for text in ("A cat.", "A kitten.", "Tax law")
            ]
            return engine.capabilities.embeddings, await engine.embed(ids)
        finally:
            await engine.aclose()

    size, vectors = asyncio.run(run())
    assert size == 576
    assert [len(vector) for vector in vectors] == [size] * 3
