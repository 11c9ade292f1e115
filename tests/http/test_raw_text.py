"""Raw text: special tokens in prompts of completions and in `/tokenize`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer, make_chat, serve_scripted

TEXT = "<|im_start|>user\nhi<|im_end|>"
START, END = 257, 258


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine("answer", tokens=True, context=2048)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine) as running:
        yield running


def post(server: RunningServer, path: str, **fields: Any) -> Any:
    response = httpx.post(f"{server.url}{path}", json=fields, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def complete(server: RunningServer, **fields: Any) -> Any:
    return post(server, "/v1/completions", model="scripted", **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [START, *b"user\nhi", END]),
        ({"parse_special": True}, [START, *b"user\nhi", END]),
        ({"parse_special": False}, [*TEXT.encode()]),
    ],
)
def test_special_tokens_in_raw_text(
    server: RunningServer, engine: ScriptedEngine, fields: dict[str, Any], expected: list[int]
) -> None:
    complete(server, prompt=TEXT, **fields)
    assert engine.jobs[-1].prompt == expected
    complete(server, prompt=["x", TEXT], **fields)
    assert engine.jobs[-1].prompt == expected
    assert post(server, "/tokenize", prompt=TEXT, **fields)["tokens"] == expected
    assert post(server, "/tokenize", content=TEXT, **fields)["tokens"] == expected


def test_text_of_a_chat_stays_text(server: RunningServer, engine: ScriptedEngine) -> None:
    post(server, "/v1/chat/completions", **make_chat(TEXT))
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert not {START, END} & set(prompt)
    rendered = post(server, "/tokenize", messages=[{"role": "user", "content": TEXT}])
    assert not {START, END} & set(rendered["tokens"])


def test_echo_returns_the_prompt_as_it_was_sent(server: RunningServer) -> None:
    choice = complete(server, prompt=TEXT, echo=True)["choices"][0]
    assert choice["text"] == TEXT + "answer"


def test_detokenizing_shows_special_tokens(server: RunningServer) -> None:
    tokens = post(server, "/tokenize", prompt=TEXT)["tokens"]
    assert post(server, "/detokenize", tokens=tokens) == {"prompt": TEXT, "content": TEXT}


def test_pieces_in_llama_servers_form(server: RunningServer) -> None:
    answer = post(server, "/tokenize", content="é<|im_end|>", with_pieces=True)
    assert answer["tokens"] == [
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
        {"id": END, "piece": "<|im_end|>"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "content": "b"}, "prompt"),
        ({"prompt": "a", "add_special": True, "add_special_tokens": False}, "add_special"),
        ({"content": 1}, "content"),
    ],
)
def test_invalid_requests(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = httpx.post(f"{server.url}/tokenize", json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("field", ["parse_special", "add_special_tokens"])
def test_an_engine_that_takes_text_reads_it_itself(field: str) -> None:
    engine = ScriptedEngine("answer")
    with serve_scripted(engine) as server:
        complete(server, prompt=TEXT, **{field: True})
        assert engine.jobs[-1].prompt == TEXT
        body = {"model": "scripted", "prompt": TEXT, field: False}
        response = httpx.post(f"{server.url}/v1/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.real_model
def test_the_default_model_follows_its_chat_format(default_model: Path) -> None:
    """A chat that is written out by hand is the same prompt as a rendered one."""
    turn = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    with serve(default_model, context=512, slots=1) as server:
        system = {"role": "system", "content": "Be short."}
        messages = [system, {"role": "user", "content": "Say hi."}]
        rendered = post(server, "/tokenize", messages=messages)
        raw = f"<|im_start|>system\nBe short.<|im_end|>\n{turn}"
        assert post(server, "/tokenize", prompt=raw)["tokens"] == rendered["tokens"]
        assert post(server, "/detokenize", tokens=rendered["tokens"])["content"] == raw
        fields = {"model": MODEL, "temperature": 0, "max_tokens": 24, "cache_prompt": False}
        chat = post(server, "/v1/chat/completions", messages=messages, **fields)
        text = post(server, "/v1/completions", prompt=raw, **fields)
        assert text["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert text["choices"][0]["finish_reason"] == chat["choices"][0]["finish_reason"]


# llama-server's other routes


def test_texts_and_token_ids_can_be_mixed(server: RunningServer) -> None:
    mixed = post(server, "/tokenize", content=["a", END, 98, "", TEXT])
    assert mixed["tokens"] == [97, END, 98, START, *b"user\nhi", END]
    assert post(server, "/tokenize", content=[])["tokens"] == []
    bad = httpx.post(f"{server.url}/tokenize", json={"content": [10**6]})
    assert bad.status_code == 400


CONVERSATION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def chat_server() -> Iterator[RunningServer]:
    engine = ScriptedEngine("answer", tokens=True, context=2048)
    with serve_scripted(engine, chat_template=TEMPLATE) as running:
        yield running


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "scripted"},
        {"tools": [TOOL]},
        {"add_generation_prompt": False},
        {"max_tokens": 5, "stream": True, "temperature": 0.5},  # a whole request for a completion
    ],
)
def test_a_template_is_applied_and_its_tokens_are_counted(
    chat_server: RunningServer, fields: dict[str, Any]
) -> None:
    body = CONVERSATION | fields
    answer = post(chat_server, "/apply-template", **body)
    tools = "f\n" if "tools" in fields else ""
    end = "" if fields.get("add_generation_prompt") is False else "<|im_start|>assistant\n"
    start = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert answer == {"prompt": start + tools + end}
    tokens = post(chat_server, "/tokenize", content=answer["prompt"])["tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        counted = post(chat_server, path, **body)
        assert counted == {"object": "response.input_tokens", "input_tokens": len(tokens)}
    generated = post(chat_server, "/v1/chat/completions", **body | {"stream": False})
    assert generated["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [({}, "messages"), ({"messages": []}, "messages"), ({"messages": [{}]}, "messages[0].role")],
)
def test_invalid_conversations_are_named(
    chat_server: RunningServer, path: str, fields: dict[str, Any], param: str
) -> None:
    response = httpx.post(f"{chat_server.url}{path}", json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
