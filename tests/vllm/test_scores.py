"""A cross-encoder in vLLM reranks as the same weights do in llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.types.text_pair import TextPair
from tests.support.llama_engine import EngineRunner
from tests.support.pooling_models import (
    CLS,
    RANK,
    SEP,
    SPECIALS,
    WORDS,
    EncoderShape,
    write_cross_encoder,
    write_encoder,
)
from tests.support.serving import RunningServer
from tests.support.vllm_model import serve_vllm

QUERY = "what is the cat"
SHAPE = EncoderShape(width=128)  # vLLM's attention on the CPU needs heads of 32 at least
DOCUMENTS = ["the dog ran fast", "blue sky", "the cat sat on the mat", "a red apple tree"]


def post(server: RunningServer, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=fields, timeout=120)


def encode(text: str) -> list[int]:
    return [len(SPECIALS) + WORDS.index(word) for word in text.split()]


def compute_scores(path: Path) -> list[float]:
    """Return the scores of the same tokens in llama.cpp."""
    runner = EngineRunner(path=str(path), threads=1)
    try:
        pairs = [TextPair([CLS, *encode(QUERY), SEP, *encode(text), SEP]) for text in DOCUMENTS]
        return runner.run(runner.engine.score(pairs))
    finally:
        runner.close()


def test_both_engines_give_the_same_scores(tmp_path: Path) -> None:
    expected = compute_scores(write_encoder(tmp_path / "rank.gguf", RANK, SHAPE))
    folder = write_cross_encoder(tmp_path / "rank", SHAPE)
    with serve_vllm(folder, context=SHAPE.context) as server:
        answer = post(server, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
        assert answer.status_code == 200, answer.text
        scored = post(server, "/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()["data"]
        chat = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
        assert chat.status_code == 400
    assert [entry["score"] for entry in scored] == pytest.approx(expected, abs=1e-3)
    order = [result["index"] for result in answer.json()["results"]]
    assert order == sorted(range(len(DOCUMENTS)), key=lambda index: -expected[index])
