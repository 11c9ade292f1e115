"""The Messages API on the wire, through the `anthropic` package.

The answers come from a scripted engine; the accumulator of the package adds up the streams, and its
strict mode checks every response against its types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from dragoman.protocols.messages import model_list
from dragoman.protocols.models import ModelCard
from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, serve_scripted

pytestmark = pytest.mark.slow

THINKER = TEMPLATES / "thinker.jinja"
CITY: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "weather", "description": "Tells the weather.", "input_schema": CITY},
    {"type": "custom", "name": "now", "input_schema": {"type": "object", "properties": {}}},
]
ENABLED: Any = {"type": "enabled", "budget_tokens": 1000}
PARIS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 😀", "days": 2}}\n</tool_call>'
)
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
REASONING = "<think>\nIs it 雨 there?\n</think>\n\n"
PARIS_CALL = ("weather", {"city": "Paris 😀", "days": 2})
REQUEST: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "say it."}],
}
# name in the prompt -> what the model writes
REPLIES = {
    "hello": "Hello there!",
    "reasoning": f"{REASONING}It is.",
    "only reasoning": REASONING,
    "unclosed": "<think>\nAnd then",
    "call": PARIS,
    "both": f"{REASONING}Let me look. {PARIS}",
    "parallel": f"{PARIS}\n{NOW}",
    "around": f"Before. {PARIS} After.",
    "nothing": "",
    "stop": "one END two",
}
CHUNKINGS: dict[str, dict[str, Any]] = {"words": {"chunks": "words"}, "bytes": {"chunks": "bytes"}}


def make_replies(**options: Any) -> list[Reply]:
    return [Reply(text, when=f"say {name}.", **options) for name, text in REPLIES.items()]


CLIENTS: list[Anthropic] = []  # clients of the running test


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def make_client(server: RunningServer, **options: Any) -> Anthropic:
    defaults: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    return Anthropic(base_url=server.url, _strict_response_validation=True, **defaults | options)


def open_client(server: RunningServer, **options: Any) -> Anthropic:
    """A client that is closed after the test."""
    CLIENTS.append(make_client(server, **options))
    return CLIENTS[-1]


@pytest.fixture(scope="module", params=CHUNKINGS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    engine = ScriptedEngine(
        make_replies(**CHUNKINGS[request.param]), tokens=request.param == "bytes"
    )
    with serve_scripted(engine, chat_template=THINKER) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Anthropic]:
    with make_client(server) as client:
        yield client


def create(client: Anthropic, prompt: str, **fields: Any) -> Any:
    """Create a message; check that its stream adds up to the same."""
    messages: Any = [{"role": "user", "content": f"say {prompt}."}]
    fields = {"model": "scripted", "max_tokens": 1000, "messages": messages} | fields
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    assert normalize(streamed) == normalize(whole)
    return whole


def normalize(message: Any) -> dict[str, Any]:
    """The part of a message that must not depend on streaming."""
    fields: dict[str, Any] = message.model_dump(exclude={"id"}, warnings=False)
    for block in fields["content"]:
        block.pop("parsed_output", None)
        if block["type"] == "tool_use":
            block["id"] = "call"
    return fields


def summarize(message: Any) -> tuple[str, str, list[Any]]:
    """Text, reasoning and calls, without surrounding whitespace."""
    blocks = message.content
    text = "".join(block.text for block in blocks if block.type == "text").strip()
    reasoning = "".join(block.thinking for block in blocks if block.type == "thinking").strip()
    calls = [(block.name, block.input) for block in blocks if block.type == "tool_use"]
    return text, reasoning, calls


# prompt, fields of the request -> text, reasoning, calls, stop reason
CASES: list[tuple[str, dict[str, Any], str, str, list[Any], str]] = [
    ("hello", {}, "Hello there!", "", [], "end_turn"),
    ("reasoning", {"thinking": ENABLED}, "It is.", "Is it 雨 there?", [], "end_turn"),
    ("reasoning", {"thinking": {"type": "adaptive"}}, "It is.", "Is it 雨 there?", [], "end_turn"),
    ("reasoning", {}, "It is.", "", [], "end_turn"),
    ("reasoning", {"thinking": {"type": "disabled"}}, "It is.", "", [], "end_turn"),
    ("only reasoning", {"thinking": ENABLED}, "", "Is it 雨 there?", [], "end_turn"),
    ("only reasoning", {}, "", "", [], "end_turn"),
    ("unclosed", {"thinking": ENABLED}, "", "And then", [], "end_turn"),
    ("call", {"tools": TOOLS}, "", "", [PARIS_CALL], "tool_use"),
    ("call", {"tools": []}, PARIS, "", [], "end_turn"),
    ("call", {"tools": TOOLS, "tool_choice": {"type": "none"}}, PARIS, "", [], "end_turn"),
    (
        "both",
        {"tools": TOOLS, "thinking": ENABLED},
        "Let me look.",
        "Is it 雨 there?",
        [PARIS_CALL],
        "tool_use",
    ),
    ("parallel", {"tools": TOOLS}, "", "", [PARIS_CALL, ("now", {})], "tool_use"),
    ("around", {"tools": TOOLS}, "Before.  After.", "", [PARIS_CALL], "tool_use"),
    ("nothing", {}, "", "", [], "end_turn"),
    ("stop", {"stop_sequences": ["END"]}, "one", "", [], "stop_sequence"),
    ("hello", {"max_tokens": 1}, "H", "", [], "max_tokens"),
]


@pytest.mark.parametrize(("prompt", "fields", "text", "reasoning", "calls", "reason"), CASES)
def test_text_reasoning_and_calls(
    client: Anthropic,
    prompt: str,
    fields: dict[str, Any],
    text: str,
    reasoning: str,
    calls: list[Any],
    reason: str,
) -> None:
    message = create(client, prompt, **fields)
    output, *rest = summarize(message)
    assert output.startswith(text) if reason == "max_tokens" else output == text
    assert rest == [reasoning, calls]
    assert message.stop_reason == reason
    assert message.stop_sequence == ("END" if reason == "stop_sequence" else None)
    assert message.model == "scripted"


@pytest.mark.parametrize("limit", range(1, 140, 7))
def test_answer_can_be_cut_off_anywhere(client: Anthropic, limit: int) -> None:
    message = create(client, "both", tools=TOOLS, thinking=ENABLED, max_tokens=limit)
    assert message.stop_reason in ("max_tokens", "tool_use")


def test_beta_client_of_the_sdk(client: Anthropic) -> None:
    message = client.beta.messages.create(
        model="scripted",
        max_tokens=1000,
        messages=[{"role": "user", "content": "say both."}],
        tools=TOOLS,
        thinking=ENABLED,
        betas=["interleaved-thinking-2025-05-14", "unknown-2030-01-01"],
    )
    assert summarize(message)[2] == [PARIS_CALL]


# Usage


def test_usage_equals_the_token_count() -> None:
    engine = ScriptedEngine("Hello.", tokens=True, cached=7)
    fields: dict[str, Any] = {
        "model": "scripted",
        "messages": REQUEST["messages"],
        "system": "Be kind.",
        "tools": TOOLS,
    }
    with serve_scripted(engine, chat_template=THINKER) as server, open_client(server) as client:
        count = client.messages.count_tokens(**fields).input_tokens
        assert client.beta.messages.count_tokens(**fields).input_tokens == count
        message = create(client, "it", **fields)
        bare = client.messages.count_tokens(model="scripted", messages=REQUEST["messages"])
        assert count > bare.input_tokens
        usage = message.usage
        assert usage.cache_read_input_tokens == 7
        assert usage.cache_creation_input_tokens == 0
        assert usage.input_tokens + 7 == count == len(engine.jobs[0].prompt)
        assert usage.output_tokens == len("Hello.")
        with client.messages.stream(max_tokens=5, **fields) as stream:
            first = next(iter(stream))
        assert first.type == "message_start"
        assert first.message.usage.input_tokens == count


def test_max_tokens_zero_only_prefills() -> None:
    engine = ScriptedEngine("Hello.", tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = create(open_client(server), "it", max_tokens=0)
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert message.usage.input_tokens == len(engine.jobs[0].prompt)
    assert message.usage.output_tokens == 0
    assert engine.jobs[0].sampling.max_tokens == 1


def test_end_of_the_context_differs_from_max_tokens() -> None:
    engine = ScriptedEngine("word " * 100, tokens=True, context=200)
    with serve_scripted(engine, chat_template=THINKER) as server:
        client = open_client(server)
        full, cut = create(client, "it", max_tokens=20_000), create(client, "it", max_tokens=5)
    assert full.stop_reason == "model_context_window_exceeded"
    assert cut.stop_reason == "max_tokens"


def test_max_tokens_of_the_operator_is_not_the_end_of_the_context() -> None:
    engine = ScriptedEngine("word " * 100, tokens=True)
    sampling = {"max_tokens": {"override": 4, "force": True}}
    with serve_scripted(engine, chat_template=THINKER, sampling=sampling) as server:
        message = create(open_client(server), "it", max_tokens=20)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 4)


def test_reasoning_is_counted_even_if_hidden() -> None:
    with serve_scripted(
        ScriptedEngine(REPLIES["reasoning"], tokens=True), chat_template=THINKER
    ) as server:
        client = open_client(server)
        visible, hidden = create(client, "it", thinking=ENABLED), create(client, "it")
        for message in (visible, hidden):
            assert message.usage.output_tokens_details.thinking_tokens > 0
        assert visible.usage.output_tokens == hidden.usage.output_tokens


def test_max_tokens_beyond_the_context_is_clamped() -> None:
    engine = ScriptedEngine("Hello.", tokens=True, context=200)
    with serve_scripted(engine, chat_template=THINKER) as server, open_client(server) as client:
        assert summarize(create(client, "it", max_tokens=20_000))[0] == "Hello."
        with pytest.raises(anthropic.BadRequestError) as caught:
            create(client, "it" * 200, max_tokens=20_000)
    match = re.search(
        r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", caught.value.api_message or ""
    )
    assert match is not None
    assert int(match[1]) > int(match[2]) == 200


# Conversations


def get_prompts(engine: ScriptedEngine) -> list[str]:
    """The prompts that the engine got."""
    return [str(job.prompt) for job in engine.jobs]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_tool_loop_with_reasoning(display: str) -> None:
    engine = ScriptedEngine([Reply("Hm.</think>It rains.", when="Well?"), Reply(REPLIES["both"])])
    thinking: Any = ENABLED | {"display": display}
    with serve_scripted(engine, chat_template=THINKER) as server, open_client(server) as client:
        history: list[Any] = [{"role": "user", "content": "Weather?"}]
        first = create(client, "x", messages=history, tools=TOOLS, thinking=thinking)
        assert bool(summarize(first)[1]) is (display == "summarized")
        call = next(block for block in first.content if block.type == "tool_use")
        results: Any = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "rain"},
            {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
        ]
        history += [first.to_param(), {"role": "user", "content": results}]
        second = create(client, "x", messages=history, tools=TOOLS, thinking=thinking)
    assert summarize(second)[0] == "It rains."
    rendered = get_prompts(engine)[-1]
    assert "<think>\nIs it 雨 there?\n</think>" in rendered
    assert '"city": "Paris' in rendered
    assert rendered.index("rain<|im_end|>") < rendered.index("Well?")


def test_reasoning_signed_for_another_key_is_dropped() -> None:
    engine = ScriptedEngine([Reply("Yes.", when="again"), Reply(REPLIES["reasoning"])])
    with serve_scripted(engine, chat_template=THINKER, api_key=("mine", "theirs")) as server:
        first = create(open_client(server, api_key="mine"), "x", thinking=ENABLED)
        history: list[Any] = [
            REQUEST["messages"][0],
            first.to_param(),
            {"role": "user", "content": "again"},
        ]
        fields: Any = REQUEST | {"messages": history}
        for key, is_kept in (("mine", True), ("theirs", False)):
            client = open_client(server, api_key=key)
            response = client.messages.with_raw_response.create(**fields)
            assert ("Is it 雨 there?" in get_prompts(engine)[-1]) is is_kept
            assert ("signature" in response.headers.get("x-dragoman-warning", "")) is not is_kept


def test_billing_header_does_not_change_the_prompt(server: RunningServer) -> None:
    engine = ScriptedEngine("Hello.")
    with serve_scripted(engine, chat_template=THINKER) as other, open_client(other) as client:
        for version in ("1", "2"):
            system: Any = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version}"},
                {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
            ]
            client.messages.create(**REQUEST, system=system)
    assert len(set(get_prompts(engine))) == 1
    assert "Be kind." in get_prompts(engine)[0]
    assert "billing" not in get_prompts(engine)[0]


def test_answer_continues_the_last_assistant_message() -> None:
    engine = ScriptedEngine("B)")
    messages: Any = [
        {"role": "user", "content": "A or B?"},
        {"role": "assistant", "content": "The answer is ("},
    ]
    with serve_scripted(engine, chat_template=THINKER) as server, open_client(server) as client:
        assert summarize(create(client, "x", messages=messages))[0] == "B)"
        assert get_prompts(engine)[-1].endswith("The answer is (")
        response = client.messages.with_raw_response.create(
            **REQUEST | {"messages": messages}, tools=TOOLS
        )
        assert "schemas" in response.headers["x-dragoman-warning"]


def test_system_message_inside_the_conversation_is_decoded() -> None:
    engine = ScriptedEngine("Hello.")
    messages: Any = [*REQUEST["messages"], {"role": "system", "content": "Mind the time."}]
    with serve_scripted(engine, chat_template=THINKER) as server, open_client(server) as client:
        create(client, "x", messages=messages)
    assert "Mind the time." in get_prompts(engine)[0]


# Agents

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
AGENT: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 32_000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "<reminder>"}, {"type": "text", "text": "go"}],
        },
        {"role": "system", "content": "Files changed."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "now", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": "noon",
                    "is_error": False,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
    "tools": TOOLS,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": '{"device_id":"x"}'},
}


@pytest.mark.parametrize("template", [THINKER, PLAIN, None])
def test_request_of_an_agent_works_with_any_model(template: Any, tmp_path: Path) -> None:
    """An option that the model does not support is a warning."""
    if isinstance(template, str):
        (tmp_path / "t.jinja").write_text(template)
        template = tmp_path / "t.jinja"
    options = {} if template is None else {"chat_template": template}
    engine = ScriptedEngine("Hm.</think>It is noon.", tokens=True, context=4000)
    headers = {
        "authorization": "Bearer x",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }
    with serve_scripted(engine, **options) as server:
        url = f"{server.url}/v1/messages?beta=true"
        response = httpx.post(url, json=AGENT, headers=headers)
        assert response.status_code == 200, response.text
        assert '"stop_reason":"end_turn"' in response.text
        has_warning = "output_config.effort" in response.headers.get("x-dragoman-warning", "")
        assert has_warning is (template is None or template != THINKER)
        assert response.headers["request-id"]
        prompt = engine.jobs[0].prompt
        assert isinstance(prompt, list)
        rendered = engine.tokenizer.decode(prompt) if engine.tokenizer else ""
        assert "You are an agent." in rendered
        assert "noon" in rendered
        assert "billing" not in rendered
        count = httpx.post(f"{server.url}/v1/messages/count_tokens?beta=true", json=AGENT)
        assert count.json() == {"input_tokens": len(prompt)}


# Constraints


class Trip(BaseModel):
    city: str
    days: int


def test_parsed_output() -> None:
    script = '{"city": "Rom", "days": 2}'
    with serve_scripted(
        ScriptedEngine(script, check_grammars=True), chat_template=THINKER
    ) as server:
        client = open_client(server)
        message = client.messages.parse(**REQUEST, output_format=Trip)
        assert message.parsed_output == Trip(city="Rom", days=2)
        with client.messages.stream(**REQUEST, output_format=Trip) as stream:
            assert stream.get_final_message().parsed_output == Trip(city="Rom", days=2)
        with_tools = client.messages.parse(**REQUEST, output_format=Trip, tools=TOOLS)
        assert with_tools.parsed_output == Trip(city="Rom", days=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "weather"}},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
    ],
)
def test_forced_tool_calls(fields: Any) -> None:
    with serve_scripted(
        ScriptedEngine(PARIS, check_grammars=True), chat_template=THINKER
    ) as server:
        message = create(open_client(server), "x", tools=TOOLS, **fields)
    assert summarize(message)[2] == [PARIS_CALL]
    assert message.stop_reason == "tool_use"


def test_unenforceable_single_call_is_rejected_by_its_name() -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    with (
        serve_scripted(ScriptedEngine(PARIS), chat_template=THINKER) as server,
        pytest.raises(anthropic.BadRequestError) as caught,
    ):
        open_client(server).messages.create(**REQUEST, tools=TOOLS, tool_choice=choice)
    assert "tool_choice.disable_parallel_tool_use" in (caught.value.api_message or "")


def test_server_tools_of_the_vendor_are_ignored_with_a_warning() -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    with (
        serve_scripted(ScriptedEngine("Hello."), chat_template=THINKER) as server,
        open_client(server) as client,
    ):
        response = client.messages.with_raw_response.create(**REQUEST, tools=[search, *TOOLS])
        assert "web_search_20250305" in response.headers["x-dragoman-warning"]
        assert summarize(response.parse())[0] == "Hello."


# Errors


@pytest.mark.parametrize(
    ("fields", "kind", "name"),
    [
        ({"model": "nobody"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_errors_raise_the_classes_of_the_sdk(
    client: Anthropic, fields: Any, kind: type[anthropic.APIStatusError], name: str, streamed: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.messages.create(**REQUEST | fields, stream=streamed)
    error = caught.value
    assert error.type == name
    assert error.request_id
    assert isinstance(error.body, dict)
    assert error.body["request_id"] == error.request_id
    assert error.body["type"] == "error"


def test_max_tokens_is_required(server: RunningServer) -> None:
    body = {name: value for name, value in REQUEST.items() if name != "max_tokens"}
    response = httpx.post(f"{server.url}/v1/messages", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "max_tokens: Field required"


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_keys_and_body_limit(header: str) -> None:
    with serve_scripted("Hello.", api_key=("secret",), body_limit=500) as server:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            open_client(server, api_key="wrong").messages.create(**REQUEST)
        assert caught.value.type == "authentication_error"
        with pytest.raises(anthropic.AuthenticationError) as caught_list:
            open_client(server, api_key="wrong").models.list()
        assert caught_list.value.type == "authentication_error"
        assert caught.value.request_id
        key = {"api_key": "secret"} if header == "x-api-key" else {"auth_token": "secret"}
        client = open_client(server, **{"api_key": None} | key)
        assert summarize(client.messages.create(**REQUEST))[0] == "Hello."
        with pytest.raises(anthropic.ContentTooLargeError) as large:
            client.messages.create(**REQUEST, system="x" * 1000)
        assert isinstance(large.value.body, dict)
        assert large.value.body["error"]["type"] == "request_too_large"


def test_unknown_paths_get_errors_of_this_api(server: RunningServer) -> None:
    for path, method, status in (("/v1/messages", "GET", 405), ("/v1/messages/x", "GET", 404)):
        response = httpx.request(method, f"{server.url}{path}")
        assert response.status_code == status
        assert response.json()["type"] == "error"


def test_engine_that_is_down_gets_529() -> None:
    engine = ScriptedEngine("Hello.")
    with serve_scripted(engine, chat_template=THINKER) as server:
        engine.is_closed = True
        with pytest.raises(anthropic.OverloadedError) as caught:
            open_client(server).messages.create(**REQUEST)
        assert caught.value.type == "overloaded_error"
        assert "retry-after" in caught.value.response.headers


def test_failing_stream_raises() -> None:
    engine = ScriptedEngine(Reply("Half an ans", raise_at=2))
    with serve_scripted(engine, chat_template=THINKER) as server:
        stream = open_client(server).messages.create(**REQUEST, stream=True)
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)
        assert caught.value.type == "api_error"
        with pytest.raises(anthropic.InternalServerError) as whole:
            open_client(server).messages.create(**REQUEST)
        assert whole.value.type == "api_error"


# Streams on the wire


def test_silent_stream_gets_ping_events() -> None:
    engine = ScriptedEngine(Reply("done"), pace=None)
    body = REQUEST | {"stream": True}
    with (
        serve_scripted(engine, patience=0.02, ping=0.05) as server,
        httpx.stream("POST", f"{server.url}/v1/messages?beta=true", json=body) as response,
    ):
        lines = response.iter_lines()
        received = [next(lines) for _ in range(12)]
    assert received[0] == "event: message_start"
    assert received.count("event: ping") >= 2
    assert received.count('data: {"type":"ping"}') >= 2
    assert not any(line.startswith(":") for line in received)


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages?beta=true"])
def test_raw_frames(server: RunningServer, path: str) -> None:
    body = REQUEST | {"messages": [{"role": "user", "content": "say hello."}], "stream": True}
    response = httpx.post(f"{server.url}{path}", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    for frame in frames:
        event, data = frame.split("\n")
        assert event == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in response.text


def test_head_request_of_agents(server: RunningServer) -> None:
    assert httpx.head(server.url).status_code == 200


# Models


def test_models_with_the_sdk(client: Anthropic) -> None:
    [model] = list(client.models.list())
    assert model.id == "scripted"
    assert model.type == "model"
    assert client.models.retrieve("scripted") == model
    assert [item.id for item in client.models.list(limit=1)] == ["scripted"]
    assert list(client.models.list(after_id="scripted")) == []
    assert list(client.models.list(before_id="scripted")) == []
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("nobody/else:7b")
    assert caught.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        client.models.list(limit=0)
    with pytest.raises(anthropic.BadRequestError):
        client.models.list(after_id="nobody")


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "d"}, "e", False),
        ({"limit": "2", "before_id": "e"}, "cd", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
        ({"after_id": "e"}, "", False),
        ({"after_id": "a", "before_id": "d"}, "bc", False),
    ],
)
def test_pages_of_models(query: dict[str, str], names: str, has_more: bool) -> None:
    cards = [ModelCard(id=name, created=0) for name in "abcde"]
    response = json.loads(model_list.encode_model_page(cards, query))
    assert "".join(model["id"] for model in response["data"]) == names
    assert response["has_more"] is has_more
    assert response["first_id"] == (names[:1] or None)
    assert response["last_id"] == (names[-1:] or None)
