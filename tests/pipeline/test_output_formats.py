"""Reasoning and tool calls over HTTP: a stream adds up to the whole answer.

The answers come from a scripted engine that cuts its text in several ways; the `openai` client's
own accumulator adds up the streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

import dragoman
from dragoman import config, runtime
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.library import OutputParser
from dragoman.testing import Reply, ScriptedEngine
from tests.support.scripted_chats import (
    BROKEN,
    CLOSE,
    OTHER,
    PARIS,
    PARIS_CALL,
    TEXTS,
    THINKER,
    TOOLS,
    ask_both_ways,
    list_deltas,
    normalize,
    parse_calls,
    post,
)
from tests.support.serving import RunningServer, parse_events, serve_scripted

pytestmark = pytest.mark.slow

# name, request fields -> content, reasoning, calls, finish; without whitespace around the text
CASES: list[tuple[str, dict[str, Any], str, str, list[Any], str]] = [
    ("reasoning", {}, "It is.", "Is it 雨 there?", [], "stop"),
    ("reasoning", {"tools": openai.omit}, "It is.", "Is it 雨 there?", [], "stop"),
    # no content follows the reasoning, not even whitespace
    ("only reasoning", {}, "", "Is it 雨 there?", [], "stop"),
    ("unclosed", {}, "", "And then", [], "stop"),
    ("call", {}, "", "", [PARIS_CALL], "tool_calls"),
    ("prose", {}, "Let me look.", "", [PARIS_CALL], "tool_calls"),
    ("both", {}, "Let me look.", "Is it 雨 there?", [PARIS_CALL], "tool_calls"),
    # as many calls as there are blocks
    (
        "parallel",
        {},
        "",
        "",
        [PARIS_CALL, ("now", {}), ("weather", {"city": "02134"})],
        "tool_calls",
    ),
    ("undeclared", {}, f"Well. {OTHER}", "", [], "stop"),
    ("broken", {}, f"Well. {BROKEN}", "", [], "stop"),
    ("zip", {}, "", "", [("weather", {"city": "02134"})], "tool_calls"),
    ("call", {"tool_choice": "none"}, PARIS, "", [], "stop"),
    ("call", {"tools": openai.omit}, PARIS, "", [], "stop"),
    ("draft", {}, "No.", f"Maybe {PARIS}?", [], "stop"),
    ("plain", {}, "a < b, and <b>x</b>", "", [], "stop"),
    ("reasoning", {"extra_body": {"include_reasoning": False}}, "It is.", "", [], "stop"),
    ("reasoning", {"extra_body": {"reasoning": {"exclude": True}}}, "It is.", "", [], "stop"),
]


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(
    ("name", "fields", "content", "reasoning", "expected_calls", "finish"), CASES
)
def test_stream_adds_up_to_the_whole_answer(
    client: OpenAI,
    name: str,
    fields: dict[str, Any],
    content: str,
    reasoning: str,
    expected_calls: list[Any],
    finish: str,
    logprobs: bool,
) -> None:
    [choice] = ask_both_ways(client, name, logprobs=logprobs, **fields)["choices"]
    assert choice["content"].strip().removesuffix(CLOSE) == content.removesuffix(CLOSE)
    assert choice["reasoning"].strip() == reasoning
    assert parse_calls(choice) == expected_calls
    assert choice["finish"] == finish


def test_chunking_of_the_engine_changes_nothing(client: OpenAI, byte_server: RunningServer) -> None:
    """Every chunking gives the result of single bytes; only the token counts differ."""
    with OpenAI(base_url=f"{byte_server.url}/v1", api_key="none", max_retries=0) as other:
        for name in TEXTS:
            [choice] = ask_both_ways(client, name)["choices"]
            [reference] = ask_both_ways(other, name)["choices"]
            assert choice == reference


def test_several_choices_are_parsed_separately(client: OpenAI) -> None:
    answer = ask_both_ways(client, "both", n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice in answer["choices"]:
        assert parse_calls(choice) == [PARIS_CALL]
        assert choice["finish"] == "tool_calls"
    usage = ask_both_ways(client, "both")["usage"]
    for name in ("completion_tokens", "completion_tokens_details"):
        total, single = answer["usage"][name], usage[name]
        if isinstance(total, dict):
            total, single = total["reasoning_tokens"], single["reasoning_tokens"]
        assert total == 3 * single


def test_call_cut_by_the_limit_finishes_with_length(client: OpenAI, server: RunningServer) -> None:
    """At every limit the call is partial, with `length`, and is never completed."""
    everything = ask_both_ways(client, "both")
    [whole] = everything["choices"]
    total = everything["usage"]["completion_tokens"]
    for limit in range(1, total, 1 if total < 100 else 7):
        answer = ask_both_ways(client, "both", max_tokens=limit)
        [choice] = answer["choices"]
        assert answer["usage"]["completion_tokens"] == limit
        assert choice["finish"] == "length"
        assert choice["content"].partition("\n</")[0].strip() in TEXTS["both"]
        for (name, arguments), (full, all_of_it) in zip(
            choice["calls"], whole["calls"], strict=False
        ):
            assert name == full
            assert all_of_it.startswith(arguments)


# What the chunks of a stream look like


def test_first_chunk_of_a_call_has_its_name(server: RunningServer) -> None:
    chunks = list_deltas(post(server, "parallel", stream=True))[1:]
    call_lists = [delta["tool_calls"] for delta in chunks if "tool_calls" in delta]
    assert all(len(calls) == 1 for calls in call_lists)
    calls = [calls[0] for calls in call_lists]
    firsts = [call for call in calls if "id" in call]
    assert [call["index"] for call in firsts] == [0, 1, 2]
    assert all(set(call) == {"index", "id", "type", "function"} for call in firsts)
    assert all(call["type"] == "function" for call in firsts)
    assert [call["function"] for call in firsts] == [
        {"name": name, "arguments": ""} for name in ("weather", "now", "weather")
    ]
    assert all(call["id"].startswith("call_") for call in firsts)
    assert len({call["id"] for call in firsts}) == 3
    for call in calls:
        if "id" not in call:
            assert set(call) == {"index", "function"}
            assert set(call["function"]) == {"arguments"}
            assert call["function"]["arguments"]


def test_order_of_stream_chunks(server: RunningServer) -> None:
    chunks = parse_events(post(server, "both", stream=True, stream_options={"include_usage": True}))
    kinds: list[str] = []
    for chunk in chunks:
        choice = (chunk["choices"] or [{"delta": {"usage": 1}, "finish_reason": None}])[0]
        kind = next(iter(choice["delta"]), "finish")
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    assert kinds == ["role", "reasoning_content", "content", "tool_calls", "finish", "usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-2]["choices"][0]["delta"] == {}


def test_arguments_are_streamed_as_they_are_generated() -> None:
    """A long argument is sent before its end."""
    long = "x" * 2000
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{long}"}}}}\n</tool_call>'
    with serve_scripted(ScriptedEngine(Reply(text, chunks=10)), chat_template=THINKER) as server:
        pieces = [
            delta["tool_calls"][0]["function"]["arguments"]
            for delta in list_deltas(post(server, "it", stream=True))
            if "tool_calls" in delta
        ]
    assert len(pieces) > 150
    assert json.loads("".join(pieces)) == {"city": long}


def test_answer_with_only_calls_has_no_content(server: RunningServer) -> None:
    message = post(server, "call").json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"] is None
    assert "reasoning_content" not in message


def test_obfuscated_streams_have_reasoning_and_calls(server: RunningServer) -> None:
    options = {"include_obfuscation": True}
    chunks = parse_events(post(server, "both", stream=True, stream_options=options))
    assert all("obfuscation" in chunk for chunk in chunks)
    reasoning = [chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks]
    assert "".join(reasoning).strip() == "Is it 雨 there?"


# Tokens


def test_usage_and_logprobs_count_exactly(byte_server: RunningServer) -> None:
    """Every token is one byte here, so counts equal lengths."""
    with OpenAI(base_url=f"{byte_server.url}/v1", api_key="none", max_retries=0) as client:
        for name, text in TEXTS.items():
            answer = ask_both_ways(client, name, logprobs=True, top_logprobs=2)
            [choice] = answer["choices"]
            usage = answer["usage"]
            assert usage["completion_tokens"] == len(text.encode())
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
            assert reasoning == len(choice["reasoning"].encode())
            entries = choice["logprobs"] or []
            data = bytes(byte for entry in entries for byte in entry["bytes"])
            assert data.decode() == choice["content"]
            assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_excluded_reasoning_is_counted(byte_server: RunningServer) -> None:
    included, excluded = (
        post(byte_server, "reasoning", include_reasoning=include).json()
        for include in (True, False)
    )
    assert included["usage"] == excluded["usage"]
    assert "reasoning_content" not in excluded["choices"][0]["message"]
    streamed = post(byte_server, "reasoning", include_reasoning=False, stream=True)
    assert not any("reasoning_content" in delta for delta in list_deltas(streamed))


def test_slow_client_gets_the_same_answer(byte_server: RunningServer) -> None:
    """Merged steps are read token by token."""
    text = TEXTS["both"].encode()
    engine = ScriptedEngine(Reply(pieces=(text[:50], text[50:90], text[90:])), tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        merged = post(server, "both", logprobs=True).json()
    single = post(byte_server, "both", logprobs=True).json()
    assert normalize(merged) == normalize(single)


# Stop strings


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("name", "stop", "finish", "expected_calls"),
    [
        ("parallel", "</tool_call>\n", "tool_calls", ["weather"]),
        ("call", "ris", "stop", ["weather"]),
        ("both", "Is it", "stop", []),
        ("both", "Let me", "stop", []),
    ],
)
def test_stop_strings_apply_to_the_raw_output(
    server: RunningServer,
    name: str,
    stop: str,
    finish: str,
    expected_calls: list[str],
    streamed: bool,
) -> None:
    response = post(server, name, stop=[stop], stream=streamed)
    chunks = parse_events(response) if streamed else [response.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[-1]["finish_reason"] == finish
    names = [
        call["function"]["name"]
        for choice in choices
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ()
        if "name" in call["function"]
    ]
    assert names == expected_calls


# Templates that do not render tools, earlier turns, and plain completions


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}\n{% endfor %}"])
def test_tools_work_without_support_in_the_template(template: str | None) -> None:
    engine = ScriptedEngine([Reply("Sunny.", when="21 degrees"), Reply(PARIS)])
    with serve_scripted(engine, chat_template=template) as server:
        first = post(server, "it").json()["choices"][0]
        [call] = first["message"]["tool_calls"]
        messages = [
            {"role": "user", "content": "say it."},
            first["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"},
        ]
        body = {"model": "scripted", "messages": messages, "tools": TOOLS}
        last = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == PARIS_CALL[1]
    assert last["message"]["content"] == "Sunny."
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, str)
    assert '{"type": "function", "function": {"name": "weather"' in prompt
    assert "<tool_response>\n21 degrees\n</tool_response>" in prompt
    written = prompt.partition("say it.")[2]
    assert written.count("<tool_call>") == 1  # the past call, as the model wrote it


def test_earlier_reasoning_and_calls_reach_the_template() -> None:
    engine = ScriptedEngine("x")
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "reasoning_content": "because", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "assistant", "reasoning": "so", "content": "a"},
        {"role": "user", "content": "r"},
    ]
    with serve_scripted(engine, chat_template=THINKER) as server:
        body = {"model": "scripted", "messages": messages}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, str)
    for text in ("<think>\nbecause\n</think>", '"now", "arguments": {"a": 1}', "tool\nnoon"):
        assert text in prompt
    assert "<think>\nso\n</think>\n\na" in prompt


def test_plain_completions_are_not_parsed(byte_server: RunningServer) -> None:
    prompt = {"model": "scripted", "prompt": "say both.", "max_tokens": 1000}
    answer = httpx.post(f"{byte_server.url}/v1/completions", json=prompt).json()
    assert answer["choices"][0]["text"] == TEXTS["both"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


# The operator's choice of formats


def test_formats_can_be_set_under_the_names_of_other_servers() -> None:
    text = "[THINK]hm[/THINK]<function=now></function>"
    for names in (("format", "reasoning_format"), ("tool_parser", "reasoning_parser")):
        options = dict(zip(names, ("qwen3_coder", "mistral"), strict=True))
        with serve_scripted(text, **options) as server:
            message = post(server, "it").json()["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        assert message["tool_calls"][0]["function"]["name"] == "now"


def test_formats_can_be_disabled(byte_server: RunningServer) -> None:
    options = {"format": "none", "reasoning_format": "none"}
    with serve_scripted(TEXTS["both"], chat_template=THINKER, **options) as server:
        assert post(server, "it").json()["choices"][0]["message"]["content"] == TEXTS["both"]


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ({"format": "nonsense"}, ["nonsense", "hermes_json", "harmony"]),
        ({"reasoning_format": "nonsense"}, ["nonsense", "think", "harmony"]),
        ({"tool_parser": "nonsense"}, ["nonsense", "hermes_json"]),
        ({"reasoning_parser": "nonsense"}, ["nonsense", "think"]),
    ],
)
def test_unknown_format_is_rejected_at_startup_with_the_choices(
    options: dict[str, str], choices: list[str]
) -> None:
    with pytest.raises(runtime.StartupError) as error:
        dragoman.app(ScriptedEngine("x"), **options)
    assert all(choice in str(error.value) for choice in choices)
    if "parser" not in next(iter(options)):
        with pytest.raises(runtime.StartupError):
            runtime.make_model_options(config.load(options))


# Every format


def list_examples() -> Iterator[tuple[str, str, str]]:
    for tools in get_tool_formats().values():
        yield tools.name, "none", tools.example
    for reasoning in get_reasoning_formats().values():
        yield "none", reasoning.name, reasoning.example


@pytest.mark.parametrize(("tools", "reasoning", "text"), list(list_examples()))
def test_example_of_every_format_is_parsed(tools: str, reasoning: str, text: str) -> None:
    """The result is the same whole, streamed, and from the library's parser."""
    declared: Any = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    with (
        serve_scripted(
            ScriptedEngine(Reply(text, chunks=3)), format=tools, reasoning_format=reasoning
        ) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        [choice] = ask_both_ways(client, "it", tools=declared)["choices"]
    tool_format = None if tools == "none" else tools
    parser = OutputParser(tool_format, None if tool_format else reasoning, tools=declared)
    spans = [*parser.feed(text), *parser.close()]
    expected = {"text": "", "reasoning": "", "tool_name": "", "tool_args": ""}
    for span in spans:
        expected[span.channel] += span.text
    assert choice["content"] == expected["text"]
    assert choice["reasoning"] == expected["reasoning"]
    assert "".join(name for name, _ in choice["calls"]) == expected["tool_name"]
    assert "".join(arguments for _, arguments in choice["calls"]) == expected["tool_args"]
    assert choice["finish"] == ("tool_calls" if tool_format else "stop")
