"""Embeddings: texts in one request against one at a time, with the whole server on two cores.

Two models embed the same texts: a fabricated encoder as large as the usual small embedding models
(six layers of 384), and the default model, which is a chat model. Vectors are compared, too. The
CPU time is that of the server and its child processes.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
from msgspec import Struct

from bench.measure import RunningPeer, compute_ratio, find_free_port, read_cpu_ns, run_server
from bench.report import BenchOptions, Table
from tests.support.pooling_models import MEAN, WORDS, EncoderShape, write_encoder

_client = httpx.Client(timeout=300)
ENCODER = EncoderShape(width=384, layers=6, heads=12, feed_forward=1536, context=512)


class TextKind(Struct, frozen=True):
    """How many texts are embedded, and how many words they have, which are one token each."""

    count: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.count} of {self.low} to {self.high}"


KINDS = (TextKind(64, 1, 6), TextKind(64, 5, 30), TextKind(16, 31, 100))


class Timing(Struct):
    """The seconds and the CPU seconds of each round."""

    wall: list[float]
    cpu: list[float]


def measure_embeddings(options: BenchOptions) -> Table:
    """(i) Many texts in one request, and one at a time."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = write_encoder(Path(folder) / "encoder.gguf", MEAN, ENCODER)
        for name, path in (("encoder, 384 x 6", str(encoder)), ("SmolLM2-135M", options.model)):
            rows += [[name, *row] for row in _measure_model(path, options.rounds)]
    return Table(
        "(i) Texts to embed: in one request, and one at a time",
        [
            *("model", "texts, tokens", "one at a time, ms", "in one request, ms"),
            *("times as fast", "times less CPU", "difference"),
        ],
        rows,
        [
            "The difference is the largest between two numbers of the same vector. Up to 63 tokens "
            "share a batch, in which the results stay the same; so longer texts gain nothing. A "
            "batch saves what a request and a step of the engine cost, whatever their length. "
            "It does not save arithmetic: llama.cpp multiplies the Q4_1 weights of the default "
            "model token by token (`ggml_vec_dot_q4_1_q8_1`, 60 % of the CPU time in `perf`), and "
            "computes the logits of all tokens for embeddings as well, a quarter of the arithmetic."
        ],
    )


def _measure_model(path: str, rounds: int) -> list[list[str]]:
    port = find_free_port()
    flags = ["--served-name", "bench", "--store", "sqlite://", "--threads", "2"]
    command = ["dragoman", "serve", path, "--port", str(port), *flags]
    with run_server("dragoman", command, port, is_pinned=False) as server:
        _embed(server, ["start"])  # which starts the server of embeddings
        return [[str(kind), *_compare(server, kind, rounds)] for kind in KINDS]


def _compare(server: RunningPeer, kind: TextKind, rounds: int) -> list[str]:
    draw = random.Random(1)
    texts = [
        " ".join(draw.choices(WORDS, k=draw.randint(kind.low, kind.high)))
        for _ in range(kind.count)
    ]
    alone, together = Timing([], []), Timing([], [])
    difference = 0.0
    for _ in range(rounds):
        one = [vectors[0] for vectors in _time_requests(server, [[text] for text in texts], alone)]
        [many] = _time_requests(server, [texts], together)
        difference = max(difference, *map(_compare_vectors, one, many))
    return [
        f"{1000 * median(alone.wall):.0f}",
        f"{1000 * median(together.wall):.0f}",
        str(compute_ratio(alone.wall, together.wall)),
        str(compute_ratio(alone.cpu, together.cpu)),
        f"{difference:.0e}",
    ]


def _time_requests(
    server: RunningPeer, requests: list[list[str]], timing: Timing
) -> list[list[list[float]]]:
    """Send one request after the other, and add the time that all of them took."""
    cpu, started = read_cpu_ns(server.pid), time.perf_counter()
    results = [_embed(server, texts) for texts in requests]
    timing.wall.append(time.perf_counter() - started)
    timing.cpu.append((read_cpu_ns(server.pid) - cpu) / 1e9)
    return results


def _compare_vectors(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _embed(server: RunningPeer, texts: list[str]) -> list[list[float]]:
    url = f"http://127.0.0.1:{server.port}/v1/embeddings"
    response = _client.post(url, json={"model": "bench", "input": texts})
    return [entry["embedding"] for entry in response.json()["data"]]
