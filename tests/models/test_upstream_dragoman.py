"""A Dragoman in front of another one: by token ids, with the same answers as without it."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from msgspec.structs import replace

from dragoman.engines.remote.probes import FORCED_TOKENS
from dragoman.testing import ScriptedEngine
from dragoman.testing.replies import Reply
from dragoman.types import Job
from tests.support.real_model import make_schema_fields, make_tool_fields
from tests.support.real_model import serve as serve_real
from tests.support.serving import RunningServer, parse_events, serve_scripted
from tests.support.upstream_servers import TEMPLATE, serve_upstream

SCRIPT = "Héllo 🦜 <b>there</b>"
CALL = '<tool_call>\n{"name": "make", "arguments": {"a": 3}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3}},
    "required": ["a"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Say it <|im_end|> now"}]


class Pair(NamedTuple):
    """The server with the engine, and the one in front of it."""

    back: RunningServer
    front: RunningServer
    engine: ScriptedEngine

    def post_both(self, path: str, body: dict[str, Any]) -> list[httpx.Response]:
        return [
            httpx.post(server.url + path, json={"model": "scripted"} | body, timeout=60)
            for server in (self.back, self.front)
        ]

    def ask_front(self, body: dict[str, Any]) -> dict[str, Any]:
        response = httpx.post(
            f"{self.front.url}/v1/chat/completions", json={"model": "scripted"} | body, timeout=60
        )
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    @property
    def last_job(self) -> Job:
        return self.engine.jobs[-1]


@contextmanager
def run_pair(directory: Path, engine: ScriptedEngine, **options: Any) -> Iterator[Pair]:
    with (
        serve_scripted(engine, chat_template=TEMPLATE) as back,
        serve_upstream(back.url, directory, **options) as front,
    ):
        yield Pair(back, front, engine)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    engine = ScriptedEngine(SCRIPT, tokens=True, context=4096, lora=("tall",))
    with run_pair(tmp_path_factory.mktemp("pair"), engine) as pair:
        yield pair


def strip(body: Any) -> Any:
    """Return an answer without what differs each time."""
    if isinstance(body, dict):
        names = ("id", "created", "system_fingerprint")
        return {name: strip(value) for name, value in body.items() if name not in names}
    return [strip(item) for item in body] if isinstance(body, list) else body


def test_everything_holds(pair: Pair) -> None:
    [card] = httpx.get(f"{pair.front.url}/v1/models").json()["data"]
    [own] = httpx.get(f"{pair.back.url}/v1/models").json()["data"]
    assert card["upstream"]["server"] == "Dragoman"
    assert card["upstream"]["api"] == "tokens"
    assert card["upstream"]["version"]
    for name in ("sampling_fields", "max_model_len", "max_logprobs", "lora"):
        assert card[name] == own[name]


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "several choices": ("/v1/chat/completions", {"messages": MESSAGES, "n": 3, "temperature": 0}),
    "logprobs": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3},
    ),
    "limit inside a character": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9}),
    "nothing": ("/v1/completions", {"prompt": "x", "max_tokens": 0}),
    "stop string": ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["there"]}),
    "token ids": (
        "/v1/completions",
        {"prompt": [72, 105], "return_token_ids": True, "logprobs": 1, "max_tokens": 50},
    ),
    "several prompts": ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "seed": 5}),
    "too long": ("/v1/completions", {"prompt": [65] * 5000}),
    "unknown adapter": ("/v1/completions", {"prompt": "x", "lora": "short"}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 50}),
    "tokens": ("/tokenize", {"content": "a<|im_end|>b", "parse_special": False}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_answers_are_those_of_the_other_server(pair: Pair, case: str) -> None:
    path, body = REQUESTS[case]
    direct, through = pair.post_both(path, body)
    assert (through.status_code, strip(through.json())) == (
        direct.status_code,
        strip(direct.json()),
    )


def test_streams_are_the_whole_answer(pair: Pair) -> None:
    path, body = REQUESTS["token ids"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    for response in pair.post_both(path, body):
        *events, usage = parse_events(response)
        choices = [event["choices"][0] for event in events]
        ids = [token for choice in choices for token in choice["token_ids"]]
        assert bytes(ids[:-1]).decode() == SCRIPT
        assert "".join(choice["text"] for choice in choices) == SCRIPT
        assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice]
        assert usage["usage"]["completion_tokens"] == len(SCRIPT.encode())
        for choice in choices:  # with the stop token, which has no logprob of its own
            assert len(choice["token_ids"]) - len(choice["logprobs"]["tokens"]) in (0, 1)


def test_a_job_arrives_as_it_was(pair: Pair) -> None:
    sampling = {
        "temperature": 0.3,
        "top_k": 7,
        "typical_p": 0.8,
        "repeat_last_n": 5,
        "repetition_penalty": 1.2,
        "seed": 11,
        "logit_bias": {"65": -3.5},
        "stop_token_ids": [66],
    }
    body = {"messages": MESSAGES, "n": 2, "lora": [{"name": "tall", "scale": 0.5}], **sampling}
    pair.post_both("/v1/chat/completions", body)
    through, direct = pair.engine.jobs[-1], pair.engine.jobs[-2]
    for name in ("prompt", "n", "lora", "logprobs", "cache_prompt", "grammar"):
        assert getattr(through, name) == getattr(direct, name), name
    for name in sampling:
        assert getattr(through.sampling, name) == getattr(direct.sampling, name), name


def test_schemas_and_calls_are_enforced(tmp_path: Path) -> None:
    script = [
        Reply(string.ascii_lowercase[-FORCED_TOKENS:], when="^A$", regex=True),  # the probe
        Reply(CALL, when="call it"),
        Reply('{"a": 3}'),
    ]
    engine = ScriptedEngine(script, tokens=True, context=4096, check_grammars=True)
    with run_pair(tmp_path, engine) as pair:
        [card] = httpx.get(f"{pair.front.url}/v1/models").json()["data"]
        assert "grammar" in card["capabilities"], card
        body = {"messages": MESSAGES} | make_schema_fields(SCHEMA)
        message = pair.ask_front(body)
        assert message["content"] == '{"a": 3}'
        assert pair.last_job.grammar is not None
        messages = [{"role": "user", "content": "call it"}]
        body = {"messages": messages} | make_tool_fields(SCHEMA, "required")
        [call] = pair.ask_front(body)["tool_calls"]
        assert call["function"] == {"name": "make", "arguments": '{"a": 3}'}
        assert pair.last_job.grammar is not None


def test_cached_prompts_of_keys_are_kept_apart(tmp_path: Path) -> None:
    engine = ScriptedEngine(SCRIPT, tokens=True, context=4096)
    engine.capabilities = replace(engine.capabilities, cache_scopes=True)
    with run_pair(tmp_path, engine, api_key=("one", "two")) as pair:
        scopes = []
        for key in ("one", "two", "one"):
            response = httpx.post(
                f"{pair.front.url}/v1/chat/completions",
                json={"model": "scripted", "messages": MESSAGES},
                headers={"authorization": f"Bearer {key}"},
            )
            assert response.status_code == 200, response.text
            scopes.append(pair.last_job.cache_scope)
        assert scopes[0] == scopes[2] != scopes[1]
        assert all(scopes)


def test_an_engine_without_logprobs_has_none_here_either(tmp_path: Path) -> None:
    engine = ScriptedEngine(SCRIPT, tokens=True, logprobs=-1, context=100)
    with run_pair(tmp_path, engine) as pair:
        body = {"messages": MESSAGES, "logprobs": True}
        direct, through = pair.post_both("/v1/chat/completions", body)
        assert through.status_code == direct.status_code == 400
        long = {"messages": [{"role": "user", "content": "x" * 200}]}
        direct, through = pair.post_both("/v1/chat/completions", long)
        assert through.json()["error"]["code"] == direct.json()["error"]["code"]
        assert "--context" not in through.text  # which cannot raise that of the other server


def test_a_model_without_ids_is_used_as_text_or_chat(tmp_path: Path) -> None:
    with run_pair(tmp_path, ScriptedEngine(SCRIPT)) as pair:
        [card] = httpx.get(f"{pair.front.url}/v1/models").json()["data"]
        assert card["upstream"]["server"] == "Dragoman"
        assert card["upstream"]["api"] == "chat"
        body = {"messages": MESSAGES}
        direct, through = pair.post_both("/v1/chat/completions", body)
        content = through.json()["choices"][0]["message"]["content"]
        assert content == direct.json()["choices"][0]["message"]["content"] == SCRIPT


@pytest.mark.real_model
def test_the_default_model_answers_alike(default_model: Path, tmp_path: Path) -> None:
    with (
        serve_real(default_model) as back,
        serve_upstream(back.url, tmp_path) as front,
    ):
        [card] = httpx.get(f"{front.url}/v1/models").json()["data"]
        assert card["upstream"]["api"] == "tokens"
        assert card["upstream"]["limitations"] == []
        text = {"messages": [{"role": "user", "content": "The sea 🌊 and 日本語:"}]}
        cases: list[dict[str, Any]] = [
            {"logprobs": True, "top_logprobs": 2, "max_tokens": 8},
            {"max_tokens": 12} | make_schema_fields(SCHEMA),
        ]
        for fields in cases:
            body = {"model": card["id"], "temperature": 0, "cache_prompt": False} | text | fields
            answers = [
                httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
                for server in (back, front)
            ]
            assert strip(answers[0]["choices"]) == strip(answers[1]["choices"])
            assert strip(answers[0]["usage"]) == strip(answers[1]["usage"])
