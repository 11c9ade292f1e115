"""Reports in answers: timings, traces, rendered prompts and raw outputs, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Capabilities, Job, Step, TraceOperation
from tests.support.scripted_chats import PARIS, THINKER, TOOLS
from tests.support.serving import RunningServer, make_chat, serve_scripted

TEXT = "Hello there, you!"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": make_chat(),
    "/v1/completions": {"model": "scripted", "prompt": "hi", "max_tokens": 99},
    "/v1/messages": make_chat(max_tokens=99),
    "/v1/responses": {"model": "scripted", "input": "hi"},
}
TIMINGS = {
    *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}
STAGES = {"receive", "decode", "resolve", "validate", "render", "admit", "queue", "prefill"}
each_path = pytest.mark.parametrize("path", BODIES)
each_mode = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    replies = [Reply(f"<think>Hm.</think>\n{PARIS}", when="call"), Reply(TEXT)]
    markup = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
    engine = ScriptedEngine(replies, tokens=True, markup=markup, cached=1)
    with serve_scripted(engine, chat_template=THINKER, store="sqlite://") as running:
        yield running


def ask(
    server: RunningServer,
    path: str,
    stream: bool,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return the object that carries the report: the body, or the last one of a stream."""
    body = BODIES[path] | fields | {"stream": stream}
    response = httpx.post(server.url + path, json=body, headers=headers, timeout=30)
    assert response.status_code == 200, response.text
    if not stream:
        return decode(response.text)
    events = [
        decode(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line.startswith("data: {")
    ]
    if path == "/v1/messages":
        return next(event for event in events if event["type"] == "message_delta")
    return decode(json.dumps(events[-1].get("response", events[-1])))


def decode(text: str) -> dict[str, Any]:
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


@each_mode
@each_path
@pytest.mark.parametrize(
    ("fields", "headers"), [({"timings": True}, {}), ({}, {"x-dragoman-timings": "true"})]
)
def test_timings_where_asked(
    server: RunningServer,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    headers: dict[str, str],
) -> None:
    timings = ask(server, path, stream, headers, **fields)["timings"]
    assert set(timings) == TIMINGS
    assert timings["predicted_n"] == len(TEXT)
    assert timings["cache_n"] == 1
    assert timings["prompt_n"] >= 1
    assert timings["predicted_per_second"] > 0
    assert timings["predicted_ms"] == pytest.approx(
        timings["predicted_n"] * timings["predicted_per_token_ms"], abs=0.1
    )


@each_mode
@each_path
def test_no_report_unless_asked(server: RunningServer, path: str, stream: bool) -> None:
    answer = ask(server, path, stream)
    assert not {"timings", "debug", "step_trace"} & set(answer)


def test_server_can_send_timings_always() -> None:
    with serve_scripted(TEXT, timings=True) as server:
        assert "timings" in ask(server, "/v1/chat/completions", stream=True)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings_per_token_are_in_every_chunk(
    server: RunningServer, path: str, include_usage: bool
) -> None:
    fields: dict[str, Any] = {"stream": True, "timings_per_token": True}
    if include_usage:
        fields |= {"stream_options": {"include_usage": True}}
    response = httpx.post(server.url + path, json=BODIES[path] | fields)
    chunks = [decode(line[6:]) for line in response.text.splitlines() if line[:7] == "data: {"]
    count = 0
    for chunk in chunks:
        text = "".join(map(get_text, chunk["choices"]))
        count += len(text)  # a token is a byte
        assert not text or chunk["timings"]["predicted_n"] == count
        # not known before the end, and no zero is sent instead
        assert chunk.get("timings", {}).get("prompt_n") != 0
    assert set(chunks[-1]["timings"]) == TIMINGS
    assert chunks[-1]["timings"]["predicted_n"] == count == len(TEXT)


def get_text(choice: dict[str, Any]) -> str:
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


def test_timings_of_all_choices_come_with_the_last(server: RunningServer) -> None:
    answer = ask(server, "/v1/chat/completions", stream=True, timings=True, n=3)
    assert answer["timings"]["predicted_n"] == 3 * len(TEXT)


def test_responses_say_that_they_have_no_timings_per_token(server: RunningServer) -> None:
    body = BODIES["/v1/responses"] | {"timings_per_token": True}
    response = httpx.post(f"{server.url}/v1/responses", json=body)
    assert "timings_per_token" in response.headers["x-dragoman-warning"]
    assert "timings" in response.json()


@each_mode
@each_path
@pytest.mark.parametrize(
    ("fields", "headers", "name"),
    [
        ({"trace": True}, {}, "step_trace"),
        ({"trace": "layer"}, {}, "layer_trace"),
        ({}, {"X-Trace-Level": "brick"}, "brick_trace"),
    ],
)
def test_trace_tells_what_each_stage_took(
    server: RunningServer,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    headers: dict[str, str],
    name: str,
) -> None:
    trace = ask(server, path, stream, headers, **fields)[name]
    assert trace["level"] == name.removesuffix("_trace")
    times = {operation["name"]: operation["time_us"] for operation in trace["breakdown"]}
    assert set(times) >= STAGES | {"generate", "parse", "encode"}
    assert trace["operations"] == len(times)
    assert all(time >= 0 for time in times.values())
    assert trace["total_time_us"] >= times["decode"] + times["render"] + times["generate"]


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"trace": "deep"}, {}, "trace"),
        ({}, {"x-trace-level": "deep"}, "x-trace-level"),
        ({}, {"x-dragoman-timings": "maybe"}, "x-dragoman-timings"),
        ({}, {"x-dragoman-debug": "everything"}, "x-dragoman-debug"),
    ],
)
def test_unknown_value_is_rejected_by_name(
    server: RunningServer, fields: dict[str, Any], headers: dict[str, str], param: str
) -> None:
    body = make_chat(**fields)
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


class TracingEngine:
    """Traces itself, if it is asked to."""

    capabilities = Capabilities(trace=("layer",), sampling=frozenset({"max_tokens"}))

    def __init__(self) -> None:
        self.levels: list[str | None] = []

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.levels.append(job.trace)
        trace = (TraceOperation("layer.0", 0.25, "attention"),) if job.trace else ()
        yield Step(text="Hi", tokens=1, trace=trace)
        yield Step(finish="stop", trace=trace)


class WillingEngine(TracingEngine):
    """Says whether it traces itself instead of listing it."""

    capabilities = Capabilities(sampling=frozenset({"max_tokens"}))

    def should_trace(self, level: str) -> bool:
        return level == "layer"


@each_mode
@pytest.mark.parametrize("kind", [TracingEngine, WillingEngine])
def test_trace_level_reaches_engines_that_trace_themselves(
    kind: type[TracingEngine], stream: bool
) -> None:
    engine = kind()
    with serve_scripted(engine) as server:
        path = "/v1/chat/completions"
        trace = ask(server, path, stream, trace="layer")["layer_trace"]
        ask(server, path, stream)
        brick = httpx.post(server.url + path, json=make_chat(trace="brick"))
    operation = {"name": "engine.layer.0", "time_us": 250_000, "details": "attention"}
    assert [entry for entry in trace["breakdown"] if "details" in entry] == [operation] * 2
    assert engine.levels == ["layer", None, None]
    assert "does not trace itself" in brick.headers["x-dragoman-warning"]


@each_mode
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_debug_shows_the_prompt_and_the_raw_output(
    server: RunningServer, path: str, stream: bool
) -> None:
    fields: dict[str, Any] = {"messages": make_chat("call")["messages"], "tools": TOOLS}
    if path == "/v1/responses":
        function = {"type": "function", **TOOLS[0]["function"]}
        fields = {"input": "call", "tools": [function]}
    if path == "/v1/messages":
        fields["tools"] = [{"name": "weather", "input_schema": {"type": "object"}}]
    headers = {"x-dragoman-debug": "prompt, output, prompt_ids"}
    debug = ask(server, path, stream, headers, **fields)["debug"]
    assert debug["output"].startswith(f"<think>Hm.</think>\n{PARIS}")  # and a stop token
    assert "<|im_start|>user\ncall<|im_end|>" in debug["prompt"]
    [model] = server.app.runtime.services.models.list_loaded()
    assert debug["prompt_ids"] == model.engine.jobs[-1].prompt  # type: ignore[attr-defined]


@each_mode
def test_raw_output_is_not_cut_at_stop_strings(server: RunningServer, stream: bool) -> None:
    headers = {"x-dragoman-debug": "output"}
    answer = ask(server, "/v1/completions", stream, headers, stop=[" there"])
    assert answer["debug"]["output"].startswith("Hello there")


def test_several_choices_have_a_list_of_outputs(server: RunningServer) -> None:
    headers = {"x-dragoman-debug": "prompt,output"}
    body = {"prompt": ["a", "b"], "n": 2}
    debug = ask(server, "/v1/completions", False, headers, **body)["debug"]
    assert debug["prompt"] == ["a", "b"]
    assert [output[: len(TEXT)] for output in debug["output"]] == [TEXT] * 4


ADMIN, USER = ({"authorization": f"Bearer {name}"} for name in ("root", "user"))


@pytest.mark.parametrize(
    ("headers", "options", "status"),
    [
        (ADMIN, {}, 200),
        (USER, {}, 403),
        (USER, {"debug_header": True}, 200),
    ],
)
def test_debug_needs_permission(
    headers: dict[str, str], options: dict[str, Any], status: int
) -> None:
    keys = {"api_key": ("user",), "admin_key": ("root",)}
    headers = {**headers, "x-dragoman-debug": "prompt"}
    with serve_scripted(TEXT, **keys, **options) as server:
        url = f"{server.url}/v1/chat/completions"
        response = httpx.post(url, json=make_chat(), headers=headers)
    assert response.status_code == status
    assert ("debug" in response.json()) is (status == 200)
    if status == 403:
        assert "x-dragoman-debug" in response.json()["error"]["message"]


def test_vendor_clients_accept_answers_with_reports(server: RunningServer) -> None:
    headers = {
        "x-dragoman-debug": "prompt,output",
        "x-dragoman-timings": "1",
        "x-trace-level": "step",
    }
    url = f"{server.url}/v1"
    client = openai.OpenAI(base_url=url, api_key="x", default_headers=headers)
    chat: Any = make_chat()
    with client.chat.completions.stream(**chat) as events:
        assert events.get_final_completion().choices[0].message.content == TEXT
    with client.responses.stream(model="scripted", input="hi") as response_events:
        assert response_events.get_final_response().output_text == TEXT
    other = anthropic.Anthropic(base_url=server.url, api_key="x", default_headers=headers)
    with other.messages.stream(**chat, max_tokens=99) as message_events:
        assert message_events.get_final_text() == TEXT


# Which stop string or token ended a choice

END_TOKEN = 260  # of the scripted engine's tokenizer


@each_mode
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"stop": ["nothing", " there"]}, " there", " there"),
        ({"stop_token_ids": [ord(",")]}, ord(","), None),
        ({}, None, None),
        ({"max_tokens": 3}, None, None),
    ],
)
def test_choice_says_which_stop_ended_it(
    server: RunningServer,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    reason: str | int | None,
    text: str | None,
) -> None:
    choice = ask(server, path, stream, **fields)["choices"][0]
    assert choice["stop_reason"] == reason
    # as in SGLang, the token that ends an answer by itself counts there
    assert choice["matched_stop"] == (END_TOKEN if not fields else reason)
    assert choice.get("stop_str") == text
    assert choice["finish_reason"] == ("length" if "max_tokens" in fields else "stop")


class DraftingEngine(TracingEngine):
    """Decodes speculatively."""

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for choice in range(job.n):
            yield Step(choice, text="Hi ", tokens=1)
            yield Step(choice, text="you", tokens=1, finish="stop", drafts=(10, 7))


@each_mode
def test_timings_count_drafted_tokens(stream: bool) -> None:
    with serve_scripted(DraftingEngine()) as server:
        timings = ask(server, "/v1/chat/completions", stream, timings=True, n=2)["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (20, 14)
