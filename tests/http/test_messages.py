"""The Messages dialect on the line, as the `anthropic` package speaks it.

The answers come from a scripted engine; the package's own accumulator adds up the streams, and its
strict mode checks every answer against its types.
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

from dragoman.protocols.messages import model_list as listing
from dragoman.protocols.models import ModelCard
from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, serve_scripted

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
THOUGHT = "<think>\nIs it 雨 there?\n</think>\n\n"
CALLED = ("weather", {"city": "Paris 😀", "days": 2})
REQUEST: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "say it."}],
}
# what is asked -> what the model says
SAYS = {
    "hello": "Hello there!",
    "thought": f"{THOUGHT}It is.",
    "only thought": THOUGHT,
    "unclosed": "<think>\nAnd then",
    "call": PARIS,
    "both": f"{THOUGHT}Let me look. {PARIS}",
    "parallel": f"{PARIS}\n{NOW}",
    "around": f"Before. {PARIS} After.",
    "nothing": "",
    "stop": "one END two",
}
WAYS: dict[str, dict[str, Any]] = {"words": {"chunks": "words"}, "bytes": {"chunks": "bytes"}}


def replies(**how: Any) -> list[Reply]:
    return [Reply(text, when=f"say {name}.", **how) for name, text in SAYS.items()]


OPEN: list[Anthropic] = []  # clients of the test that runs


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def connected(server: RunningServer, **more: Any) -> Anthropic:
    usual: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    return Anthropic(base_url=server.url, _strict_response_validation=True, **usual | more)


def speaking(server: RunningServer, **more: Any) -> Anthropic:
    """A client that is closed when its test is over."""
    OPEN.append(connected(server, **more))
    return OPEN[-1]


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    engine = ScriptedEngine(replies(**WAYS[request.param]), tokens=request.param == "bytes")
    with serve_scripted(engine, chat_template=THINKER) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Anthropic]:
    with connected(server) as made:
        yield made


def ask(client: Anthropic, said: str, **fields: Any) -> Any:
    """The answer to a request, after checking that its stream adds up to the same."""
    messages: Any = [{"role": "user", "content": f"say {said}."}]
    fields = {"model": "scripted", "max_tokens": 1000, "messages": messages} | fields
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    assert plain(streamed) == plain(whole)
    return whole


def plain(message: Any) -> dict[str, Any]:
    """What of a message must not depend on how it came."""
    told: dict[str, Any] = message.model_dump(exclude={"id"}, warnings=False)
    for block in told["content"]:
        block.pop("parsed_output", None)
        if block["type"] == "tool_use":
            block["id"] = "call"
    return told


def told(message: Any) -> tuple[str, str, list[Any]]:
    """Text, thoughts and calls, white space around them apart."""
    blocks = message.content
    said = "".join(block.text for block in blocks if block.type == "text").strip()
    thoughts = "".join(block.thinking for block in blocks if block.type == "thinking").strip()
    return said, thoughts, [(one.name, one.input) for one in blocks if one.type == "tool_use"]


# name, fields of the request -> text, thoughts, calls, why it ended
CASES: list[tuple[str, dict[str, Any], str, str, list[Any], str]] = [
    ("hello", {}, "Hello there!", "", [], "end_turn"),
    ("thought", {"thinking": ENABLED}, "It is.", "Is it 雨 there?", [], "end_turn"),
    ("thought", {"thinking": {"type": "adaptive"}}, "It is.", "Is it 雨 there?", [], "end_turn"),
    ("thought", {}, "It is.", "", [], "end_turn"),
    ("thought", {"thinking": {"type": "disabled"}}, "It is.", "", [], "end_turn"),
    ("only thought", {"thinking": ENABLED}, "", "Is it 雨 there?", [], "end_turn"),
    ("only thought", {}, "", "", [], "end_turn"),
    ("unclosed", {"thinking": ENABLED}, "", "And then", [], "end_turn"),
    ("call", {"tools": TOOLS}, "", "", [CALLED], "tool_use"),
    ("call", {"tools": []}, PARIS, "", [], "end_turn"),
    ("call", {"tools": TOOLS, "tool_choice": {"type": "none"}}, PARIS, "", [], "end_turn"),
    (
        "both",
        {"tools": TOOLS, "thinking": ENABLED},
        "Let me look.",
        "Is it 雨 there?",
        [CALLED],
        "tool_use",
    ),
    ("parallel", {"tools": TOOLS}, "", "", [CALLED, ("now", {})], "tool_use"),
    ("around", {"tools": TOOLS}, "Before.  After.", "", [CALLED], "tool_use"),
    ("nothing", {}, "", "", [], "end_turn"),
    ("stop", {"stop_sequences": ["END"]}, "one", "", [], "stop_sequence"),
    ("hello", {"max_tokens": 1}, "H", "", [], "max_tokens"),
]


@pytest.mark.parametrize(("said", "fields", "text", "thoughts", "calls", "reason"), CASES)
def test_answers(
    client: Anthropic,
    said: str,
    fields: dict[str, Any],
    text: str,
    thoughts: str,
    calls: list[Any],
    reason: str,
) -> None:
    message = ask(client, said, **fields)
    found, *rest = told(message)
    assert found.startswith(text) if reason == "max_tokens" else found == text
    assert rest == [thoughts, calls]
    assert message.stop_reason == reason
    assert message.stop_sequence == ("END" if reason == "stop_sequence" else None)
    assert message.model == "scripted"


@pytest.mark.parametrize("limit", range(1, 140, 7))
def test_an_answer_that_is_cut_off_anywhere(client: Anthropic, limit: int) -> None:
    message = ask(client, "both", tools=TOOLS, thinking=ENABLED, max_tokens=limit)
    assert message.stop_reason in ("max_tokens", "tool_use")


def test_the_beta_part_of_the_package(client: Anthropic) -> None:
    message = client.beta.messages.create(
        model="scripted",
        max_tokens=1000,
        messages=[{"role": "user", "content": "say both."}],
        tools=TOOLS,
        thinking=ENABLED,
        betas=["interleaved-thinking-2025-05-14", "never-heard-of-2030-01-01"],
    )
    assert told(message)[2] == [CALLED]


# Cost


def test_what_it_costs_is_what_is_counted() -> None:
    engine = ScriptedEngine("Hello.", tokens=True, cached=7)
    fields: dict[str, Any] = {
        "model": "scripted",
        "messages": REQUEST["messages"],
        "system": "Be kind.",
        "tools": TOOLS,
    }
    with serve_scripted(engine, chat_template=THINKER) as server, speaking(server) as client:
        counted = client.messages.count_tokens(**fields).input_tokens
        assert client.beta.messages.count_tokens(**fields).input_tokens == counted
        message = ask(client, "it", **fields)
        bare = client.messages.count_tokens(model="scripted", messages=REQUEST["messages"])
        assert counted > bare.input_tokens
        usage = message.usage
        assert usage.cache_read_input_tokens == 7
        assert usage.cache_creation_input_tokens == 0
        assert usage.input_tokens + 7 == counted == len(engine.jobs[0].prompt)
        assert usage.output_tokens == len("Hello.")
        with client.messages.stream(max_tokens=5, **fields) as stream:
            first = next(iter(stream))
        assert first.type == "message_start"
        assert first.message.usage.input_tokens == counted


def test_a_prompt_can_be_read_ahead() -> None:
    engine = ScriptedEngine("Hello.", tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = ask(speaking(server), "it", max_tokens=0)
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert message.usage.input_tokens == len(engine.jobs[0].prompt)
    assert message.usage.output_tokens == 0
    assert engine.jobs[0].sampling.max_tokens == 1


def test_the_end_of_the_context_is_told_from_a_limit() -> None:
    engine = ScriptedEngine("word " * 100, tokens=True, context=200)
    with serve_scripted(engine, chat_template=THINKER) as server:
        client = speaking(server)
        full, cut = ask(client, "it", max_tokens=20_000), ask(client, "it", max_tokens=5)
    assert full.stop_reason == "model_context_window_exceeded"
    assert cut.stop_reason == "max_tokens"


def test_thoughts_are_counted_told_or_not() -> None:
    with serve_scripted(
        ScriptedEngine(SAYS["thought"], tokens=True), chat_template=THINKER
    ) as server:
        client = speaking(server)
        shown, hidden = ask(client, "it", thinking=ENABLED), ask(client, "it")
        for message in (shown, hidden):
            assert message.usage.output_tokens_details.thinking_tokens > 0
        assert shown.usage.output_tokens == hidden.usage.output_tokens


def test_more_than_the_context_is_less() -> None:
    engine = ScriptedEngine("Hello.", tokens=True, context=200)
    with serve_scripted(engine, chat_template=THINKER) as server, speaking(server) as client:
        assert told(ask(client, "it", max_tokens=20_000))[0] == "Hello."
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(client, "it" * 200, max_tokens=20_000)
    found = re.search(
        r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", caught.value.api_message or ""
    )
    assert found is not None
    assert int(found[1]) > int(found[2]) == 200


# Loops


def prompts(engine: ScriptedEngine) -> list[str]:
    """What the model was shown, request by request."""
    return [str(job.prompt) for job in engine.jobs]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_loop_with_thoughts(display: str) -> None:
    engine = ScriptedEngine([Reply("Hm.</think>It rains.", when="Well?"), Reply(SAYS["both"])])
    thinking: Any = ENABLED | {"display": display}
    with serve_scripted(engine, chat_template=THINKER) as server, speaking(server) as client:
        history: list[Any] = [{"role": "user", "content": "Weather?"}]
        first = ask(client, "x", messages=history, tools=TOOLS, thinking=thinking)
        assert bool(told(first)[1]) is (display == "summarized")
        call = next(block for block in first.content if block.type == "tool_use")
        results: Any = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "rain"},
            {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
        ]
        history += [first.to_param(), {"role": "user", "content": results}]
        second = ask(client, "x", messages=history, tools=TOOLS, thinking=thinking)
    assert told(second)[0] == "It rains."
    shown = prompts(engine)[-1]
    assert "<think>\nIs it 雨 there?\n</think>" in shown
    assert '"city": "Paris' in shown
    assert shown.index("rain<|im_end|>") < shown.index("Well?")


def test_a_thought_of_somebody_elses_is_not_shown() -> None:
    engine = ScriptedEngine([Reply("Yes.", when="again"), Reply(SAYS["thought"])])
    with serve_scripted(engine, chat_template=THINKER, api_key=("mine", "theirs")) as server:
        first = ask(speaking(server, api_key="mine"), "x", thinking=ENABLED)
        history: list[Any] = [
            REQUEST["messages"][0],
            first.to_param(),
            {"role": "user", "content": "again"},
        ]
        fields: Any = REQUEST | {"messages": history}
        for key, shown in (("mine", True), ("theirs", False)):
            client = speaking(server, api_key=key)
            answer = client.messages.with_raw_response.create(**fields)
            assert ("Is it 雨 there?" in prompts(engine)[-1]) is shown
            assert ("signature" in answer.headers.get("x-dragoman-warning", "")) is not shown


def test_the_billing_header_does_not_change_the_prompt(server: RunningServer) -> None:
    engine = ScriptedEngine("Hello.")
    with serve_scripted(engine, chat_template=THINKER) as other, speaking(other) as client:
        for version in ("1", "2"):
            system: Any = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version}"},
                {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
            ]
            client.messages.create(**REQUEST, system=system)
    assert len(set(prompts(engine))) == 1
    assert "Be kind." in prompts(engine)[0]
    assert "billing" not in prompts(engine)[0]


def test_an_answer_goes_on_with_the_last_message() -> None:
    engine = ScriptedEngine("B)")
    messages: Any = [
        {"role": "user", "content": "A or B?"},
        {"role": "assistant", "content": "The answer is ("},
    ]
    with serve_scripted(engine, chat_template=THINKER) as server, speaking(server) as client:
        assert told(ask(client, "x", messages=messages))[0] == "B)"
        assert prompts(engine)[-1].endswith("The answer is (")
        answer = client.messages.with_raw_response.create(
            **REQUEST | {"messages": messages}, tools=TOOLS
        )
        assert "schemas" in answer.headers["x-dragoman-warning"]


def test_system_messages_amid_the_conversation() -> None:
    engine = ScriptedEngine("Hello.")
    messages: Any = [*REQUEST["messages"], {"role": "system", "content": "Mind the time."}]
    with serve_scripted(engine, chat_template=THINKER) as server, speaking(server) as client:
        ask(client, "x", messages=messages)
    assert "Mind the time." in prompts(engine)[0]


# An agent

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
def test_what_agents_send_is_answered_by_any_model(template: Any, tmp_path: Path) -> None:
    """A wish that the model cannot grant is a warning."""
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
        answer = httpx.post(url, json=AGENT, headers=headers)
        assert answer.status_code == 200, answer.text
        assert '"stop_reason":"end_turn"' in answer.text
        warned = "output_config.effort" in answer.headers.get("x-dragoman-warning", "")
        assert warned is (template is None or template != THINKER)
        assert answer.headers["request-id"]
        prompt = engine.jobs[0].prompt
        assert isinstance(prompt, list)
        shown = engine.tokenizer.decode(prompt) if engine.tokenizer else ""
        assert "You are an agent." in shown
        assert "noon" in shown
        assert "billing" not in shown
        count = httpx.post(f"{server.url}/v1/messages/count_tokens?beta=true", json=AGENT)
        assert count.json() == {"input_tokens": len(prompt)}


# Guarantees


class Trip(BaseModel):
    city: str
    days: int


def test_typed_answers() -> None:
    script = '{"city": "Rom", "days": 2}'
    with serve_scripted(
        ScriptedEngine(script, check_grammars=True), chat_template=THINKER
    ) as server:
        client = speaking(server)
        message = client.messages.parse(**REQUEST, output_format=Trip)
        assert message.parsed_output == Trip(city="Rom", days=2)
        with client.messages.stream(**REQUEST, output_format=Trip) as stream:
            assert stream.get_final_message().parsed_output == Trip(city="Rom", days=2)
        beside = client.messages.parse(**REQUEST, output_format=Trip, tools=TOOLS)
        assert beside.parsed_output == Trip(city="Rom", days=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "weather"}},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
    ],
)
def test_calls_that_must_be_made(fields: Any) -> None:
    with serve_scripted(
        ScriptedEngine(PARIS, check_grammars=True), chat_template=THINKER
    ) as server:
        message = ask(speaking(server), "x", tools=TOOLS, **fields)
    assert told(message)[2] == [CALLED]
    assert message.stop_reason == "tool_use"


def test_a_single_call_that_cannot_be_had_is_refused_by_its_name() -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    with (
        serve_scripted(ScriptedEngine(PARIS), chat_template=THINKER) as server,
        pytest.raises(anthropic.BadRequestError) as caught,
    ):
        speaking(server).messages.create(**REQUEST, tools=TOOLS, tool_choice=choice)
    assert "tool_choice.disable_parallel_tool_use" in (caught.value.api_message or "")


def test_what_the_vendors_servers_do_is_left_out() -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    with (
        serve_scripted(ScriptedEngine("Hello."), chat_template=THINKER) as server,
        speaking(server) as client,
    ):
        answer = client.messages.with_raw_response.create(**REQUEST, tools=[search, *TOOLS])
        assert "web_search_20250305" in answer.headers["x-dragoman-warning"]
        assert told(answer.parse())[0] == "Hello."


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
def test_mistakes_raise_their_classes(
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


def test_a_limit_is_required(server: RunningServer) -> None:
    body = {name: value for name, value in REQUEST.items() if name != "max_tokens"}
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "max_tokens: Field required"


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_keys(header: str) -> None:
    with serve_scripted("Hello.", api_key=("secret",), body_limit=500) as server:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            speaking(server, api_key="wrong").messages.create(**REQUEST)
        assert caught.value.type == "authentication_error"
        with pytest.raises(anthropic.AuthenticationError) as listing:
            speaking(server, api_key="wrong").models.list()
        assert listing.value.type == "authentication_error"
        assert caught.value.request_id
        said = {"api_key": "secret"} if header == "x-api-key" else {"auth_token": "secret"}
        client = speaking(server, **{"api_key": None} | said)
        assert told(client.messages.create(**REQUEST))[0] == "Hello."
        with pytest.raises(anthropic.ContentTooLargeError) as large:
            client.messages.create(**REQUEST, system="x" * 1000)
        assert isinstance(large.value.body, dict)
        assert large.value.body["error"]["type"] == "request_too_large"


def test_what_is_not_there_in_this_dialects_words(server: RunningServer) -> None:
    for path, method, status in (("/v1/messages", "GET", 405), ("/v1/messages/x", "GET", 404)):
        answer = httpx.request(method, f"{server.url}{path}")
        assert answer.status_code == status
        assert answer.json()["type"] == "error"


def test_an_engine_that_is_down_is_overload() -> None:
    engine = ScriptedEngine("Hello.")
    with serve_scripted(engine, chat_template=THINKER) as server:
        engine.closed = True
        with pytest.raises(anthropic.OverloadedError) as caught:
            speaking(server).messages.create(**REQUEST)
        assert caught.value.type == "overloaded_error"
        assert "retry-after" in caught.value.response.headers


def test_a_stream_that_breaks_raises() -> None:
    engine = ScriptedEngine(Reply("Half an ans", raise_at=2))
    with serve_scripted(engine, chat_template=THINKER) as server:
        stream = speaking(server).messages.create(**REQUEST, stream=True)
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)
        assert caught.value.type == "api_error"
        with pytest.raises(anthropic.InternalServerError) as whole:
            speaking(server).messages.create(**REQUEST)
        assert whole.value.type == "api_error"


# The line itself


def test_a_silent_stream_is_pinged() -> None:
    engine = ScriptedEngine(Reply("done"), pace=None)
    body = REQUEST | {"stream": True}
    with (
        serve_scripted(engine, patience=0.02, ping=0.05) as server,
        httpx.stream("POST", f"{server.url}/v1/messages?beta=true", json=body) as answer,
    ):
        lines = answer.iter_lines()
        seen = [next(lines) for _ in range(12)]
    assert seen[0] == "event: message_start"
    assert seen.count("event: ping") >= 2
    assert seen.count('data: {"type":"ping"}') >= 2
    assert not any(line.startswith(":") for line in seen)


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages?beta=true"])
def test_frames_as_they_are(server: RunningServer, path: str) -> None:
    body = REQUEST | {"messages": [{"role": "user", "content": "say hello."}], "stream": True}
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    for frame in frames:
        event, data = frame.split("\n")
        assert event == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in answer.text


def test_the_probe_of_agents(server: RunningServer) -> None:
    assert httpx.head(server.url).status_code == 200


# Models


def test_models_as_the_package_lists_them(client: Anthropic) -> None:
    [model] = list(client.models.list())
    assert model.id == "scripted"
    assert model.type == "model"
    assert client.models.retrieve("scripted") == model
    assert [one.id for one in client.models.list(limit=1)] == ["scripted"]
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
    ("query", "names", "more"),
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
def test_a_page_of_models(query: dict[str, str], names: str, more: bool) -> None:
    cards = [ModelCard(id=name, created=0) for name in "abcde"]
    answer = json.loads(listing.encode_model_page(cards, query))
    assert "".join(model["id"] for model in answer["data"]) == names
    assert answer["has_more"] is more
    assert answer["first_id"] == (names[:1] or None)
    assert answer["last_id"] == (names[-1:] or None)
