"""Ollama's API: each fact about its wire format that clients depend on."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.ollama_api import (
    USER,
    add_lines,
    ask_both_ways,
    check_end,
    check_error,
    check_time,
    read_lines,
    send,
)
from tests.support.scripted_chats import PARIS_CALL, TEXTS, THINKER, TOOLS, make_replies
from tests.support.serving import RunningServer, poll_until, serve_scripted

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgAAIAAAUAAXpeqz8AAAAASUVORK5CYII="
)
GENERATING = ("chat", "generate")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A model that does not reason."""
    with serve_scripted(ScriptedEngine("Hello there!", tokens=True, context=4096)) as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    script = [*make_replies(chunks=3), Reply("Fine.")]
    return ScriptedEngine(script, tokens=True, context=4096)


@pytest.fixture(scope="module")
def thinker(engine: ScriptedEngine) -> Iterator[RunningServer]:
    """A model that reasons and calls tools."""
    with serve_scripted(engine, chat_template=THINKER, recall=False) as running:
        yield running


def say(name: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"say {name}."}]


def get_prompt(engine: ScriptedEngine) -> str:
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert engine.tokenizer is not None
    return engine.tokenizer.decode(prompt)


# The server


@pytest.mark.parametrize("accept", [None, "*/*"])
def test_root_says_that_ollama_is_running(server: RunningServer, accept: str | None) -> None:
    headers = {} if accept is None else {"accept": accept}
    assert httpx.head(server.url, headers=headers).status_code == 200
    response = httpx.get(server.url, headers=headers)
    assert response.text == "Ollama is running"
    assert response.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("accept", ["application/json", "text/html,application/xhtml+xml,*/*"])
def test_root_still_names_our_documentation(server: RunningServer, accept: str) -> None:
    response = httpx.get(server.url, headers={"accept": accept})
    assert response.json() == {"object": "dragoman", "docs": "/docs"}


def test_version_is_one_that_clients_accept(server: RunningServer) -> None:
    response = httpx.get(f"{server.url}/api/version")
    numbers = [int(part) for part in response.json()["version"].split(".")]
    assert numbers >= [0, 13, 4]  # Codex needs this one for the Responses API
    assert httpx.head(f"{server.url}/api/version").status_code == 200


def test_wrong_method_gets_405(server: RunningServer) -> None:
    check_error(httpx.get(f"{server.url}/api/chat"), 405)
    check_error(httpx.post(f"{server.url}/api/version", json={}), 405)


def test_unknown_path_gets_404(server: RunningServer) -> None:
    check_error(httpx.get(f"{server.url}/api/me"), 404)
    check_error(httpx.post(f"{server.url}/api/experimental/web_search", json={}), 404)


def test_body_may_be_sent_as_curl_sends_it(server: RunningServer) -> None:
    """`curl -d` without a header calls JSON a form; a page of a browser may not."""
    url, body = f"{server.url}/api/generate", b'{"prompt": "hi", "stream": false}'
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert httpx.post(url, content=body, headers=form).json()["response"] == "Hello there!"
    page = form | {"origin": server.url}
    check_error(httpx.post(url, content=body, headers=page), 415)


# Streams


@pytest.mark.parametrize("path", GENERATING)
def test_answer_is_streamed_unless_the_client_turns_it_off(
    server: RunningServer, path: str
) -> None:
    for fields in ({}, {"stream": None}, {"stream": True}):
        lines = read_lines(send(server, path, **fields))
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        assert add_lines(lines)["content"] == "Hello there!"
    whole = send(server, path, stream=False)
    assert whole.headers["content-type"] == "application/json"
    check_end(whole.json())
    check_time(whole.json())
    assert add_lines([whole.json()])["content"] == "Hello there!"


def test_chat_and_generate_put_the_text_in_different_fields(server: RunningServer) -> None:
    first, *_ = read_lines(send(server, "chat"))
    assert set(first["message"]) == {"role", "content"}
    assert first["message"]["content"].startswith("Hello")
    first, *_ = read_lines(send(server, "generate"))
    assert first["response"].startswith("Hello")
    assert "message" not in first


@pytest.mark.parametrize("name", ["Scripted", "scripted:latest", "SCRIPTED:LATEST"])
def test_name_of_the_model_is_echoed_as_it_was_sent(server: RunningServer, name: str) -> None:
    """Case is ignored, and the tag `latest` may be left out."""
    for path in GENERATING:
        lines = read_lines(send(server, path, model=name))
        assert {line["model"] for line in lines} == {name}


def test_every_line_is_sent_in_a_chunk_of_its_own() -> None:
    """A client in JavaScript decodes each chunk by itself, so no character may be cut."""
    text = "雨 und Straße 😀, nochmal 雨"
    with serve_scripted(ScriptedEngine(Reply(text, chunks=1))) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps({"messages": USER}).encode()
        connection.request("POST", "/api/chat", body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.fp is not None
        chunks = []
        while size := int(response.fp.readline(), 16):
            chunks.append(response.fp.read(size))
            response.fp.readline()
        connection.close()
    assert len(chunks) > 1
    lines = [json.loads(line) for chunk in chunks for line in chunk.decode().splitlines()]
    assert all(chunk.endswith(b"\n") and chunk.strip() for chunk in chunks)
    assert add_lines(lines)["content"] == text


def test_error_in_a_stream_is_its_last_line() -> None:
    engine = ScriptedEngine(Reply("Hello there!", raise_at=1, error="ValueError"))
    with serve_scripted(engine) as server:
        for path in GENERATING:
            *deltas, last = read_lines(send(server, path))
            assert deltas
            assert list(last) == ["error"]
            assert isinstance(last["error"], str)


def test_silence_adds_nothing_to_a_stream() -> None:
    """Clients parse every line, so there is none that says nothing."""
    engine = ScriptedEngine(Reply("Hello there!", pace=0.1))
    with serve_scripted(engine, patience=0.01, ping=0.01) as server:
        lines = read_lines(send(server, "chat"))
    assert add_lines(lines)["content"] == "Hello there!"
    assert all(line["message"]["content"] for line in lines[:-1])


# Errors


@pytest.mark.parametrize("path", [*GENERATING, "embed", "embeddings"])
def test_unknown_model_gets_404(server: RunningServer, path: str) -> None:
    fields = {"embed": {"input": "a"}, "embeddings": {"prompt": "a"}}.get(path, {})
    text = check_error(send(server, path, model="nobody:7b", **fields), 404)
    assert text.startswith("model 'nobody:7b' not found")


@pytest.mark.parametrize("path", [*GENERATING, "embed", "embeddings"])
def test_missing_body_gets_400(server: RunningServer, path: str) -> None:
    response = httpx.post(f"{server.url}/api/{path}")
    assert check_error(response, 400) == "missing request body"
    invalid = httpx.post(f"{server.url}/api/{path}", content=b"{")
    assert "JSON" in check_error(invalid, 400)


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"format": "xml"}, "`format`"),
    ("generate", {"format": 5}, "`format`"),
    ("chat", {"think": "x"}, "`think`"),
    ("chat", {"top_logprobs": 21}, "`top_logprobs`"),
    ("chat", {"options": {"temperature": "hot"}}, "`options.temperature`"),
    ("chat", {"options": {"num_predict": "many"}}, "`options.num_predict`"),
    ("chat", {"options": {"stop": 5}}, "`options.stop`"),
    ("chat", {"options": {"temperature": 3}}, "`options.temperature`"),
    ("chat", {"options": {"typical_p": 0.5, "typ_p": 0.6}}, "`typ_p`"),
    ("chat", {"messages": [{"role": "king", "content": "a"}]}, "`messages[0].role`"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    ("chat", {"messages": [{"role": "user", "content": "a", "images": ["?"]}]}, "images[0]"),
    ("chat", {"tools": [{"type": "function"}]}, "`tools[0].function`"),
    ("chat", {"_debug_render_only": True}, "`_debug_render_only`"),
    ("generate", {"raw": True, "system": "a"}, "`system`"),
    ("generate", {"raw": True, "template": "a"}, "`template`"),
    ("generate", {"raw": True, "context": [1]}, "`context`"),
    ("generate", {"raw": True, "images": [PIXEL]}, "`images`"),
    ("generate", {"suffix": "b"}, "`suffix`"),
    ("generate", {"images": [PIXEL]}, "`images`"),
    ("generate", {"images": [f"{PIXEL[:8]}\r\n{PIXEL[8:]}\n"]}, "`images` input"),
    ("generate", {"images": ["\n"]}, "`images[0]`"),
    ("generate", {"images": ["UklGRiQAAABXQVZFZm10"]}, "`audio` input"),
    ("generate", {"images": [f"data:image/png;base64,{PIXEL}"]}, "`images[0]`"),
    ("generate", {"images": ["not base64"]}, "`images[0]`"),
    ("generate", {"context": [10**9]}, "`context`"),
    ("embed", {"input": 5}, "`input`"),
    ("embed", {"input": ["a", ""]}, "`input[1]`"),
    ("embed", {"input": "a", "dimensions": 10_000}, "`dimensions`"),
]


@pytest.mark.parametrize(("path", "fields", "named"), INVALID, ids=str)
def test_invalid_field_is_named(
    server: RunningServer, path: str, fields: dict[str, Any], named: str
) -> None:
    assert named in check_error(send(server, path, **fields), 400)


def test_arguments_of_a_call_must_be_an_object(server: RunningServer) -> None:
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}, *USER]
    text = check_error(send(server, "chat", messages=messages), 400)
    assert "`messages[0].tool_calls[0].function.arguments` must be an object" in text


# Loading


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", [True, False])
def test_request_without_a_prompt_loads_the_model(
    server: RunningServer, path: str, stream: bool
) -> None:
    empty: dict[str, Any] = {"messages": []} if path == "chat" else {"prompt": ""}
    response = send(server, path, stream=stream, **empty)
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert (answer["done"], answer["done_reason"], answer["model"]) == (True, "load", "scripted")
    assert (answer["message"]["content"] if path == "chat" else answer["response"]) == ""
    check_time(answer)


DURATIONS = [0, 5, 1.5, "5m", "1h30m", -1, "-1m", "0", "300ms", "1.5h", None]
NO_DURATIONS = ["-1", "300", "1d", {}, True, "", "5 m", "m", [], "1e3s", "5m5"]


@pytest.mark.parametrize("path", [*GENERATING, "embed"])
def test_keep_alive_is_a_number_or_a_duration(server: RunningServer, path: str) -> None:
    fields = {"input": "a"} if path == "embed" else {}
    for value in DURATIONS:
        assert send(server, path, keep_alive=value, **fields).status_code == 200, value
    for value in NO_DURATIONS:
        text = check_error(send(server, path, keep_alive=value, **fields), 400)
        assert "`keep_alive`" in text


def test_only_admins_change_how_long_a_model_stays_loaded() -> None:
    with serve_scripted(api_key="user", admin_key="boss") as server:
        url = f"{server.url}/api/generate"
        user, boss = ({"authorization": f"Bearer {key}"} for key in ("user", "boss"))
        body: dict[str, Any] = {"prompt": "hi", "keep_alive": "5m", "stream": False}
        ordinary = httpx.post(url, json=body, headers=user)
        assert "`keep_alive` has no effect" in ordinary.headers["x-dragoman-warning"]
        unload = {"prompt": "", "keep_alive": 0}
        assert "admin key" in check_error(httpx.post(url, json=unload, headers=user), 403)
        check_error(httpx.post(url, json=body), 401)
        allowed = httpx.post(url, json=unload, headers=boss)
        assert "cannot be unloaded" in check_error(allowed, 400)  # it is the caller's engine


def test_refusals_of_keys_are_strings() -> None:
    keys = [
        {"name": "ann", "key": "ann-key", "limits": {"requests_per_minute": 1}},
        {"name": "bob", "key": "bob-key", "routes": ["chat"]},
        {"name": "eve", "key": "eve-key", "models": ["other"]},
    ]
    with serve_scripted(key_entries=keys) as server:
        url = f"{server.url}/api/chat"

        def ask(key: str | None) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return httpx.post(url, json={"model": "scripted", "messages": USER}, headers=headers)

        check_error(ask(None), 401)
        check_error(ask("wrong"), 401)
        check_error(ask("bob-key"), 403)
        assert check_error(ask("eve-key"), 404).startswith("model 'scripted' not found")
        assert ask("ann-key").status_code == 200
        refusal = ask("ann-key")
        assert "per minute" in check_error(refusal, 429)
        assert int(refusal.headers["retry-after"]) > 0


def test_refusals_before_a_route_are_strings() -> None:
    """Also those of the layers that know nothing of Ollama's API."""
    engine = ScriptedEngine(Reply("Hello!", hang_at=0), tokens=True, context=4096, slots=1)
    body = json.dumps({"model": "scripted", "messages": USER})
    with serve_scripted(engine, queue=1) as server:
        gate = server.get_gate()
        head = f"POST /api/chat HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address) as first, socket.create_connection(address) as next_:
            for connection in (first, next_):
                connection.sendall((head + body).encode())
            poll_until(lambda: gate.waiting == 1)
            full = httpx.post(f"{server.url}/api/chat", content=body)
            check_error(full, 429)
            assert int(full.headers["retry-after"]) > 0
        host = httpx.post(f"{server.url}/api/chat", content=body, headers={"host": "evil.example"})
        assert "evil.example" in check_error(host, 403)
        check_error(httpx.post(f"{server.url}/api/push", content=body), 404)


# Options


def test_options_become_sampling_fields(thinker: RunningServer, engine: ScriptedEngine) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 40.0,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 1,
        "repeat_penalty": 1.0,
        "repeat_last_n": 32,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "seed": 7,
        "num_predict": 5,
        "stop": None,
    }
    response = send(thinker, "chat", options=options, stream=False)
    assert response.status_code == 200, response.text
    sampling = engine.jobs[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 40, 0.9)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 7, 5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
    assert sampling.repeat_last_n == 32


IGNORED = {
    "num_ctx": 2048,
    "num_keep": 4,
    "num_gpu": -1,
    "num_thread": 0,
    "use_mmap": True,
    "tfs_z": 0.5,
    "penalize_newline": True,
    "no_such_option": {"a": 1},
}


@pytest.mark.parametrize("name", IGNORED)
def test_option_without_effect_is_reported(server: RunningServer, name: str) -> None:
    response = send(server, "chat", options={name: IGNORED[name]}, stream=False)
    assert response.status_code == 200
    assert f"`options.{name}`" in response.headers["x-dragoman-warning"]


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"seed": -1}, "seed", None),  # a random one
        ({"seed": 0}, "seed", 0),
        ({"repeat_last_n": 0}, "repeat_last_n", 0),
        ({"repeat_last_n": -1}, "repeat_last_n", -1),  # the whole context
    ],
)
def test_special_values_of_options(
    thinker: RunningServer,
    engine: ScriptedEngine,
    options: dict[str, float],
    field: str,
    value: Any,
) -> None:
    options = options | {"repeat_penalty": 1.1}
    assert send(thinker, "chat", options=options, stream=False).status_code == 200
    assert getattr(engine.jobs[-1].sampling, field) == value


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(("value", "is_json"), [("json", True), ("", False), (None, False)])
def test_format_json_is_a_grammar_and_an_empty_one_is_none(
    value: str | None, is_json: bool, path: str
) -> None:
    engine = ScriptedEngine('{"city": "Oslo"}', tokens=True, context=4096, check_grammars=True)
    with serve_scripted(engine) as server:
        answer = ask_both_ways(server, path, format=value)
        assert json.loads(answer["content"]) == {"city": "Oslo"}
        assert (engine.jobs[-1].grammar is not None) == is_json


def test_null_option_is_not_set(server: RunningServer) -> None:
    options = dict.fromkeys(("temperature", "num_ctx", "tfs_z", "stop", "mirostat"))
    response = send(server, "chat", options=options, stream=False)
    assert response.status_code == 200
    assert "x-dragoman-warning" not in response.headers


@pytest.mark.parametrize(("limit", "reason"), [(1, "length"), (-1, "stop"), (-2, "stop")])
def test_num_predict_limits_the_answer(server: RunningServer, limit: int, reason: str) -> None:
    for path in GENERATING:
        answer = ask_both_ways(server, path, options={"num_predict": limit})
        assert answer["done_reason"] == reason
        assert (answer["eval_count"] == 1) == (limit == 1)


def test_num_predict_0_only_reads_the_prompt(server: RunningServer) -> None:
    answer = ask_both_ways(server, "chat", options={"num_predict": 0})
    assert (answer["content"], answer["eval_count"]) == ("", 0)
    assert answer["prompt_eval_count"] > 0


def test_stop_strings_end_the_answer_and_are_not_sent(server: RunningServer) -> None:
    for path in GENERATING:
        for stop in ([" there"], " there"):
            answer = ask_both_ways(server, path, options={"stop": stop})
            assert (answer["content"], answer["done_reason"]) == ("Hello", "stop")


def test_logprobs_come_with_their_text(server: RunningServer) -> None:
    lines = read_lines(send(server, "chat", logprobs=True, top_logprobs=2))
    with_text = [line for line in lines if line["message"]["content"]]
    for line in with_text:
        tokens = line["logprobs"]
        assert "".join(entry["token"] for entry in tokens) == line["message"]["content"]
        for entry in tokens:
            assert entry["logprob"] <= 0
            assert bytes(entry["bytes"]).decode() == entry["token"]
            assert len(entry["top_logprobs"]) <= 2
    answer = ask_both_ways(server, "generate", logprobs=True)
    assert "".join(entry["token"] for entry in answer["logprobs"]) == "Hello there!"
    alone = send(server, "chat", top_logprobs=2, stream=False)
    assert "`top_logprobs` has no effect" in alone.headers["x-dragoman-warning"]


def test_long_chat_is_truncated_unless_the_client_turns_it_off(
    thinker: RunningServer, engine: ScriptedEngine
) -> None:
    exchange = [
        {"role": "user", "content": "first " * 500},
        {"role": "assistant", "content": "second " * 500},
    ]
    system = {"role": "system", "content": "Be brief."}
    messages = [system, *exchange * 2, {"role": "user", "content": "The last one."}]
    response = send(thinker, "chat", messages=messages, stream=False)
    assert response.status_code == 200, response.text
    assert "`truncate`" in response.headers["x-dragoman-warning"]
    prompt = get_prompt(engine)
    assert "Be brief." in prompt
    assert "The last one." in prompt
    assert "first" not in prompt
    check_error(send(thinker, "chat", messages=messages, truncate=False), 400)


# Reasoning


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("think", [None, True, "low", "medium", "high", "max"])
def test_reasoning_is_apart_from_the_text(
    thinker: RunningServer, path: str, think: bool | str | None
) -> None:
    asked: dict[str, Any] = (
        {"messages": say("reasoning")} if path == "chat" else {"prompt": "say reasoning."}
    )
    answer = ask_both_ways(thinker, path, think=think, **asked)
    assert answer["thinking"].strip() == "Is it 雨 there?"
    assert answer["content"].strip() == "It is."


def test_reasoning_that_is_turned_off_is_not_sent(thinker: RunningServer) -> None:
    response = send(thinker, "chat", messages=say("reasoning"), think=False)
    assert "thinking" not in response.text
    assert add_lines(read_lines(response))["content"].strip() == "It is."


def test_model_that_does_not_reason_is_named(server: RunningServer) -> None:
    for think in (True, "low"):
        text = check_error(send(server, "chat", think=think), 400)
        assert text.startswith('"scripted" does not support thinking')
    for no_think in (False, None):
        response = send(server, "chat", think=no_think, stream=False)
        assert response.status_code == 200
        assert "x-dragoman-warning" not in response.headers


def test_reasoning_is_on_unless_it_is_turned_off(
    thinker: RunningServer, engine: ScriptedEngine
) -> None:
    """Where the template has a switch, `think` sets it; its default is on."""
    prompts = {}
    for think in (None, True, False):
        assert send(thinker, "chat", messages=say("plain"), think=think).status_code == 200
        prompts[think] = get_prompt(engine)
    assert prompts[None] == prompts[True] != prompts[False]


# Tools


def test_calls_have_arguments_as_objects(thinker: RunningServer) -> None:
    answer = ask_both_ways(thinker, "chat", messages=say("parallel"), tools=TOOLS)
    functions = [call["function"] for call in answer["tool_calls"]]
    assert [function["index"] for function in functions] == [0, 1, 2]
    assert (functions[0]["name"], functions[0]["arguments"]) == PARIS_CALL
    assert list(functions[0]["arguments"]) == ["city", "days"]
    assert functions[1] == {"index": 1, "name": "now", "arguments": {}}
    assert answer["done_reason"] == "stop"


def test_every_call_has_an_id_of_its_own(thinker: RunningServer) -> None:
    response = send(thinker, "chat", messages=say("parallel"), tools=TOOLS)
    lines = read_lines(response)
    calls = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
    assert [len(line) for line in calls] == [1, 1, 1]  # each is sent whole, as soon as it ends
    ids = {call["id"] for [call] in calls}
    assert len(ids) == 3
    assert all(re.fullmatch("call_[a-z0-9]+", name) for name in ids)


def test_call_that_is_cut_off_still_has_an_object(thinker: RunningServer) -> None:
    for limit in range(1, 24):
        answer = ask_both_ways(
            thinker,
            "chat",
            messages=say("call"),
            tools=TOOLS,
            options={"num_predict": limit},
        )
        for call in answer.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], dict)


CALLS: list[dict[str, Any]] = [
    {"function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}},
    {"function": {"index": 1, "name": "now", "arguments": {}}},
]
RESULTS: dict[str, list[dict[str, Any]]] = {
    "by id": [
        {"role": "tool", "content": "noon", "tool_call_id": "b"},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
    ],
    "by name": [
        {"role": "tool", "content": "noon", "tool_name": "now"},
        {"role": "tool", "content": "rain", "tool_name": "weather"},
    ],
    "by an id that no call has": [
        {"role": "tool", "content": "noon", "tool_call_id": "b", "tool_name": "now"},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
    ],
    "by the earlier name": [
        {"role": "tool", "content": "noon", "name": "now"},
        {"role": "tool", "content": "rain", "name": "weather"},
    ],
    "in order": [{"role": "tool", "content": "rain"}, {"role": "tool", "content": "noon"}],
}


@pytest.mark.parametrize("how", RESULTS)
def test_results_find_their_calls(how: str, thinker: RunningServer, engine: ScriptedEngine) -> None:
    """Clients name the call, its tool, or neither; Open WebUI adds ids and indexes to the calls."""
    calls = CALLS
    if how == "by id":
        pairs = zip(CALLS, "ab", strict=True)
        calls = [{**call, "id": name, "index": 0, "type": "function"} for call, name in pairs]
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *RESULTS[how],
        {"role": "User", "content": "And then?"},
    ]
    response = send(thinker, "chat", messages=messages, tools=TOOLS, stream=False)
    assert response.status_code == 200, response.text
    prompt = get_prompt(engine)
    assert prompt.index('"Rome"') < prompt.index("rain") < prompt.index("noon")  # as the calls


@pytest.mark.parametrize(
    ("result", "path"),
    [
        ({"tool_name": "weather"}, "`messages[1]`"),
        ({}, "`messages[1]`"),
        ({"tool_call_id": "a"}, "`messages[1].tool_call_id`"),
    ],
)
def test_result_that_answers_no_call_is_rejected(
    result: dict[str, str], path: str, thinker: RunningServer
) -> None:
    messages = [*USER, {"role": "tool", "content": "rain", **result}]
    assert path in check_error(send(thinker, "chat", messages=messages, stream=False), 400)


def test_answer_continues_a_message_of_the_assistant(
    thinker: RunningServer, engine: ScriptedEngine
) -> None:
    messages = [*USER, {"role": "assistant", "content": "Once upon"}]
    assert send(thinker, "chat", messages=messages, think=False).status_code == 200
    assert get_prompt(engine).endswith("Once upon")
    text = check_error(send(thinker, "chat", messages=messages, format="json"), 400)
    assert "`format`" in text


# Generate


def test_system_prompt_and_prompt_are_rendered(
    thinker: RunningServer, engine: ScriptedEngine
) -> None:
    fields: dict[str, Any] = {"think": False, "stream": False}
    answer = send(thinker, "generate", prompt="say plain.", system="Be brief.", **fields)
    assert answer.json()["response"] == TEXTS["plain"]
    generated = get_prompt(engine)
    messages = [{"role": "system", "content": "Be brief."}, *say("plain")]
    send(thinker, "chat", messages=messages, **fields)
    assert get_prompt(engine) == generated


def test_raw_prompt_is_not_rendered(thinker: RunningServer, engine: ScriptedEngine) -> None:
    response = send(thinker, "generate", prompt="say plain.", raw=True, stream=False)
    assert get_prompt(engine) == "say plain."
    assert "context" not in response.json()
    with_think = send(thinker, "generate", prompt="a", raw=True, think=True, stream=False)
    assert "`think` has no effect" in with_think.headers["x-dragoman-warning"]


def test_suffix_is_filled_in_before(engine: ScriptedEngine) -> None:
    markup = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    coder = ScriptedEngine("middle()", tokens=True, markup=markup)
    with serve_scripted(coder) as server:
        for prompt in ("def f():", ""):
            answer = ask_both_ways(server, "generate", prompt=prompt, suffix="return x")
            assert answer["content"] == "middle()"
            expected = f"<|fim_prefix|>{prompt}<|fim_suffix|>return x<|fim_middle|>"
            assert get_prompt(coder) == expected


def test_context_continues_an_exchange(thinker: RunningServer, engine: ScriptedEngine) -> None:
    first = send(thinker, "generate", prompt="say plain.", stream=False).json()
    context = first["context"]
    assert engine.tokenizer is not None
    assert engine.jobs[-1].prompt == context[: first["prompt_eval_count"]]
    assert TEXTS["plain"] in engine.tokenizer.decode(context)
    *_, last = read_lines(send(thinker, "generate", prompt="say plain."))
    assert last["context"] == context
    second = send(thinker, "generate", prompt="And more.", context=context, stream=False).json()
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert prompt[: len(context)] == context
    assert get_prompt(engine).count("And more.") == 1
    assert second["context"][: len(prompt)] == prompt
    assert second["prompt_eval_count"] == len(prompt)


def test_context_that_is_too_long_is_rejected(thinker: RunningServer) -> None:
    check_error(send(thinker, "generate", context=[5] * 5000), 400)


# Embeddings


def test_embeddings_have_unit_length(server: RunningServer) -> None:
    for texts, count in (("a", 1), (["a"], 1), (["a", "b", "a"], 3)):
        answer = send(server, "embed", input=texts).json()
        assert answer["model"] == "scripted"
        assert len(answer["embeddings"]) == count
        for vector in answer["embeddings"]:
            assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-6)
        assert answer["prompt_eval_count"] == count
        assert answer["total_duration"] >= answer["load_duration"] > 0
    short = send(server, "embed", input="a", dimensions=4).json()["embeddings"][0]
    assert len(short) == 4
    assert math.isclose(math.hypot(*short), 1, abs_tol=1e-6)


@pytest.mark.parametrize("empty", [[], "", None])
def test_embedding_nothing_loads_the_model(server: RunningServer, empty: Any) -> None:
    assert send(server, "embed", input=empty).json()["embeddings"] == []
    assert send(server, "embeddings", prompt="").json() == {"embedding": []}


@pytest.mark.parametrize("text", ["a", ""])
def test_embeddings_name_the_default_model(server: RunningServer, text: str) -> None:
    assert send(server, "embed", model="", input=text).json()["model"] == "scripted"


def test_older_route_embeds_one_text(server: RunningServer) -> None:
    vector = send(server, "embeddings", prompt="a").json()["embedding"]
    same = httpx.post(f"{server.url}/v1/embeddings", json={"model": "scripted", "input": "a"})
    assert vector == pytest.approx(same.json()["data"][0]["embedding"])


def test_long_text_is_cut_unless_the_client_turns_it_off(server: RunningServer) -> None:
    long = "word " * 2000
    answer = send(server, "embed", input=[long, "a"])
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["embeddings"]) == 2
    assert answer.json()["prompt_eval_count"] <= 4096
    check_error(send(server, "embed", input=long, truncate=False), 400)
    assert len(send(server, "embeddings", prompt=long).json()["embedding"]) > 0


def test_options_have_no_effect_on_embeddings(server: RunningServer) -> None:
    for text in ("a", ""):
        response = send(server, "embed", input=text, options={"num_ctx": 512})
        assert "`options` has no effect" in response.headers["x-dragoman-warning"]
    assert "x-dragoman-warning" not in send(server, "embed", input="a", options={}).headers
