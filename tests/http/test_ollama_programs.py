"""Requests to Ollama's API as well-known programs send them, and what each needs of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.ollama_api import add_lines, check_error, read_lines
from tests.support.scripted_chats import PARIS, THINKER, TOOLS
from tests.support.serving import RunningServer, serve_scripted

NAME = "scripted:latest"
USER = {"role": "user", "content": "Weather in Paris?"}
CALL = {"name": "weather", "arguments": {"city": "Paris", "days": 2}}
RESULT = "It rains."

# Open WebUI sends every option that has a value in its settings, off or not.
OPEN_WEBUI_OPTIONS = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
    "tfs_z": 1,
    "num_ctx": 2048,
    "num_batch": 512,
    "num_keep": 24,
    "num_predict": 128,
    "num_gpu": 256,
    "num_thread": 2,
    "use_mmap": True,
    "use_mlock": False,
    "seed": 0,
    "stop": ["never"],
}
CHATS: dict[str, dict[str, Any]] = {
    "Open WebUI": {
        "messages": [USER],
        "options": OPEN_WEBUI_OPTIONS,
        "stream": True,
        "keep_alive": "5m",
        "metadata": {"chat_id": "1"},
    },
    "Open WebUI, after a call": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": CALL}],
            },
            {"role": "tool", "content": RESULT, "tool_call_id": "call_1"},
        ],
        "tools": TOOLS,
        "stream": True,
    },
    "Zed": {
        "messages": [{"role": "system", "content": "You help."}, USER],
        "stream": True,
        "keep_alive": -1,
        "options": {"num_ctx": 16384, "stop": [], "temperature": 1.0, "top_p": None},
        "tools": [],
        "think": None,
    },
    "Home Assistant, after a call": {
        "messages": [
            {"role": "system", "content": "You control a house."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}]},
            {"role": "tool", "content": f'"{RESULT}"'},
        ],
        "tools": TOOLS,
        "stream": True,
        "options": {"num_ctx": 8192},
        "keep_alive": "3600s",
        "think": False,
    },
    "Continue": {
        "messages": [USER],
        "raw": None,
        "options": {"num_predict": 100, "stop": ["\n\n\n"], "num_ctx": 8096, "mirostat": None},
        "keep_alive": 1800,
        "stream": True,
    },
    "LangChain": {
        "messages": [{"role": "user", "content": "Hi", "images": []}],
        "stream": True,
        "options": {"temperature": 0.2, "tfs_z": None, "num_gpu": None},
        "keep_alive": None,
        "format": "",
        "think": None,
        "tools": [],
    },
    "LangChain4j": {
        "messages": [{"role": "system", "content": "You help."}, USER],
        "options": {"temperature": 0.1, "top_k": 40, "num_predict": 512, "min_p": 0.0},
        "format": None,
        "stream": False,
        "tools": TOOLS,
        "keep_alive": 300,
    },
    "LangChain4j, after a call": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [{"function": CALL}], "additional_fields": None},
            {"role": "tool", "content": RESULT},
        ],
        "tools": TOOLS,
        "stream": False,
    },
    "Spring AI": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "", "function": {**CALL, "index": 0}}],
            },
            {"role": "tool", "content": RESULT, "tool_name": "weather"},
        ],
        "stream": True,
        "keep_alive": "5m",
        "tools": TOOLS,
        "options": {"num_ctx": 4096, "use_numa": False, "low_vram": False, "f16_kv": True},
        "think": True,
    },
    "Cline": {
        "messages": [
            {"role": "system", "content": "You are Cline."},
            {"role": "user", "content": "<task>Write code.</task>", "images": None},
        ],
        "stream": True,
        "options": {"num_ctx": 32768},
        "tools": None,
    },
    "n8n": {
        "messages": [{"role": "user", "content": "Hi", "images": []}],
        "stream": True,
        "keep_alive": "5m",
        "options": {
            "temperature": 0.7,
            "embedding_only": False,
            "penalize_newline": True,
            "vocab_only": False,
            "numa": False,
            "logits_all": None,
            "main_gpu": 0,
            "num_gpu": -1,
            "num_thread": 0,
        },
        "tools": [],
    },
    "Raycast": {
        "messages": [{"role": "user", "content": "Hi", "images": None}],
        "options": {},
        "keep_alive": "5m",
    },
    "AnythingLLM": {
        "messages": [
            {"role": "system", "content": "Context: []"},
            {"role": "user", "content": "Hi"},
        ],
        "stream": True,
        "keep_alive": 300,
        "options": {"temperature": 0.7, "use_mlock": True, "num_ctx": 8192},
    },
    "LibreChat": {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "options": {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0},
        "format": None,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    script = [
        Reply(f"<think>\nHm.\n</think>\n\n{PARIS}", when="Weather in Paris?"),
        Reply("<think>\nHm.\n</think>\n\nTake an umbrella."),
    ]
    engine = ScriptedEngine(script, tokens=True, context=16384, grammars=True)
    with serve_scripted(engine, chat_template=THINKER, recall=False) as running:
        yield running


@pytest.mark.parametrize("program", CHATS)
def test_chats_of_programs_are_answered(server: RunningServer, program: str) -> None:
    body = {"model": NAME, **CHATS[program]}
    response = httpx.post(f"{server.url}/api/chat", json=body, timeout=60)
    lines = [response.json()] if body.get("stream") is False else read_lines(response)
    answer = add_lines(lines)
    has_result = RESULT in response.request.content.decode()
    is_asked = any(message["content"] == USER["content"] for message in body["messages"])
    if has_result or not is_asked:
        assert answer["content"].strip() == "Take an umbrella."
    elif body.get("tools"):
        assert [call["function"]["name"] for call in answer["tool_calls"]] == ["weather"]
    assert "thinking" not in answer or answer["thinking"].strip() == "Hm."
    assert ("thinking" in answer) == (body.get("think") is not False)
    last = lines[-1]
    # Open WebUI shows tokens per second, and divides by these
    assert last["eval_count"] / last["eval_duration"] > 0
    assert last["prompt_eval_count"] / last["prompt_eval_duration"] > 0
    # Zed's types: these are never null or missing
    for line in lines:
        assert isinstance(line["created_at"], str)
        assert isinstance(line["message"]["content"], str)


def test_program_learns_what_had_no_effect(server: RunningServer) -> None:
    body = {"model": NAME, **CHATS["Open WebUI"], "stream": False}
    response = httpx.post(f"{server.url}/api/chat", json=body, timeout=60)
    warnings = " ".join(response.headers.get_list("x-dragoman-warning"))
    for name in ("num_ctx", "num_batch", "num_keep", "num_gpu", "num_thread", "use_mmap"):
        assert f"`options.{name}`" in warnings
    for name in ("temperature", "mirostat", "tfs_z", "seed"):
        assert f"`options.{name}`" not in warnings


def test_home_assistant_asks_for_structured_data() -> None:
    script = '<think>\nHm.\n</think>\n\n{"city": "Paris"}'
    engine = ScriptedEngine(script, tokens=True, context=16384, check_grammars=True)
    body = {
        "model": NAME,
        "messages": [USER],
        "format": {"type": "object", "properties": {"city": {"type": "string"}}},
        "stream": True,
        "keep_alive": -1,
    }
    with serve_scripted(engine, chat_template=THINKER, recall=False) as server:
        lines = read_lines(httpx.post(f"{server.url}/api/chat", json=body, timeout=60))
    assert json.loads(add_lines(lines)["content"]) == {"city": "Paris"}
    assert engine.jobs[-1].grammar is not None


def test_open_webui_asks_for_titles_and_embeddings(server: RunningServer) -> None:
    title = {"model": NAME, "messages": [{"role": "user", "content": "A title."}], "stream": False}
    answer = httpx.post(f"{server.url}/api/chat", json=title, timeout=60).json()
    assert "Take an umbrella." in answer["message"]["content"]
    texts = {"model": NAME, "input": ["one", "two"], "truncate": True}
    vectors = httpx.post(f"{server.url}/api/embed", json=texts, timeout=60).json()
    assert len(vectors["embeddings"]) == 2
    prompt = {"model": NAME, "prompt": "one"}
    vector = httpx.post(f"{server.url}/api/embeddings", json=prompt, timeout=60).json()
    assert vector["embedding"] == pytest.approx(vectors["embeddings"][0])


def test_open_webui_unloads_a_model_with_an_empty_prompt(server: RunningServer) -> None:
    """An engine of the caller's own stays; tests/clients unloads the default model this way."""
    body = {"model": NAME, "keep_alive": 0, "prompt": ""}
    check_error(httpx.post(f"{server.url}/api/generate", json=body, timeout=60), 400)


def test_codex_and_copilot_check_the_version(server: RunningServer) -> None:
    version = httpx.get(f"{server.url}/api/version").json()["version"]
    major, minor, patch = map(int, version.split("."))
    assert (major, minor, patch) >= (0, 13, 4)
