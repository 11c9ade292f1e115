"""`dragoman serve DIR` through the `openai` client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.support.real_model import request_answer
from tests.support.serving import RunningServer
from tests.support.vllm_model import NAME, get_model, write_adapter

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(client: OpenAI, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": NAME,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 24,
    }
    return client.chat.completions.create(**defaults | fields)


def test_chat_whole_and_streamed_are_equal(client: OpenAI) -> None:
    whole = ask(client)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_greedy_choices_are_equal_and_seeded_ones_repeat(client: OpenAI) -> None:
    greedy = ask(client, n=3)
    assert len({choice.message.content for choice in greedy.choices}) == 1
    assert greedy.usage.completion_tokens == 3 * ask(client).usage.completion_tokens
    story = [{"role": "user", "content": "Make up a word."}]
    runs = [
        [choice.message.content for choice in answer.choices]
        for answer in (ask(client, messages=story, n=3, temperature=1, seed=5) for _ in range(2))
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_logprobs(client: OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=6)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.top_logprobs[0].token == token.token  # greedy
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1.001


def test_echo_reports_the_logprobs_of_the_prompt(client: OpenAI) -> None:
    answer: Any = client.completions.create(
        model=NAME, prompt="Paris is in France", echo=True, logprobs=1, max_tokens=0
    )
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "Paris is in France"
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_a_required_tool_is_called(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    answer = ask(client, tools=[tool], tool_choice="required", max_tokens=200)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_a_schema_is_enforced(client: OpenAI) -> None:
    schema = {"name": "weather", "schema": WEATHER, "strict": True}
    answer = ask(
        client, response_format={"type": "json_schema", "json_schema": schema}, max_tokens=200
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"city"}


def test_a_grammar_without_a_way_out_is_an_error(server: RunningServer) -> None:
    """vLLM itself ends such an answer with `stop`."""
    body = {"model": NAME, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    grammar = 'start: "Paris " <[49999999]>'
    response = httpx.post(
        f"{server.url}/v1/chat/completions", json=body | {"grammar": grammar}, timeout=300
    )
    assert response.status_code == 400, response.text


def test_an_adapter_changes_the_answer_and_can_be_changed(
    client: OpenAI, server: RunningServer, tmp_path: Path
) -> None:
    plain = ask(client).choices[0].message.content
    poet = ask(client, extra_body={"lora": "poet"}).choices[0].message.content
    assert poet != plain
    assert ask(client).choices[0].message.content == plain
    with pytest.raises(BadRequestError, match="critic"):
        ask(client, extra_body={"lora": "critic"})
    with pytest.raises(BadRequestError, match="scale"):
        ask(client, extra_body={"lora": [{"name": "poet", "scale": 0.5}]})
    engine: Any = get_model(server).engine
    path = write_adapter(tmp_path / "critic", seed=2)
    load = httpx.post(
        f"{server.url}/admin/adapters/load",
        json={"lora_name": "critic", "lora_path": str(path)},
        timeout=300,
    )
    assert load.status_code == 200, load.text
    critic = ask(client, extra_body={"lora": "critic"}).choices[0].message.content
    assert critic not in (plain, poet)
    unload = httpx.post(f"{server.url}/admin/adapters/unload", json={"lora_name": "critic"})
    assert unload.status_code == 200, unload.text
    assert engine.capabilities.lora == ("poet",)
    with pytest.raises(BadRequestError, match="critic"):
        ask(client, extra_body={"lora": "critic"})


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"typical_p": 0.5}, "typical_p"),
        ({"repeat_last_n": 8}, "repeat_last_n"),
        ({"mirostat": 2}, "mirostat"),
        ({"logit_bias": {"60000": 1}}, "logit_bias"),
        ({"stop_token_ids": [60000]}, "stop_token_ids"),
        ({"top_logprobs": 20, "logprobs": True, "n": 200}, "n"),
    ],
)
def test_what_vllm_cannot_do_is_a_400_that_names_it(
    server: RunningServer, fields: dict[str, Any], name: str
) -> None:
    body = {"model": NAME, "messages": QUESTION, "max_tokens": 4} | fields
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400, response.text
    assert name in response.json()["error"]["param"]


def test_limits_of_the_answer_are_kept(server: RunningServer) -> None:
    body = {"model": NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    ignoring = request_answer(server, body | {"ignore_eos": True})
    assert (ignoring.finish, ignoring.usage["completion_tokens"]) == ("length", 40)
    longer = request_answer(server, body | {"min_tokens": 20})
    assert longer.usage["completion_tokens"] >= 20


def test_cached_prompts_are_reported_and_can_be_refused(server: RunningServer) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 30
    body = {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    counts = [
        request_answer(server, body | extra).usage["prompt_tokens_details"]["cached_tokens"]
        for extra in ({}, {}, {"cache_prompt": False})
    ]
    assert counts[0] == 0
    assert counts[1] >= 128
    assert counts[2] == 0


def test_statistics_of_the_scheduler_are_metrics(server: RunningServer, client: OpenAI) -> None:
    ask(client)
    text = httpx.get(f"{server.url}/metrics").text
    assert f'dragoman_engine_prefix_cache_queries{{model="{NAME}"}}' in text
    assert f'dragoman_engine_kv_cache_usage_ratio{{model="{NAME}"}}' in text
