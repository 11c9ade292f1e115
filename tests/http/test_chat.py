"""Chat completions on the wire, mostly through the openai package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from dragoman.errors import Unavailable
from dragoman.store.completions import CompletionRepository
from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import RunningServer, make_chat, parse_events, serve_scripted

TEXT = "The naïve 日本 café 😀 costs 5 €."


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    script = [
        Reply(TEXT, when="unicode", chunks="bytes"),
        Reply("one two three four five six", when="count"),
        Reply("alpha", variants=("beta", "gamma"), when="variants"),
        Reply("some text and then a failure", when="break", raise_at=3),
        Reply("fails at once", when="early", raise_at=0),
        Reply(
            "odd exception", when="odd", raise_at=1, error=ZeroDivisionError("secret 0xdeadbeef")
        ),
        Reply("never finished", when="endless", no_finish=True),
        Reply("with nan", when="nan", garbage="nan_logprob"),
        Reply("bad token", when="badtoken", garbage="bad_token"),
        Reply("bad choice", when="badchoice", garbage="bad_choice"),
        Reply("after the end", when="afterfinish", garbage="after_finish"),
        Reply("Hello there!"),
    ]
    engine = ScriptedEngine(script, tokens=True, context=4096, lora=("poet",), cached=3)
    with serve_scripted(engine, name="scripted") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    text = fields.pop("text", "hi")
    return httpx.post(
        f"{server.url}/v1/chat/completions", json=make_chat(text, **fields), timeout=30
    )


def stream(server: RunningServer, text: str = "hi", **fields: Any) -> list[Any]:
    return parse_events(post(server, text=text, stream=True, **fields))


def test_whole_response(client: OpenAI) -> None:
    response = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}]
    )
    assert response.id.startswith("chatcmpl-")
    assert response.object == "chat.completion"
    assert response.model == "scripted"
    choice = response.choices[0]
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert choice.message.content == "Hello there!"
    assert response.usage is not None
    assert response.usage.completion_tokens == len("Hello there!")
    assert response.usage.total_tokens == response.usage.prompt_tokens + len("Hello there!")


def test_plain_answer_has_no_tool_fields(server: RunningServer) -> None:
    choice = post(server).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello there!", "refusal": None}
    assert choice["logprobs"] is None
    stops = {"stop_reason", "matched_stop"}
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"} | stops


def test_chunks_of_a_stream(server: RunningServer) -> None:
    chunks = stream(server)
    for field in ("id", "created", "model", "object"):
        assert len({chunk[field] for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert "model_name" not in chunks[0]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    roles = [chunk for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert len(roles) == 1
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )


def test_no_chunk_is_empty(server: RunningServer) -> None:
    for chunk in stream(server, "unicode")[1:]:
        choice = chunk["choices"][0]
        assert choice["delta"].get("content") or choice["finish_reason"]


def test_headers_of_a_stream(server: RunningServer) -> None:
    response = post(server, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    assert "\r" not in response.text
    assert response.text.endswith("data: [DONE]\n\n")


def test_characters_are_never_split(server: RunningServer) -> None:
    chunks = stream(server, "unicode")
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == TEXT
    assert "\ufffd" not in "".join(deltas)
    assert len([delta for delta in deltas if delta]) > 10


@pytest.mark.parametrize("usage", [True, False])
def test_usage_comes_last_and_only_on_request(server: RunningServer, usage: bool) -> None:
    chunks = stream(server, "hello you", stream_options={"include_usage": usage})
    if not usage:
        assert all("usage" not in chunk for chunk in chunks)
        return
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    whole = post(server, text="hello you").json()["usage"]
    assert chunks[-1]["usage"] == whole
    assert whole["prompt_tokens_details"] == {"cached_tokens": 3}
    assert whole["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert whole["prompt_tokens"] > 3


CASES: list[dict[str, Any]] = [
    {},
    {"text": "unicode"},
    {"text": "unicode", "logprobs": True, "top_logprobs": 2},
    {"text": "unicode", "max_tokens": 7},
    {"text": "unicode", "max_tokens": 7, "logprobs": True},
    {"text": "count", "stop": "three"},
    {"text": "count", "stop": ["four", "two t"]},
    {"text": "count", "stop": "three", "logprobs": True},
    {"text": "count", "max_tokens": 5},
    {"text": "variants", "n": 3},
    {"text": "variants", "n": 3, "logprobs": True, "top_logprobs": 1, "stop": "a"},
    {"text": "variants", "seed": 7},
]


@pytest.mark.parametrize("fields", CASES)
def test_stream_accumulates_to_the_whole_response(client: OpenAI, fields: dict[str, Any]) -> None:
    """The accumulator of the openai package adds up the chunks."""
    parameters = dict(fields)
    messages: Any = [{"role": "user", "content": parameters.pop("text", "hi")}]
    whole = client.chat.completions.create(model="scripted", messages=messages, **parameters)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(
        model="scripted",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        **parameters,
    ):
        state.handle_chunk(chunk)
    accumulated = state.current_completion_snapshot
    assert accumulated.usage == whole.usage
    assert len(accumulated.choices) == len(whole.choices)
    for ours, theirs in zip(accumulated.choices, whole.choices, strict=True):
        assert ours.index == theirs.index
        assert ours.finish_reason == theirs.finish_reason
        assert ours.message.role == theirs.message.role
        assert ours.message.content == theirs.message.content
        content = ours.logprobs and ours.logprobs.content
        assert content == (theirs.logprobs and theirs.logprobs.content)


def test_several_choices(server: RunningServer) -> None:
    chunks = stream(server, "variants", n=3)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    whole = post(server, text="variants", n=3).json()
    texts = {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert texts == {0: "alpha", 1: "beta", 2: "gamma"}
    single = post(server, text="variants").json()["usage"]
    assert whole["usage"]["prompt_tokens"] == single["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == len("alpha" + "beta" + "gamma")


def test_every_choice_has_the_same_limits(server: RunningServer) -> None:
    whole = post(server, text="variants", n=3, max_tokens=3).json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["alp", "bet", "gam"]
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
def test_stop_strings_are_cut_on_every_engine_and_in_both_apis(
    streamed: bool, tokens: bool
) -> None:
    with serve_scripted(ScriptedEngine("one two three", tokens=tokens)) as server:
        parameters = {"stop": ["two"], "stream": streamed, "max_tokens": 50}
        prompt = {"model": "scripted", "prompt": "x", **parameters}
        for response in (
            post(server, **parameters),
            httpx.post(f"{server.url}/v1/completions", json=prompt),
        ):
            bodies = parse_events(response) if streamed else [response.json()]
            text = ""
            for body in bodies:
                choice = body["choices"][0]
                message = choice.get("delta") or choice.get("message") or choice
                text += message.get("content", message.get("text")) or ""
            assert text == "one "


def test_stop_wins_over_length(server: RunningServer) -> None:
    whole = post(server, text="count", stop="two", max_tokens=len("one two")).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["message"]["content"] == "one "


def test_no_delta_contains_a_part_of_a_stop_string(server: RunningServer) -> None:
    chunks = stream(server, "count", stop=["three"])
    text = ""
    for chunk in chunks:
        text += chunk["choices"][0]["delta"].get("content") or ""
        assert "th" not in text
    assert text == "one two "


def test_end_of_the_context_finishes_with_length() -> None:
    engine = ScriptedEngine("x" * 500, tokens=True, context=100)
    with serve_scripted(engine) as server:
        response = post(server).json()
        assert response["choices"][0]["finish_reason"] == "length"
        assert response["usage"]["total_tokens"] == 100


def test_logprobs_of_plain_text(server: RunningServer) -> None:
    whole = post(server, text="unicode", logprobs=True, top_logprobs=3).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TEXT
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert all(isinstance(entry["logprob"], float) for entry in entries)
    assert len(entries) == whole["usage"]["completion_tokens"]
    bare = post(server, text="unicode", logprobs=True).json()
    assert all(entry["top_logprobs"] == [] for entry in bare["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", ["early", "odd"])
def test_failing_engine_gets_500(
    server: RunningServer, client: OpenAI, case: str, streamed: bool
) -> None:
    if case == "early" or not streamed:
        response = post(server, text=case, stream=streamed)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "0xdead" not in response.text
        assert response.headers["x-should-retry"] == "false"
        return
    with pytest.raises(openai.APIError) as failure:
        list(
            client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": case}], stream=True
            )
        )
    assert "0xdead" not in str(failure.value)


def test_failing_stream_ends_with_an_error(server: RunningServer, client: OpenAI) -> None:
    before = server.app.metrics.succeeded
    chunks = stream(server, "break")
    assert set(chunks[-1]) == {"error"}
    assert set(chunks[-1]["error"]) == {"message", "type", "param", "code"}
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]), (
        "a failed stream has no finish reason"
    )
    assert server.app.metrics.succeeded == before
    with pytest.raises(openai.APIError):
        list(
            client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "break"}], stream=True
            )
        )


@pytest.mark.parametrize("case", ["endless", "badtoken", "badchoice"])
def test_invalid_steps_of_an_engine_get_500(server: RunningServer, case: str) -> None:
    whole = post(server, text=case)
    assert whole.status_code == 500
    streamed = post(server, text=case, stream=True)
    last = parse_events(streamed)[-1] if streamed.status_code == 200 else streamed.json()
    assert last["error"]["code"] == "engine_error"


def test_nan_logprob_gets_500(server: RunningServer) -> None:
    assert post(server, text="nan", logprobs=True).status_code == 500


def test_steps_after_the_finish_are_ignored(server: RunningServer) -> None:
    assert post(server, text="afterfinish").json()["choices"][0]["message"]["content"] == (
        "after the end"
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_prompt_that_does_not_fit_gets_400(server: RunningServer, streamed: bool) -> None:
    response = post(server, text="x" * 5000, stream=streamed)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "This model's maximum context length is 4096 tokens" in error["message"]
    assert "rate limit" not in error["message"].lower()


def test_max_tokens_beyond_the_context_is_clamped(server: RunningServer) -> None:
    assert post(server, max_tokens=32_000).status_code == 200


def test_unknown_model_gets_404(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as failure:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])
    assert failure.value.code == "model_not_found"
    assert failure.value.type == "invalid_request_error"
    assert failure.value.param == "model"


def test_any_model_setting_accepts_every_name() -> None:
    with serve_scripted("Hi.", any_model=True) as server:
        response = httpx.post(
            f"{server.url}/v1/chat/completions", json=make_chat(model="gpt-9")
        ).json()
        assert response["model"] == "gpt-9"


def test_served_names_are_aliases() -> None:
    with serve_scripted("Hi.", served_name=("gpt-4o", "other")) as server:
        for name in ("gpt-4o", " OTHER ", "other:latest", "scripted"):
            assert post(server, model=name).status_code == 200
        assert post(server, model="gpt-4o").json()["model"] == "gpt-4o"  # echoed
        assert post(server, model="third").status_code == 404


def test_unknown_adapter_gets_400(server: RunningServer) -> None:
    assert post(server, lora="poet").status_code == 200
    response = post(server, lora="painter")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "lora"


@pytest.mark.slow
def test_a_thousand_requests_get_distinct_ids_and_their_own_answers() -> None:
    script = [Reply(f"answer {i}.", when=f"question {i}.") for i in range(1000)]
    with serve_scripted(ScriptedEngine(script), queue=2000) as server:

        async def send(i: int) -> tuple[str, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = json.dumps(make_chat(f"question {i}.")).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                b"x-request-id: the-same\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            response = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
            writer.close()
            return response["id"], response["choices"][0]["message"]["content"]

        async def run_all() -> list[tuple[str, str]]:
            return await asyncio.gather(*(send(i) for i in range(1000)))

        answers = asyncio.run(run_all())
    assert len({completion_id for completion_id, _ in answers}) == 1000
    assert [text for _, text in answers] == [f"answer {i}." for i in range(1000)]


def test_obfuscation_hides_the_length_of_a_token() -> None:
    engine = ScriptedEngine(Reply("a bc def ghij klmno pqrstu", chunks="words"))
    with serve_scripted(engine) as server:
        options = {"include_obfuscation": True}
        response = post(server, stream=True, stream_options=options)
        frames = [frame for frame in response.text.split("\n\n") if '"content":"' in frame][1:]
        assert len({len(frame) for frame in frames}) == 1
        assert all("obfuscation" in json.loads(frame[6:]) for frame in frames)


# Stored completions


def test_failure_to_store_a_completion_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise Unavailable("It is down.")

    with serve_scripted("Hello there!") as server:
        monkeypatch.setattr(CompletionRepository, "add", fail)
        response = post(server, store=True)
        assert response.json()["choices"][0]["message"]["content"] == "Hello there!"
        assert "storing the answer failed" in response.headers["x-dragoman-warning"]
        assert parse_events(post(server, store=True, stream=True))


def test_completion_can_be_stored() -> None:
    with (
        serve_scripted("Hello there!") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="x") as client,
    ):
        conversation: Any = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ]
        request: Any = {"model": "scripted", "messages": conversation, "store": True}
        whole = client.chat.completions.create(**request, metadata={"of": "whole"})
        with client.chat.completions.stream(**request, metadata={"of": "stream"}) as stream:
            streamed = stream.get_final_completion()
        for completion, value in ((whole, "whole"), (streamed, "stream")):
            stored = client.chat.completions.retrieve(completion.id)
            assert stored.choices[0].message.content == "Hello there!"
            assert stored.to_dict()["metadata"] == {"of": value}
        listing = client.chat.completions.list(metadata={"of": "stream"})
        assert [completion.id for completion in listing] == [streamed.id]
        assert [completion.id for completion in client.chat.completions.list(limit=1)] != []
        assert not list(client.chat.completions.list(model="another"))
        messages = list(client.chat.completions.messages.list(whole.id, limit=1))
        assert [message.content for message in messages] == ["Be kind.", "hi"]
        updated = client.chat.completions.update(whole.id, metadata={"of": "test"})
        assert updated.to_dict()["metadata"] == {"of": "test"}
        assert client.chat.completions.delete(whole.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(whole.id)
        other = client.chat.completions.create(model="scripted", messages=conversation)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(other.id)
