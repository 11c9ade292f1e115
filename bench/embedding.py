"""Embeddings: 64 texts in one request against one at a time, with the whole server on two cores.

Two models embed the same short texts: the default one, and a fabricated encoder of the size of the
usual small embedding models (six layers of 384), whose time is not spent on weights alone. Vectors
are compared, too.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx

from bench.measure import RunningPeer, compute_ratio, find_free_port, run_server
from bench.report import BenchOptions, Table
from tests.support.pooling_models import MEAN, WORDS, EncoderShape, write_encoder

TEXTS = 64
_client = httpx.Client(timeout=300)
ENCODER = EncoderShape(width=384, layers=6, heads=12, feed_forward=1536, context=512)


def measure_embeddings(options: BenchOptions) -> Table:
    """(i) Many texts in one request, and one at a time."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(TEXTS)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = write_encoder(Path(folder) / "encoder.gguf", MEAN, ENCODER)
        for name, path in (("encoder, 384 x 6", str(encoder)), ("SmolLM2-135M", options.model)):
            rows.append([name, *_compare(path, texts, options.rounds)])
    return Table(
        f"(i) {TEXTS} short texts to embed: in one request, and one at a time",
        ["model", "one at a time, ms", "in one request, ms", "times as fast", "difference"],
        rows,
        [
            "Texts have one to six words. The difference is the largest between two numbers of the "
            "same vector. Up to 63 tokens share a batch, in which the results stay the same."
        ],
    )


def _compare(path: str, texts: list[str], rounds: int) -> list[str]:
    alone: list[float] = []
    together: list[float] = []
    difference = 0.0
    port = find_free_port()
    flags = ["--served-name", "bench", "--store", "sqlite://", "--threads", "2"]
    command = ["dragoman", "serve", path, "--port", str(port), *flags]
    with run_server("dragoman", command, port, is_pinned=False) as server:
        _embed(server, texts[:1])  # which starts the server of embeddings
        for _ in range(rounds):
            started = time.perf_counter()
            one = [_embed(server, [text])[0] for text in texts]
            alone.append(time.perf_counter() - started)
            started = time.perf_counter()
            many = _embed(server, texts)
            together.append(time.perf_counter() - started)
            difference = max(difference, *map(_compare_vectors, one, many))
    ratio = compute_ratio(alone, together)
    return [
        f"{1000 * median(alone):.0f}",
        f"{1000 * median(together):.0f}",
        str(ratio),
        f"{difference:.0e}",
    ]


def _compare_vectors(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _embed(server: RunningPeer, texts: list[str]) -> list[list[float]]:
    url = f"http://127.0.0.1:{server.port}/v1/embeddings"
    response = _client.post(url, json={"model": "bench", "input": texts})
    return [entry["embedding"] for entry in response.json()["data"]]
