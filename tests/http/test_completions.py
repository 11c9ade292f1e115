"""Text completions, embeddings and tokenizing on the wire."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Adapter
from tests.support.serving import RunningServer, parse_events, serve_scripted


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    script = [
        Reply("first answer", when="one"),
        Reply("second", when="two"),
        Reply("aaaa", variants=("bb", "cccccc", "d"), when="best"),
        Reply("naïve 😀 text"),
    ]
    with serve_scripted(ScriptedEngine(script, tokens=True, context=2048)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server: RunningServer, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": "scripted", **fields}, timeout=30)


def test_whole_completion(client: OpenAI) -> None:
    response = client.completions.create(model="scripted", prompt="one", max_tokens=50)
    assert response.id.startswith("cmpl-")
    assert response.object == "text_completion"
    assert response.choices[0].text == "first answer"
    assert response.choices[0].finish_reason == "stop"
    assert response.usage is not None
    assert response.usage.prompt_tokens == 3


def test_the_default_limit_is_16_tokens() -> None:
    long = ScriptedEngine("y" * 100, tokens=True)
    with serve_scripted(long) as server:
        whole = post(server, prompt="x").json()
        assert whole["choices"][0]["text"] == "y" * 16
        assert whole["choices"][0]["finish_reason"] == "length"


def test_every_prompt_of_a_list_gets_a_completion(client: OpenAI) -> None:
    response = client.completions.create(model="scripted", prompt=["one", "two"], n=2)
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in response.choices]
    assert texts == ["first answer", "first answer", "second", "second"]
    assert response.usage is not None
    assert response.usage.prompt_tokens == 6


def test_prompts_as_token_ids(client: OpenAI) -> None:
    ids = list(b"one")
    response = client.completions.create(model="scripted", prompt=[ids, list(b"two")])
    assert [choice.text for choice in response.choices] == ["first answer", "second"]
    single = client.completions.create(model="scripted", prompt=ids)
    assert single.choices[0].text == "first answer"


def test_unknown_token_id_gets_400(server: RunningServer) -> None:
    response = post(server, prompt=[[1, 999_999]])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("prompt", ["", [""], [[]], []])
def test_empty_prompt_gets_400(server: RunningServer, prompt: Any) -> None:
    response = post(server, prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 2},
        {"echo": True},
        {"echo": True, "logprobs": 1},
        {"n": 2, "logprobs": 0},
        {"prompt": ["one", "two"], "echo": True},
        {"stop": "sw"},
        {"max_tokens": 4, "logprobs": 1},
    ],
)
def test_stream_accumulates_to_the_whole_response(
    server: RunningServer, fields: dict[str, Any]
) -> None:
    parameters: dict[str, Any] = {"prompt": "one", "max_tokens": 40} | fields
    whole = post(server, **parameters).json()
    streamed = post(server, **parameters, stream=True, stream_options={"include_usage": True})
    chunks = parse_events(streamed)
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["choices"] == []
    accumulated: dict[int, dict[str, Any]] = {}
    for chunk in chunks[:-1]:
        assert chunk["object"] == "text_completion"
        part = chunk["choices"][0]
        ours = accumulated.setdefault(part["index"], {"text": "", "logprobs": None, "finish": None})
        ours["text"] += part["text"]
        ours["finish"] = part["finish_reason"] or ours["finish"]
        if part["logprobs"]:
            lists = ours["logprobs"] = ours["logprobs"] or {}
            for name, values in part["logprobs"].items():
                lists.setdefault(name, []).extend(values)
    for choice in whole["choices"]:
        assert accumulated[choice["index"]] == {
            "text": choice["text"],
            "logprobs": choice["logprobs"],
            "finish": choice["finish_reason"],
        }


def test_echo_with_logprobs(server: RunningServer) -> None:
    whole = post(server, prompt=[list(b"one")], echo=True, logprobs=1, max_tokens=1).json()
    choice = whole["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == "onef"
    assert lists["tokens"] == ["o", "n", "e", "f"]
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in lists["token_logprobs"][1:])
    assert lists["text_offset"] == [0, 1, 2, 3]


def test_every_choice_echoes_the_prompt_with_its_logprobs(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": ["one", "three"], "echo": True, "logprobs": 1, "n": 3}
    choices = post(server, **body, max_tokens=1).json()["choices"]
    assert [choice["text"][:-1] for choice in choices] == ["one"] * 3 + ["three"] * 3
    for choice in choices:
        lists = choice["logprobs"]
        assert "".join(lists["tokens"]) == choice["text"]
        assert len(lists["token_logprobs"]) == len(choice["text"])


def test_choices_cannot_echo_a_prompt_without_end(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": ["one " * 500] * 4, "echo": True, "max_tokens": 1}
    assert post(server, **body, n=5).status_code == 200
    response = post(server, **body, n=51, logprobs=1)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "echo"
    assert "fewer choices (`n`)" in response.json()["error"]["message"]


def test_text_offsets_count_characters_not_tokens() -> None:
    with serve_scripted(ScriptedEngine("😀a日", tokens=True)) as server:
        whole = post(server, prompt="x", logprobs=0).json()["choices"][0]
        assert whole["logprobs"]["text_offset"] == [0, 0, 0, 0, 1, 2, 2, 2]


def test_echo_without_generating(server: RunningServer) -> None:
    whole = post(server, prompt="one", echo=True, max_tokens=0, logprobs=0).json()
    assert whole["choices"][0]["text"] == "one"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 0


def test_best_of_returns_the_most_likely(server: RunningServer) -> None:
    choices = post(server, prompt="best", n=4, logprobs=0, max_tokens=9).json()["choices"]

    def mean_logprob(choice: Any) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return float(sum(values) / len(values))

    best = sorted(choices, key=mean_logprob, reverse=True)
    response = post(server, prompt="best", n=2, best_of=4, max_tokens=9).json()
    assert [choice["text"] for choice in response["choices"]] == [
        choice["text"] for choice in best[:2]
    ]
    assert [choice["index"] for choice in response["choices"]] == [0, 1]
    assert response["choices"][0]["logprobs"] is None
    assert response["usage"]["completion_tokens"] == sum(len(choice["text"]) for choice in choices)


def test_best_of_cannot_be_streamed(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="scripted", prompt="x", best_of=3, stream=True)


def test_embeddings_with_the_openai_sdk(client: OpenAI, server: RunningServer) -> None:
    response = client.embeddings.create(model="scripted", input=["hello", "world", "hello"])
    assert [item.index for item in response.data] == [0, 1, 2]
    assert response.data[0].embedding == response.data[2].embedding != response.data[1].embedding
    assert response.usage.prompt_tokens == 15
    plain = post(server, "/v1/embeddings", input="hello", encoding_format="float").json()
    packed = post(server, "/v1/embeddings", input="hello", encoding_format="base64").json()
    vector = plain["data"][0]["embedding"]
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack(f"<{len(vector)}f", raw) == pytest.approx(vector, rel=1e-6)
    assert client.embeddings.create(model="scripted", input="hello", encoding_format="float").data[
        0
    ].embedding == pytest.approx(vector)


class EmbeddingRecorder(ScriptedEngine):
    """Records the inputs that it embeds; `lost` of each call's vectors are missing."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__("x", tokens=True)
        self.inputs: list[str] = []
        self._lost = lost

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        self.inputs += [bytes(ids).decode() for ids in inputs if isinstance(ids, list)]
        vectors = await super().embed(inputs, adapters)
        return vectors[: len(vectors) - self._lost]


def test_equal_inputs_are_embedded_once() -> None:
    draw = random.Random(7)
    texts = [f"text {draw.randrange(90)}" for _ in range(300)]  # of several slices
    engine = EmbeddingRecorder()
    with serve_scripted(engine) as server:
        whole = post(server, "/v1/embeddings", input=texts).json()
        assert engine.inputs == list(dict.fromkeys(texts))
        alone = {
            text: post(server, "/v1/embeddings", input=text).json()["data"][0]["embedding"]
            for text in set(texts)
        }
    assert [entry["index"] for entry in whole["data"]] == list(range(300))
    assert [entry["embedding"] for entry in whole["data"]] == [alone[text] for text in texts]
    assert whole["usage"]["prompt_tokens"] == sum(map(len, texts))


def test_an_engine_that_loses_vectors_fails_the_request() -> None:
    with serve_scripted(EmbeddingRecorder(lost=1)) as server:
        response = post(server, "/v1/embeddings", input=["one", "two"])
        assert response.status_code == 500
        assert "vectors" in response.json()["error"]["message"]


def test_embeddings_of_token_ids(client: OpenAI) -> None:
    ids = client.embeddings.create(model="scripted", input=[list(b"hello")])
    text = client.embeddings.create(model="scripted", input="hello")
    assert ids.data[0].embedding == text.data[0].embedding


def test_dimensions_shorten_and_normalize(server: RunningServer) -> None:
    short = post(server, "/v1/embeddings", input="hello", dimensions=4).json()
    vector = short["data"][0]["embedding"]
    assert len(vector) == 4
    assert math.hypot(*vector) == pytest.approx(1)
    too_many = post(server, "/v1/embeddings", input="hello", dimensions=100_000)
    assert too_many.status_code == 400
    assert too_many.json()["error"]["param"] == "dimensions"


def test_embeddings_cannot_be_streamed(server: RunningServer) -> None:
    response = post(server, "/v1/embeddings", input="x", stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream"


def test_engine_without_embeddings_gets_400() -> None:
    with serve_scripted(ScriptedEngine("x", embeddings=0)) as server:
        response = post(server, "/v1/embeddings", input="hello")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "model"


def test_input_that_does_not_fit_gets_400(server: RunningServer) -> None:
    response = post(server, "/v1/embeddings", input="x" * 3000)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["error"]["param"] == "input"


def test_tokenize_and_detokenize(server: RunningServer) -> None:
    text = "naïve 😀"
    response = post(server, "/tokenize", prompt=text, return_token_strs=True).json()
    assert response["tokens"] == list(text.encode())
    assert response["count"] == len(response["tokens"])
    assert response["max_model_len"] == 2048
    assert len(response["token_strs"]) == response["count"]
    back = post(server, "/detokenize", tokens=response["tokens"]).json()
    assert back == {"prompt": text, "content": text}
    info = httpx.get(f"{server.url}/tokenizer_info").json()
    assert info["vocab_size"] >= 256


def test_tokenize_renders_a_conversation_like_a_completion(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "one"}]
    response = post(server, "/tokenize", messages=messages).json()
    whole = post(server, "/v1/chat/completions", messages=messages).json()
    assert response["count"] == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_invalid_tokenize_fields_are_named(
    server: RunningServer, path: str, fields: dict[str, Any], param: str
) -> None:
    response = post(server, path, **fields)
    assert response.status_code == 400
    assert json.loads(response.text)["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"echo": True}, "`return_token_ids` and `echo`"),
        ({"best_of": 2}, "`return_token_ids` and `best_of`"),
    ],
)
def test_token_ids_exclude_other_fields(
    server: RunningServer, fields: dict[str, Any], message: str
) -> None:
    response = post(server, "/v1/completions", prompt="a", return_token_ids=True, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_token_ids"
    assert message in response.json()["error"]["message"]


def test_engines_without_ids_return_none() -> None:
    with serve_scripted("text") as server:
        response = post(server, "/v1/completions", prompt="a", return_token_ids=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "return_token_ids"
        response = httpx.get(f"{server.url}/tokenizer")
        assert response.status_code == 400


def test_token_ids_of_every_choice(server: RunningServer) -> None:
    body = {"prompt": ["ab", "c"], "n": 2, "return_token_ids": True, "max_tokens": 3}
    whole = post(server, "/v1/completions", **body).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in whole] == [[97, 98], [97, 98], [99], [99]]
    streamed: dict[int, list[int]] = {index: [] for index in range(4)}
    for event in parse_events(post(server, "/v1/completions", stream=True, **body)):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["token_ids"]
    assert list(streamed.values()) == [choice["token_ids"] for choice in whole]
    assert all(len(ids) == 3 for ids in streamed.values())
