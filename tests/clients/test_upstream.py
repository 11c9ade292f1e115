"""`dragoman serve --upstream` before a real llama-server, with the clients that people use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from tests.support.llama_server import run_llama_server
from tests.support.real_model import find_schema_error, request_answer, request_answers
from tests.support.serving import RunningServer
from tests.support.upstream_servers import serve_upstream

pytestmark = pytest.mark.real_model

WEATHER: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTIONS = (
    "Name a color.",
    "Why do people like it?",
    "Name an animal of this color.",
    "What does it eat?",
    "Say goodbye in one sentence.",
)


@pytest.fixture(scope="module")
def upstream(default_model: Path) -> Iterator[str]:
    with run_llama_server(default_model) as url:
        yield url


@pytest.fixture(scope="module")
def server(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Our server; the tokenizer and the template come from what llama-server names."""
    directory = tmp_path_factory.mktemp("upstream")
    with serve_upstream(upstream, directory, served_name=["m"], upstream_grammars=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def make_body(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 10} | fields


def test_finds_out_what_runs_there(server: RunningServer, default_model: Path) -> None:
    card = httpx.get(f"{server.url}/v1/models/m", timeout=60).json()
    assert card["id"] == default_model.stem
    assert card["upstream"]["server"] == "llama-server"
    assert card["upstream"]["api"] == "tokens"
    assert card["upstream"]["limitations"] == []
    assert (card["context_length"], card["slots"], card["parameters"]) == (4096, 2, "135M")
    assert {"chat", "tools", "grammar", "logprobs"} <= set(card["capabilities"])
    assert str(default_model.parent) not in json.dumps(card)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 2, "seed": 5, "temperature": 1},
        {"stop": ["."]},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_whole_equals_streamed(fields: dict[str, Any], server: RunningServer) -> None:
    parrot = "\U0001f99c " if not fields else ""  # a character of several tokens
    body = make_body(f"Say something about {parrot}parrots.", cache_prompt=False, **fields)
    whole = request_answers(server, body)
    streamed = request_answers(server, body, streamed=True)
    assert [(answer.content, answer.finish) for answer in whole] == [
        (answer.content, answer.finish) for answer in streamed
    ]
    assert whole[0].usage["completion_tokens"] == streamed[0].usage["completion_tokens"]
    for answer, other in zip(whole, streamed, strict=True):
        assert [token["token"] for token in answer.tokens] == [
            token["token"] for token in other.tokens
        ]
    if fields.get("logprobs"):
        data = b"".join(bytes(token["bytes"]) for token in whole[0].tokens)
        assert data.decode() == whole[0].content
        assert all(len(token["top_logprobs"]) == 2 for token in whole[0].tokens)
    if fields.get("n"):
        assert whole[0].content != whole[1].content


def test_tools_and_schemas_of_openai(client: openai.OpenAI) -> None:
    tool: Any = {"name": "get_weather", "parameters": WEATHER, "strict": True}
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[{"type": "function", "function": tool}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=80,
    )
    calls: Any = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls"
    assert calls[0].function.name == "get_weather"
    assert find_schema_error(calls[0].function.arguments, WEATHER) is None
    schema: Any = {"name": "place", "schema": WEATHER, "strict": True}
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Name a city."}],
        response_format={"type": "json_schema", "json_schema": schema},
        temperature=0,
        max_tokens=80,
    )
    assert find_schema_error(answer.choices[0].message.content or "", WEATHER) is None


def test_responses_keep_their_state(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="My name is Ada.", max_output_tokens=8)
    second = client.responses.create(
        model="m",
        input="What is my name?",
        previous_response_id=first.id,
        max_output_tokens=8,
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


def test_messages_of_anthropic(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        question: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
        tool: Any = {"name": "get_weather", "input_schema": WEATHER}
        with client.messages.stream(
            model="m",
            max_tokens=80,
            messages=question,
            tools=[tool],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        ) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        used = message.content[-1]
        assert used.type == "tool_use"
        assert find_schema_error(json.dumps(used.input), WEATHER) is None
        counted = client.messages.count_tokens(model="m", messages=question)
        assert counted.input_tokens > 10


def test_chat_of_ollama(server: RunningServer) -> None:
    fields: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": "Name a city."}],
        "format": WEATHER,
        "options": {"temperature": 0, "num_predict": 40},
    }
    with closing(ollama.Client(host=server.url)) as client:
        chunks = list(client.chat(**fields, stream=True))
        whole = client.chat(**fields)
    text = "".join(chunk.message.content or "" for chunk in chunks)
    assert find_schema_error(text, WEATHER) is None
    assert (whole.message.content, whole.done_reason) == (text, chunks[-1].done_reason)
    assert whole.eval_count == chunks[-1].eval_count


def test_a_replayed_conversation_hits_the_cache_of_the_server(client: openai.OpenAI) -> None:
    messages: list[Any] = []
    known = cached = 0
    previous = 0  # tokens that the server has in its cache
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(
            model="m", messages=messages, temperature=0.8, max_tokens=24
        )
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        known += previous
        cached += (usage.prompt_tokens_details.cached_tokens or 0) if previous else 0
        previous = usage.total_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    print(f"{cached} of {known} tokens of earlier turns came from the cache")
    assert cached >= 0.95 * known


@pytest.mark.parametrize("api", ["text", "chat"])
def test_the_other_apis_answer_alike(
    api: str, upstream: str, server: RunningServer, tmp_path: Path
) -> None:
    body = make_body("Name the capital of France.", max_tokens=12)
    expected = request_answer(server, body)
    with serve_upstream(upstream, tmp_path, upstream_api=api, served_name=["m"]) as other:
        answer = request_answer(other, body)
        assert (answer.content, answer.finish) == (expected.content, expected.finish)
        for count in ("prompt_tokens", "completion_tokens"):
            assert answer.usage[count] == expected.usage[count]
        streamed = request_answer(other, body, streamed=True)
        assert (streamed.content, streamed.finish) == (answer.content, answer.finish)
