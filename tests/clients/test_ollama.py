"""The official `ollama` client against the default model: every call, streamed and whole."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel, ConfigDict

from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY = {"temperature": 0, "num_predict": 12, "seed": 1}


class Pet(BaseModel):
    """What an answer must look like."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["Rex", "Tom"]
    legs: Literal[2, 4]


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=512) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with closing(Client(server.url)) as client:
        yield client


def check_metrics(answer: Any) -> None:
    assert answer.done
    assert answer.prompt_eval_count > 0
    durations = (answer.load_duration, answer.prompt_eval_duration, answer.eval_duration)
    assert min(durations) > 0
    assert answer.total_duration >= sum(durations) - 1_000_000


def test_chat_streams_the_text_that_it_returns_whole(client: Client) -> None:
    whole = client.chat(MODEL, MESSAGES, options=GREEDY)
    lines = list(client.chat(MODEL, MESSAGES, options=GREEDY, stream=True))
    assert whole.message.content
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert (whole.model, whole.done_reason, whole.eval_count) == (MODEL, "length", 12)
    for last in (whole, lines[-1]):
        check_metrics(last)
    assert lines[-1].eval_count == whole.eval_count
    assert not any(line.done for line in lines[:-1])


def test_generate_streams_the_text_that_it_returns_whole(client: Client) -> None:
    whole = client.generate(f"{MODEL}:latest", "The sea is", system="Be brief.", options=GREEDY)
    stream = client.generate(
        f"{MODEL}:latest", "The sea is", system="Be brief.", options=GREEDY, stream=True
    )
    lines = list(stream)
    assert whole.response == "".join(line.response or "" for line in lines)
    assert whole.model == f"{MODEL}:latest"
    assert whole.context is not None
    assert list(whole.context) == list(lines[-1].context or ())
    assert len(whole.context) >= (whole.prompt_eval_count or 0) + 12
    check_metrics(whole)
    more = client.generate(MODEL, "And then?", context=whole.context, options=GREEDY)
    assert (more.prompt_eval_count or 0) > len(whole.context)


def test_raw_generation_completes_the_text(client: Client) -> None:
    whole = client.generate(MODEL, "One, two, three,", raw=True, options=GREEDY)
    assert "four" in (whole.response or "")
    assert whole.context is None


def test_format_is_obeyed(client: Client) -> None:
    schema, options = Pet.model_json_schema(), {"num_predict": 80, "temperature": 0}
    chat = client.chat(MODEL, MESSAGES, format=schema, options=options)
    Pet.model_validate_json(chat.message.content or "")
    generated = client.generate(MODEL, "A pet.", format=schema, options=options)
    Pet.model_validate_json(generated.response or "")
    any_object = client.chat(MODEL, MESSAGES, format="json", options=GREEDY)
    assert (any_object.message.content or "").startswith("{")


def test_stop_strings_and_logprobs(client: Client) -> None:
    answer = client.chat(MODEL, MESSAGES, options=GREEDY | {"stop": ["e"]}, logprobs=True)
    assert "e" not in (answer.message.content or "")
    assert answer.done_reason == "stop"
    full = client.chat(MODEL, MESSAGES, options=GREEDY, logprobs=True, top_logprobs=2)
    assert full.logprobs is not None
    assert "".join(entry.token for entry in full.logprobs) == full.message.content
    assert all(len(entry.top_logprobs or ()) == 2 for entry in full.logprobs)


def test_seed_repeats_an_answer(client: Client) -> None:
    options = {"seed": 5, "num_predict": 12, "temperature": 1.0}
    first, second = (client.chat(MODEL, MESSAGES, options=options) for _ in range(2))
    assert first.message.content == second.message.content


def get_weather(city: str) -> str:
    """Get the weather.

    Args:
      city: The name of the city.
    """
    return f"It rains in {city}."


def test_tools_are_functions_of_python(client: Client) -> None:
    """The client makes the schema, and a conversation with a result can be continued."""
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    messages: list[dict[str, Any]] = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": get_weather("Rome"), "tool_name": "get_weather"},
    ]
    lines = list(client.chat(MODEL, messages, tools=[get_weather], options=GREEDY, stream=True))
    assert lines[-1].done
    assert (lines[-1].prompt_eval_count or 0) > 100  # the tool is described in the prompt


def test_embed_returns_unit_vectors_that_compare_meanings(client: Client) -> None:
    answer = client.embed(MODEL, ["the sea", "the ocean", "a tax form"])
    first, second, third = answer.embeddings
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-5) for vector in answer.embeddings)
    assert (answer.prompt_eval_count or 0) > 3
    assert _multiply(first, second) > _multiply(first, third)
    single = client.embed(MODEL, "the sea")
    assert single.embeddings[0] == pytest.approx(first, abs=1e-3)
    assert client.embeddings(MODEL, "the sea").embedding
    assert len(client.embed(MODEL, "the sea", dimensions=8).embeddings[0]) == 8
    assert len(client.embed(MODEL, "sea " * 1000).embeddings) == 1
    with pytest.raises(ResponseError) as caught:
        client.embed(MODEL, "sea " * 1000, truncate=False)
    assert caught.value.status_code == 400


def _multiply(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


ERRORS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "nobody"}, 404, "model 'nobody' not found"),
    ({"think": True}, 400, "does not support thinking"),
    ({"options": {"temperature": "hot"}}, 400, "`options.temperature`"),
    ({"messages": [{"role": "user", "content": "a", "images": [b"GIF89a"]}]}, 400, "images"),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("fields", "status", "text"), ERRORS, ids=str)
def test_errors_are_raised(
    client: Client, fields: dict[str, Any], status: int, text: str, streamed: bool
) -> None:
    body: Any = {"model": MODEL, "messages": MESSAGES, "stream": streamed} | fields
    with pytest.raises(ResponseError) as caught:
        list(client.chat(**body))
    assert caught.value.status_code == status
    assert text in caught.value.error


def test_asynchronous_client(server: RunningServer) -> None:
    async def ask() -> tuple[str, str]:
        client: Any = AsyncClient(server.url)
        try:
            whole = await client.chat(MODEL, MESSAGES, options=GREEDY)
            stream = await client.chat(MODEL, MESSAGES, options=GREEDY, stream=True)
            texts = [line.message.content or "" async for line in stream]
            stream = await client.generate(MODEL, "The sea is", options=GREEDY, stream=True)
            assert "".join([line.response async for line in stream])
            assert len((await client.embed(MODEL, ["a", "b"])).embeddings) == 2
            assert f"{MODEL}:latest" in [model.model for model in (await client.list()).models]
            assert (await client.show(MODEL)).capabilities
            assert len((await client.ps()).models) == 1
        finally:
            await client.close()
        return whole.message.content or "", "".join(texts)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_model_is_unloaded_and_loaded_on_request(client: Client, server: RunningServer) -> None:
    models = server.app.runtime.services.models
    assert client.generate(MODEL, "", keep_alive=0).done_reason == "unload"
    assert models.get(MODEL).state == "unloaded"
    assert client.generate(MODEL, keep_alive="5m").done_reason == "load"
    entry = models.get(MODEL)
    assert (entry.state, entry.expires_at is None) == ("ready", False)
    assert client.chat(MODEL, MESSAGES, options=GREEDY, keep_alive=-1).done
    assert models.get(MODEL).expires_at is None
