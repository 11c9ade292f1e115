"""Banned strings never occur in an answer, however its tokens are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from dragoman.types import BannedString
from tests.support.grammars import compile_spec
from tests.support.paths import TEMPLATES
from tests.support.real_model import MODEL, make_request, request_answer, serve
from tests.support.serving import RunningServer, make_chat, serve_scripted

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("Rome is a city.\nIt is old.", True),
        ("Pari s", True),
        ("It is Paris", False),
        ("PARIS", False),
        ("the Big City", True),
        ("the big city", False),
        ("a.b", False),
        ("axb", True),
        ("é😀", False),
        ("<think>Paris</think>No", False),
    ],
)
def test_which_texts_are_allowed(text: str, is_allowed: bool) -> None:
    strings = BannedString("paris", True), BannedString("big city"), BannedString("a.b")
    source = compile_spec(banned_strings=(*strings, BannedString("é😀")))
    assert match_grammar(source, text)[0] == is_allowed


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(**fields), timeout=60)


@pytest.fixture(scope="module")
def scripted() -> Iterator[RunningServer]:
    engine = ScriptedEngine("Hello there.", check_grammars=True)
    template = TEMPLATES / "thinker.jinja"
    with serve_scripted(engine, chat_template=template) as running:
        yield running


CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"regex": "a"}, "regex"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"ignore_eos": True, "max_tokens": 3}, "ignore_eos"),
]


@pytest.mark.parametrize(("fields", "other"), CONFLICTS)
@pytest.mark.parametrize("name", ["banned_strings", "bad_words"])
def test_what_cannot_be_combined(
    scripted: RunningServer, fields: dict[str, Any], other: str, name: str
) -> None:
    response = post(scripted, **fields, **{name: ["x"]})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] in (name, other)
    assert f"`{name}`" in error["message"]
    assert f"`{other}`" in error["message"]


def test_tools_that_may_be_called_are_not_constrained(scripted: RunningServer) -> None:
    response = post(scripted, banned_strings=["x"], tools=[TOOL])
    assert response.status_code == 200, response.text
    assert "`banned_strings` is enforced instead" in response.headers["x-dragoman-warning"]


def test_an_answer_with_a_banned_string_breaks_the_grammar(scripted: RunningServer) -> None:
    """The scripted engine fails if its script violates the grammar of its job."""
    assert post(scripted, banned_strings=["bye"]).status_code == 200
    assert post(scripted, bad_words=["hello"]).status_code == 200
    assert post(scripted, banned_strings=["hello"]).status_code == 500


def test_an_engine_without_grammars_rejects_them() -> None:
    with serve_scripted("Hello.") as server:
        response = post(server, bad_words=["x"])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "bad_words")


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=1024, slots=1) as running:
        yield running


FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "cache_prompt": False}


@pytest.mark.real_model
def test_the_default_model_avoids_them(server: RunningServer) -> None:
    """Ban parts of what it says by itself, which begin and end inside tokens."""
    body = make_request("Tell me about the sea.", 0, **FIELDS)
    plain = request_answer(server, body).content
    for banned in ([plain[1:3].upper()], [plain[3:12], plain[14:20]]):
        answer = request_answer(server, body | {"banned_strings": banned})
        assert answer.content
        assert [text for text in banned if text.lower() in answer.content.lower()] == []
    streamed = request_answer(server, body | {"banned_strings": banned}, streamed=True)
    assert streamed == answer


def complete(server: RunningServer, **fields: Any) -> str:
    body = {"model": MODEL, "prompt": "The capital of France is", **FIELDS, **fields}
    response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.real_model
def test_raw_completions_and_case(server: RunningServer) -> None:
    plain = complete(server)
    assert "Paris" in plain
    assert complete(server, bad_words=["paris"]) == plain  # exact
    assert "Paris" not in complete(server, bad_words=["Paris"])
    assert "paris" not in complete(server, banned_strings=["paris"]).lower()


@pytest.mark.real_model
def test_biases_by_text(server: RunningServer) -> None:
    """A text biases all of its tokens, as in llama-server."""
    for bias in ({" Paris": -100}, [[" Paris", False]]):
        assert " Paris" not in complete(server, logit_bias=bias)
    url = f"{server.url}/tokenize"
    tokens = httpx.post(url, json={"content": " Paris"}).json()["tokens"]
    assert " Paris" not in complete(server, banned_tokens=tokens)
    loud = complete(server, logit_bias={" Rome": 100})
    assert set(loud.split()) == {"Rome"}
