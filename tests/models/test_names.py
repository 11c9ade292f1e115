"""Which model answers a request, and the name of it in the answer, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.hostile_samples import MESSAGES, SAMPLES
from tests.support.scripted_models import serve_models
from tests.support.serving import RunningServer, serve_scripted

# Every route that runs the model which its request names.
MANAGING = ("/admin/", "/api/show", "/api/pull", "/api/create", "/api/copy", "/api/delete")
PATHS = [
    path for path, body in SAMPLES.items() if "model" in body and not path.startswith(MANAGING)
]
EXTRA = {"/infill": {"input_prefix": "a"}}
# Those whose answers name it, and where.
NAMING = [
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
    *("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score"),
]


def send(server: RunningServer, path: str, model: Any = ..., **options: Any) -> httpx.Response:
    """Send the sample of a path; `...` leaves the model out."""
    body = {name: value for name, value in SAMPLES[path].items() if name != "model"}
    if model is not ...:
        body["model"] = model
    return httpx.post(f"{server.url}{path}", json=body, **options)


@pytest.fixture(scope="module")
def one() -> Iterator[RunningServer]:
    engine = ScriptedEngine("Hello.", tokens=True, context=2048, scores=True)
    with serve_scripted(engine, served_name=("alias",)) as server:
        yield server


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    keys: list[dict[str, Any]] = [{"name": "all", "key": "all"}]
    keys.append({"name": "one", "key": "one", "models": ["b"]})
    with serve_models(tmp_path_factory.mktemp("m"), ["a", "b"], key_entries=keys) as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", [..., None, "", " "])
def test_a_request_need_not_name_the_only_model(one: RunningServer, path: str, model: Any) -> None:
    answer = send(one, path, model)
    if path == "/infill":  # the scripted vocabulary has no tokens for it
        assert answer.json()["error"]["param"] == "input_suffix"
    else:
        assert answer.status_code == 200, answer.text
    if path in NAMING:
        assert answer.json()["model"] == "scripted"


@pytest.mark.parametrize("path", NAMING)
def test_an_answer_has_the_alias_that_was_requested(one: RunningServer, path: str) -> None:
    assert send(one, path, "alias").json()["model"] == "alias"


@pytest.mark.parametrize("path", PATHS)
def test_several_models_are_listed_if_none_is_named(several: RunningServer, path: str) -> None:
    headers = {"authorization": "Bearer all", "x-api-key": "all"}
    answer = send(several, path, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]  # Ollama's is a text
    assert "`model` is required" in message
    assert "`a`, `b`" in message
    assert isinstance(error, str) or error.get("param", "model") == "model"


def test_the_only_model_of_a_key_need_not_be_named(several: RunningServer) -> None:
    headers = {"authorization": "Bearer one"}
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        assert send(several, path, headers=headers).json()["model"] == "b"
    info = httpx.get(f"{several.url}/tokenizer_info", headers=headers)
    assert info.status_code == 200
    several_info = httpx.get(
        f"{several.url}/tokenizer_info", headers={"authorization": "Bearer all"}
    )
    assert several_info.status_code == 400
    chosen = httpx.get(
        f"{several.url}/tokenizer_info?model=a", headers={"authorization": "Bearer all"}
    )
    assert chosen.status_code == 200


def test_the_model_of_the_command_line_is_meant_beside_others(tmp_path: Path) -> None:
    with serve_models(tmp_path, ["a", "b"], named=["b"]) as server:
        assert send(server, "/v1/chat/completions").json()["model"] == "b"


def test_several_models_of_the_command_line_must_be_named(tmp_path: Path) -> None:
    with serve_models(tmp_path, ["a", "b"], named=["b", "a"]) as server:
        answer = send(server, "/v1/chat/completions")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("path", PATHS)
def test_any_model_accepts_and_repeats_every_name(tmp_path: Path, path: str) -> None:
    with serve_models(tmp_path, ["a", "b"], named=["b"], any_model=True) as server:
        for name in ("gpt-5.5", "org/Model:latest", "ünknown", "B", "a"):
            answer = send(server, path, name)
            if path == "/infill":
                continue
            assert answer.status_code == 200, answer.text
            if path in NAMING:
                assert answer.json()["model"] == name
        if path in NAMING:
            assert send(server, path).json()["model"] == "b"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_repeat_the_name_too(tmp_path: Path, path: str) -> None:
    with serve_models(tmp_path, ["a"], any_model=True) as server:
        body = SAMPLES[path] | {"model": "gpt-x", "stream": True}
        text = httpx.post(f"{server.url}{path}", json=body).text
        assert text.count('"model":"gpt-x"') == text.count("data: {")


def test_responses_of_several_rounds_keep_their_model(several: RunningServer) -> None:
    """A response that continues another one needs no name either, for a key with one model."""
    headers = {"authorization": "Bearer one"}
    first = httpx.post(f"{several.url}/v1/responses", json={"input": "a"}, headers=headers).json()
    body = {"input": "b", "previous_response_id": first["id"]}
    second = httpx.post(f"{several.url}/v1/responses", json=body, headers=headers).json()
    assert (first["model"], second["model"]) == ("b", "b")


def test_no_model_at_all_is_an_error_that_says_so(tmp_path: Path) -> None:
    with serve_models(tmp_path, []) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": MESSAGES})
        assert answer.status_code == 404
        assert "No models are installed" in answer.json()["error"]["message"]
