"""Models of other servers behind our own: scripted workers for ids, tables for text and chat."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import config, runtime
from dragoman.errors import DragomanError
from dragoman.http.server import make_app
from tests.support.certificates import Authority
from tests.support.real_model import request_answer, request_answers
from tests.support.serving import RunningServer, run_app
from tests.support.upstream_servers import (
    TEMPLATE,
    TableServer,
    list_models,
    make_text_frames,
    run_table,
    run_worker,
    serve_upstream,
    write_tokenizer,
)

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def make_body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}]} | fields


def make_format(*, strict: bool) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": SCHEMA, "strict": strict},
    }


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def get_card(server: RunningServer) -> dict[str, Any]:
    card: dict[str, Any] = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]
    return card


# Servers that take and return ids


@pytest.mark.parametrize("kind", ["llama-server", "vllm", "sglang"])
def test_serves_the_model_of_a_token_server(kind: str, tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    with (
        run_worker(kind, "It rains.", model="bytes") as worker,
        serve_upstream(worker.url, tmp_path, tokenizer=str(directory)) as server,
    ):
        whole = request_answer(server, make_body("bytes"))
        streamed = request_answer(server, make_body("bytes"), streamed=True)
        assert whole == streamed
        assert (whole.content, whole.finish) == ("It rains.", "stop")
        special_tokens, texts = 3, "user\nHi" + "\n" + "assistant\n"
        assert whole.usage["prompt_tokens"] == special_tokens + len(texts)
        card = get_card(server)
        assert (card["id"], card["context_length"]) == ("bytes", 4096)
        assert card["upstream"]["api"] == "tokens"
        assert card["upstream"]["server"].lower() == kind
        assert worker.url not in json.dumps(card)


def test_reads_tool_calls_in_native_markup(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    with (
        run_worker("vllm", CALL, model="bytes") as worker,
        serve_upstream(worker.url, tmp_path, tokenizer=str(directory)) as server,
    ):
        body = make_body("bytes", tools=[WEATHER])
        whole = request_answer(server, body)
        assert whole == request_answer(server, body, streamed=True)
        assert whole.calls == [("get_weather", '{"city": "Paris"}')]
        assert whole.finish == "tool_calls"


def test_a_server_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    with run_worker("vllm", model="bytes") as worker:
        worker.token_offset = 1
        with (
            pytest.raises(DragomanError, match=r"is not that of the model.*--tokenizer"),
            serve_upstream(worker.url, tmp_path, tokenizer=str(directory)),
        ):
            pass


def test_a_strict_request_is_rejected_without_grammars(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    with (
        run_worker("llama-server", "No JSON.", model="bytes") as worker,
        serve_upstream(worker.url, tmp_path, tokenizer=str(directory)) as server,
    ):
        strict = make_body("bytes", response_format=make_format(strict=True))
        answer = post(server, "/v1/chat/completions", strict)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "response_format.json_schema.schema"
        loose = make_body("bytes", response_format=make_format(strict=False))
        answer = post(server, "/v1/chat/completions", loose)
        assert answer.status_code == 200
        assert "is not enforced" in answer.headers["x-dragoman-warning"]
        assert "--upstream-grammars" in get_card(server)["upstream"]["limitations"][0]


def test_several_models_have_servers_of_their_own(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    with (
        run_worker("vllm", "first", model="one") as first,
        run_worker("sglang", "second", model="two") as second,
    ):
        entries = {
            "a": {"upstream": first.url, "tokenizer": "byte-model"},
            "b": {"upstream": second.url, "tokenizer": "byte-model"},
        }
        file = tmp_path / "dragoman.yaml"
        file.write_text(json.dumps({"models": entries}))
        options = {"config": str(file), "models_dir": str(tmp_path / "models")}
        settings = config.load({"store": "sqlite://", "port": 0, "log_level": "warning"} | options)
        models = runtime.build_models(settings, "a")
        with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as server:
            assert request_answer(server, make_body("a")).content == "first"
            assert request_answer(server, make_body("b")).content == "second"
            listed = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
            assert [card["upstream"]["model"] for card in listed] == ["one", "two"]
    assert directory.exists()


def test_a_server_that_is_down_is_asked_again(tmp_path: Path) -> None:
    with run_table({}) as gone:
        url = gone.url
    options = {"upstream": url, "upstream_model": "m", "models_dir": str(tmp_path)}
    settings = config.load({"store": "sqlite://", "log_level": "warning"} | options)
    with pytest.raises(runtime.StartupError, match="cannot be reached"):
        runtime.build_models(config.load({"upstream": url, "models_dir": str(tmp_path)}), "")
    assert runtime.build_models(settings, "").default_name == "m"  # it is asked when it is loaded


def test_options_lower_what_the_server_has(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "byte-model")
    options: dict[str, Any] = {"tokenizer": str(directory), "context": 1000, "slots": 1}
    with (
        run_worker("llama-server", model="bytes", slots=3) as worker,
        serve_upstream(worker.url, tmp_path, **options) as server,
    ):
        card = get_card(server)
        assert (card["context_length"], card["slots"]) == (1000, 1)
        long = make_body("bytes", messages=[{"role": "user", "content": "x" * 1000}])
        answer = post(server, "/v1/chat/completions", long)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_certificates_are_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("upstream")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    tokenizer = str(write_tokenizer(tmp_path / "byte-model"))
    with run_worker("vllm", "Hello.", model="bytes", tls=tls) as worker:
        with (
            pytest.raises(runtime.StartupError, match=r"is not trusted.*--upstream-ca"),
            serve_upstream(worker.url, tmp_path, tokenizer=tokenizer),
        ):
            pass
        ca_file = str(authority.file)
        with serve_upstream(
            worker.url, tmp_path, tokenizer=tokenizer, upstream_ca=ca_file
        ) as server:
            assert request_answer(server, make_body("bytes")).content == "Hello."


def test_keys_are_sent_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "upstream.key"
    file.write_text("topsecret\n")
    tokenizer = str(write_tokenizer(tmp_path / "byte-model"))
    with (
        run_worker("sglang", "Hello.", model="bytes", api_key="topsecret") as worker,
        serve_upstream(
            worker.url, tmp_path, tokenizer=tokenizer, upstream_key_file=str(file)
        ) as server,
    ):
        assert request_answer(server, make_body("bytes")).content == "Hello."
        assert "topsecret" not in httpx.get(f"{server.url}/v1/models", timeout=60).text
    assert "topsecret" not in caplog.text


@pytest.mark.parametrize("name", ["upstream_key_file", "upstream_ca"])
def test_missing_files_are_found_at_the_start(name: str, tmp_path: Path) -> None:
    options = {"upstream": "http://127.0.0.1:1", "upstream_model": "m", name: "/no/such/file"}
    settings = config.load({"models_dir": str(tmp_path)} | options)
    with pytest.raises(runtime.StartupError, match=f"there is no file '/no/such/file' .{name}"):
        runtime.build_models(settings, "")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"upstream": "http://h:1", "path": "a.gguf"}, "exclude each other"),
        ({"upstream": "h:1"}, "a URL that begins with http://"),
        ({"upstream": "http://h:1", "upstream_api": "other"}, "auto, tokens, text or chat"),
    ],
)
def test_mistakes_in_entries_are_found_at_the_start(
    entry: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(json.dumps({"m": entry}))
    with pytest.raises(runtime.StartupError, match=message):
        runtime.build_models(config.load({"models_dir": str(tmp_path)}), "m")


# Servers that take and return text


@pytest.fixture(scope="module")
def text_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A server of text completions whose template the operator names, and ours before it."""
    directory = tmp_path_factory.mktemp("text")
    template = directory / "template.jinja"
    template.write_text(TEMPLATE)
    routes = {
        "/v1/models": list_models("base", context_length=4096),
        "/v1/completions": make_text_frames("It ", "rains."),
    }
    with (
        run_table(routes) as upstream,
        serve_upstream(upstream.url, directory, chat_template=str(template)) as server,
    ):
        yield upstream, server


def test_chats_through_text_completions(text_server: tuple[TableServer, RunningServer]) -> None:
    upstream, server = text_server
    upstream.routes["/v1/completions"] = make_text_frames("It ", "rains.", tokens=5)
    upstream.requests.clear()
    whole = request_answer(server, make_body("base", max_tokens=9, temperature=0.5, seed=3))
    [sent] = upstream.list_bodies("/v1/completions")
    assert sent["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (sent["max_tokens"], sent["temperature"], sent["seed"]) == (9, 0.5, 3)
    assert whole == request_answer(server, make_body("base"), streamed=True)
    assert (whole.content, whole.finish) == ("It rains.", "stop")
    assert whole.usage["completion_tokens"] == 5
    assert whole.usage["prompt_tokens"] == 7
    assert upstream.list_bodies("/v1/completions")[-1]["max_tokens"] > 1000  # not 16


def test_text_has_calls_stops_and_choices(text_server: tuple[TableServer, RunningServer]) -> None:
    upstream, server = text_server
    upstream.routes["/v1/completions"] = make_text_frames(CALL[:20], CALL[20:])
    assert request_answer(server, make_body("base", tools=[WEATHER])).calls == [
        ("get_weather", '{"city": "Paris"}')
    ]
    upstream.routes["/v1/completions"] = lambda body: make_text_frames(f"seed {body['seed']} end")
    answers = request_answers(server, make_body("base", n=2, seed=5, stop=[" end"]))
    assert [answer.content for answer in answers] == ["seed 5", "seed 6"]
    raw = post(server, "/v1/completions", {"model": "base", "prompt": "Once", "seed": 1}).json()
    assert raw["choices"][0]["text"] == "seed 1 end"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": make_format(strict=True)}, "response_format.json_schema.schema"),
        ({"guided_regex": "[a-z]+"}, "guided_regex"),
        ({"logprobs": True}, "logprobs"),
        ({"top_k": 5}, "top_k"),
        ({"tools": [WEATHER | {"function": WEATHER["function"] | {"strict": True}}]}, None),
    ],
)
def test_text_rejects_what_it_cannot_guarantee(
    fields: dict[str, Any], param: str | None, text_server: tuple[TableServer, RunningServer]
) -> None:
    _, server = text_server
    answer = post(server, "/v1/chat/completions", make_body("base", **fields))
    assert answer.status_code == 400
    assert param is None or answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"response_format": make_format(strict=False)}, "response_format"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER]}, "Tool calls are not constrained"),
    ],
)
def test_text_warns_about_the_rest(
    fields: dict[str, Any], warning: str, text_server: tuple[TableServer, RunningServer]
) -> None:
    upstream, server = text_server
    upstream.routes["/v1/completions"] = make_text_frames("Hello.")
    answer = post(server, "/v1/chat/completions", make_body("base", **fields))
    assert answer.status_code == 200
    assert warning in answer.headers["x-dragoman-warning"]


def test_text_servers_are_named_as_such(text_server: tuple[TableServer, RunningServer]) -> None:
    upstream, server = text_server
    card = get_card(server)
    assert card["upstream"]["api"] == "text"
    assert any("cannot be enforced" in line for line in card["upstream"]["limitations"])
    assert "logprobs" not in card["capabilities"]
    assert upstream.url not in json.dumps(card)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((429, {"error": {"message": "busy"}}), 429),
        ((503, {"error": {"message": "busy"}}), 503),
        ((400, {"error": {"message": "maximum context length is 10 tokens"}}), 400),
        ((500, {"error": {"message": "bug"}}), 500),
    ],
)
def test_text_passes_errors_on(
    answer: Any, status: int, text_server: tuple[TableServer, RunningServer]
) -> None:
    upstream, server = text_server
    upstream.routes["/v1/completions"] = answer
    response = post(server, "/v1/chat/completions", make_body("base"))
    assert response.status_code == status
    assert "bug" not in response.text
