"""Requests with many inputs take turns with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dragoman.pipeline.pooling.slices import SLICE_INPUTS, SLICE_TOKENS, split_items
from dragoman.types import Capabilities, Job, Step
from dragoman.types.text_pair import TextPair
from tests.support.serving import RunningServer, poll_until, serve_scripted

MANY, FEW = "sk-many-5f3759df", "sk-few-9e3779b97f"


@pytest.mark.parametrize(
    ("sizes", "slices"),
    [
        ([], []),
        ([5], [1]),
        ([1] * SLICE_INPUTS, [SLICE_INPUTS]),
        ([1] * (SLICE_INPUTS + 1), [SLICE_INPUTS, 1]),
        ([SLICE_TOKENS, 1], [1, 1]),
        ([SLICE_TOKENS + 1, 1, 1], [1, 2]),
        ([SLICE_TOKENS // 2] * 3, [2, 1]),
    ],
)
def test_slices_have_so_many_inputs_and_tokens(sizes: list[int], slices: list[int]) -> None:
    parts = split_items(sizes, lambda size: size)
    assert [len(part) for part in parts] == slices
    assert [size for part in parts for size in part] == sizes


class SteppedScorer:
    """An engine with one slot; its first call waits until the test allows it."""

    capabilities = Capabilities(scores=True, generates=False, slots=1)

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.may_run = asyncio.Event()

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="never", finish="stop")

    async def score(self, pairs: list[TextPair]) -> list[float]:
        self.queries.append(pairs[0].query)
        await self.may_run.wait()
        return [0.5] * len(pairs)


def rerank(server: RunningServer, key: str, query: str, count: int) -> Any:
    return httpx.post(
        f"{server.url}/v1/rerank",
        json={"query": query, "documents": ["a"] * count},
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    ).json()


def test_a_request_with_many_documents_leaves_others_their_share() -> None:
    engine = SteppedScorer()
    with (
        serve_scripted(engine, api_key=(MANY, FEW)) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        many = threads.submit(rerank, server, MANY, "many", 2048)
        poll_until(lambda: engine.queries == ["many"])
        few = threads.submit(rerank, server, FEW, "few", 1)
        poll_until(lambda: server.get_gate().waiting == 1)
        server.loop.call_soon_threadsafe(engine.may_run.set)
        assert len(few.result(60)["results"]) == 1
        assert len(many.result(60)["results"]) == 2048
    assert engine.queries.index("few") == 1
    assert engine.queries.count("many") == 2048 // SLICE_INPUTS
