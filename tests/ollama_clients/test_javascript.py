"""The `ollama` package of npm against the default model: every call, streamed and whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_clients import run_node_client
from tests.support.real_model import MODEL, serve

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def results(default_model: Path) -> Any:
    client = Path(__file__).with_name("client.mjs")
    with serve(default_model, context=512) as server:
        return run_node_client(client, server.url, MODEL)


def test_stream_adds_up_to_the_whole_answer(results: Any) -> None:
    chat = "".join(line["message"]["content"] for line in results["chatLines"])
    assert chat == results["chat"]["message"]["content"] != ""
    text = "".join(line["response"] for line in results["generateLines"])
    assert text == results["generate"]["response"] != ""
    assert results["generateLines"][-1]["context"] == results["generate"]["context"]
    for answer in (results["chat"], results["chatLines"][-1], results["generate"]):
        assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "length", 12)


def test_answers_are_complete(results: Any) -> None:
    assert results["version"]["version"]
    assert "four" in results["raw"]["response"]
    assert json.loads(results["formatted"]["message"]["content"])["name"] in ("Rex", "Tom")
    assert results["tools"]["message"]["role"] == "assistant"
    first, second = results["embed"]["embeddings"]
    assert math.isclose(math.hypot(*first), 1, abs_tol=1e-5)
    assert first != second
    assert len(results["embeddings"]["embedding"]) == len(first)


def test_errors_are_raised(results: Any) -> None:
    for name in ("unknownModel", "unknownModelStreamed"):
        assert results[name]["status"] == 404
        assert "not found" in results[name]["text"]
    assert results["noThinking"]["status"] == 400
    assert "does not support thinking" in results["noThinking"]["text"]


def test_models_are_loaded_and_unloaded(results: Any) -> None:
    assert results["unloaded"]["done_reason"] == "unload"
    assert results["loaded"]["done_reason"] == "load"


def test_stream_can_be_aborted(results: Any) -> None:
    assert "abort" in results["aborted"]["text"].lower()
