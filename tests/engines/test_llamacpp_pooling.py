"""Embeddings and scores of the native engine: right vectors, whatever shares their batch."""

from __future__ import annotations

import asyncio
import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.engines.llamacpp.gguf import read_header
from dragoman.engines.llamacpp.pooling.batches import MAX_INPUTS, SHARED_TOKENS, InputBatches
from dragoman.engines.llamacpp.pooling.head import PoolingHead, read_head
from dragoman.engines.llamacpp.pooling.server import decode_vectors
from dragoman.errors import BadRequest, ContextOverflow, EngineDown, EngineFailed, Unsupported
from dragoman.types import Adapter, Job
from dragoman.types.text_pair import TextPair
from tests.support.llama_engine import EngineRunner, get_error
from tests.support.pooling_models import (
    CLS,
    CLS_POOLING,
    LAST,
    MEAN,
    RANK,
    SEP,
    EncoderShape,
    write_encoder,
)

WIDTH = EncoderShape().width


@pytest.fixture(scope="module", params=[MEAN, CLS_POOLING, LAST], ids=["mean", "cls", "last"])
def embedder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineRunner]:
    path = write_encoder(tmp_path_factory.mktemp("model") / "embed.gguf", request.param)
    runner = EngineRunner(path=str(path), threads=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRunner]:
    path = write_encoder(tmp_path_factory.mktemp("model") / "rank.gguf", RANK)
    runner = EngineRunner(path=str(path), threads=1)
    yield runner
    runner.close()


def draw_inputs(count: int) -> list[list[int]]:
    """Draw inputs of many lengths, the longest of which fill a batch alone."""
    draw = random.Random(3)
    lengths = [draw.choice([1, 2, 3, 5, 8, 13, 30, SHARED_TOKENS, 64, 100]) for _ in range(count)]
    return [[CLS, *(draw.randrange(5, 60) for _ in range(length)), SEP] for length in lengths]


def test_vectors_are_the_same_alone_and_with_others(embedder: EngineRunner) -> None:
    inputs = draw_inputs(64)
    together = embedder.run(embedder.engine.embed(inputs))
    for ids, vector in zip(inputs, together, strict=True):
        (alone,) = embedder.run(embedder.engine.embed([ids]))
        assert len(vector) == WIDTH
        assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5)
        assert max(abs(a - b) for a, b in zip(vector, alone, strict=True)) < 1e-5


def test_calls_at_the_same_time_get_their_own_vectors(embedder: EngineRunner) -> None:
    inputs = draw_inputs(24)

    async def embed_all() -> list[list[list[float]]]:
        calls = [embedder.engine.embed(inputs[start : start + 4]) for start in range(0, 24, 4)]
        return await asyncio.gather(*calls)

    expected = embedder.run(embedder.engine.embed(inputs))
    vectors = [vector for call in embedder.run(embed_all()) for vector in call]
    for vector, other in zip(expected, vectors, strict=True):
        assert max(abs(a - b) for a, b in zip(vector, other, strict=True)) < 1e-5


def test_scores_are_the_same_alone_and_with_others(ranker: EngineRunner) -> None:
    pairs = [TextPair([*first, *second]) for first in draw_inputs(3) for second in draw_inputs(4)]
    pairs = [pair for pair in pairs if len(pair.ids) <= EncoderShape().context]
    together = ranker.run(ranker.engine.score(pairs))
    alone = [ranker.run(ranker.engine.score([pair]))[0] for pair in pairs]
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(0 < score < 1 for score in together)
    assert len(set(together)) > 1


def test_capabilities_say_what_the_model_is_for(
    embedder: EngineRunner, ranker: EngineRunner
) -> None:
    embeds, ranks = embedder.engine.capabilities, ranker.engine.capabilities
    assert (embeds.generates, embeds.embeddings, embeds.scores) == (False, WIDTH, False)
    assert (ranks.generates, ranks.embeddings, ranks.scores) == (False, 0, True)
    assert embeds.embedding_context == EncoderShape().context


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([TextPair([])], BadRequest),
        ([TextPair([10_000])], BadRequest),
        ([TextPair([-1])], BadRequest),
        ([TextPair([5] * 129)], ContextOverflow),
    ],
)
def test_invalid_pairs_are_rejected(
    pairs: list[TextPair], error: type[Exception], ranker: EngineRunner
) -> None:
    assert isinstance(ranker.run(get_error(ranker.engine.score(pairs))), error)
    assert ranker.run(ranker.engine.score([])) == []


def test_what_a_model_is_not_for_is_rejected(embedder: EngineRunner, ranker: EngineRunner) -> None:
    job = Job(id="1", prompt=[CLS, 5, SEP])
    engine = embedder.engine
    for work in (
        engine.admit(job),
        ranker.engine.admit(job),
        engine.score([TextPair([5])]),
        engine.embed([[5]], [Adapter("a")]),
        ranker.engine.embed([[5]]),
    ):
        assert isinstance(embedder.run(get_error(work)), Unsupported)


@pytest.mark.parametrize(
    ("head", "vector", "score"),
    [
        (PoolingHead(RANK), [0.0, 7.0], 0.5),
        (PoolingHead(RANK), [800.0, 7.0], 1.0),
        (PoolingHead(RANK), [-800.0], 0.0),
        (PoolingHead(RANK, outputs=2), [1.0, 1.0, 9.0], 0.5),
        (PoolingHead(RANK, outputs=2, positive=1), [0.0, 800.0], 1.0),
        (PoolingHead(RANK, outputs=2, is_normalized=True), [0.2, 0.8], 0.2),
        (PoolingHead(RANK, outputs=2, positive=1, is_normalized=True), [0.2, 0.8], 0.8),
    ],
)
def test_scores_are_between_0_and_1(head: PoolingHead, vector: list[float], score: float) -> None:
    assert head.compute_score(vector) == pytest.approx(score)


@pytest.mark.parametrize(
    ("pooling", "shape", "expected"),
    [
        (MEAN, EncoderShape(), (False, True, False)),
        (RANK, EncoderShape(), (False, False, True)),
        (RANK, EncoderShape(outputs=2, labels=("no", "yes")), (False, False, True)),
        (RANK, EncoderShape(outputs=5), (False, False, False)),
    ],
)
def test_heads_are_read_from_files(
    pooling: int, shape: EncoderShape, expected: tuple[bool, ...], tmp_path: Path
) -> None:
    head = read_head(read_header(write_encoder(tmp_path / "model.gguf", pooling, shape)))
    assert (head.generates, head.embeds, head.ranks) == expected
    assert head.positive == (1 if shape.labels else 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_the_values_that_a_head_computes_must_be_numbers(bad: float) -> None:
    body = make_native_vectors({1: [1.0, bad], 0: [2.5, 3.0]})
    assert decode_vectors(body, 1) == [[2.5], [1.0]]
    whole = make_native_vectors({1: [1.0, 4.0], 0: [2.5, 3.0]})
    assert decode_vectors(whole, None) == [[2.5, 3.0], [1.0, 4.0]]
    for count in (2, None):
        with pytest.raises(EngineFailed):
            decode_vectors(body, count)


def make_native_vectors(vectors: dict[int, list[float]]) -> bytes:
    """Return vectors by their index, as the native server sends them."""
    data = [
        {"embedding": struct.pack(f"<{len(vector)}f", *vector), "index": index}
        for index, vector in vectors.items()
    ]
    return msgspec.json.encode({"data": data})


# batches


class BatchRecorder:
    """Computes batches as a test allows it, and records them."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self.sizes: list[list[int]] = []
        self.cancelled = 0
        self.error = error  # of batches with several inputs, or with a long one
        self.may_run, self.has_started = asyncio.Event(), asyncio.Event()
        if not waits:
            self.may_run.set()

    async def compute(self, inputs: list[list[int]]) -> list[list[float]]:
        self.sizes.append([len(ids) for ids in inputs])
        self.has_started.set()
        try:
            await self.may_run.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None and (len(inputs) > 1 or len(inputs[0]) > 9):
            raise self.error
        return [[float(ids[0])] for ids in inputs]


def make_inputs(*lengths: int) -> list[list[int]]:
    return [[number] * length for number, length in enumerate(lengths, 1)]


def run_async(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


def test_inputs_share_batches_up_to_a_number_of_tokens() -> None:
    async def run() -> None:
        recorder = BatchRecorder()
        batches = InputBatches(recorder.compute, 4, 10)
        vectors = await batches.run(make_inputs(4, 6, 1, 12, 3, 1, 1, 1, 1))
        assert vectors == [[float(number)] for number in range(1, 10)]
        assert recorder.sizes == [[4, 6], [1], [12], [3, 1, 1, 1], [1]]
        await batches.aclose()

    run_async(run())


def test_calls_take_turns_within_a_batch() -> None:
    async def run() -> None:
        recorder = BatchRecorder(waits=True)
        batches = InputBatches(recorder.compute, MAX_INPUTS, 10)
        many = asyncio.create_task(batches.run(make_inputs(*[5] * 8)))
        await recorder.has_started.wait()  # with inputs of the first call only
        few = asyncio.create_task(batches.run(make_inputs(1)))
        await asyncio.sleep(0)
        recorder.may_run.set()
        assert await few == [[1.0]]
        assert len(recorder.sizes) <= 3
        assert not many.done()
        assert len(await many) == 8
        await batches.aclose()

    run_async(run())


def test_cancelling_skips_the_rest_and_leaves_others_alone() -> None:
    async def run() -> None:
        recorder = BatchRecorder(waits=True)
        batches = InputBatches(recorder.compute, 2, 10)
        first = asyncio.create_task(batches.run(make_inputs(5, 5, 5, 5)))
        await recorder.has_started.wait()
        second = asyncio.create_task(batches.run(make_inputs(7)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        recorder.may_run.set()
        assert await second == [[1.0]]
        assert recorder.cancelled == 1  # nobody waited for the first batch any more
        assert recorder.sizes == [[5, 5], [7]]
        await batches.aclose()

    run_async(run())


def test_a_batch_that_fails_is_computed_one_by_one() -> None:
    async def run() -> None:
        recorder = BatchRecorder(EngineFailed("no"))
        batches = InputBatches(recorder.compute, 4, 10)
        good = asyncio.create_task(batches.run(make_inputs(1, 2)))
        bad = asyncio.create_task(batches.run(make_inputs(3, 10)))
        results = await asyncio.gather(good, bad, return_exceptions=True)
        assert results[0] == [[1.0], [2.0]]
        assert isinstance(results[1], EngineFailed)
        await batches.aclose()

    run_async(run())


def test_closing_fails_what_waits() -> None:
    async def run() -> None:
        recorder = BatchRecorder(waits=True)
        batches = InputBatches(recorder.compute, 1, 10)
        waiting = asyncio.create_task(batches.run(make_inputs(1, 2)))
        await recorder.has_started.wait()
        await batches.aclose()
        for work in (waiting, batches.run(make_inputs(1))):
            with pytest.raises(EngineDown):
                await work

    run_async(run())
