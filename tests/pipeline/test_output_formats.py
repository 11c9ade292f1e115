"""Thoughts and tool calls on the line: a stream adds up to the whole answer, whatever is in it.

The answers come from a scripted engine, cut in several ways; the `openai` client's own accumulator
adds up the streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

import dragoman
from dragoman import config, runtime
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import OutputParser
from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, make_chat, parse_events, serve_scripted

THINKER = TEMPLATES / "thinker.jinja"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CLOSE = "\n</tool_call>"
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 😀", "days": 2}}' + CLOSE
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ZIP = '<tool_call>\n{"name": "weather", "arguments": {"city": "02134"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'
BROKEN = "<tool_call>\nI am not sure.\n</tool_call>"
THOUGHT = "<think>\nIs it 雨 there?\n</think>\n\n"
CALLED = ("weather", {"city": "Paris 😀", "days": 2})

# what is asked -> what the model says; what is looked at for `when` is the last message
SAYS = {
    "thought": f"{THOUGHT}It is.",
    "only thought": THOUGHT,
    "unclosed": "<think>\nAnd then",
    "call": PARIS,
    "prose": f"Let me look.\n{PARIS}",
    "both": f"{THOUGHT}Let me look. {PARIS}",
    "parallel": f"{PARIS}\n{NOW}\n{ZIP}",
    "undeclared": f"Well. {OTHER}",
    "broken": f"Well. {BROKEN}",
    "zip": ZIP,
    "draft": f"<think>Maybe {PARIS}?</think>No.",
    "plain": "a < b, and <b>x</b>",
}
WAYS: dict[str, dict[str, Any]] = {
    "words": {"chunks": "words"},
    "letters": {"chunks": 1},
    "whole": {"chunks": 10_000},
    "bytes": {"chunks": "bytes"},
}


def replies(**how: Any) -> list[Reply]:
    return [Reply(text, when=f"say {name}.", **how) for name, text in SAYS.items()]


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    engine = ScriptedEngine(replies(**WAYS[request.param]), tokens=request.param == "bytes")
    with serve_scripted(engine, chat_template=THINKER) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def bytes_engine() -> ScriptedEngine:
    return ScriptedEngine(replies(chunks="bytes"), tokens=True)


@pytest.fixture(scope="module")
def by_bytes(bytes_engine: ScriptedEngine) -> Iterator[RunningServer]:
    """A model every token of which is a byte, so that counts are lengths."""
    with serve_scripted(bytes_engine, chat_template=THINKER) as made:
        yield made


def ask(client: OpenAI, said: str, **fields: Any) -> dict[str, Any]:
    """The answer to a request, after checking that its stream adds up to the same."""
    messages: Any = [{"role": "user", "content": f"say {said}."}]
    fields = {"tools": TOOLS} | fields
    whole = client.chat.completions.create(model="scripted", messages=messages, **fields)
    state = ChatCompletionStreamState()
    options: Any = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model="scripted", messages=messages, stream=True, stream_options=options, **fields
    ):
        state.handle_chunk(chunk)
    mine = plain(state.current_completion_snapshot.model_dump(warnings=False))
    theirs = plain(whole.model_dump())
    assert mine == theirs
    return theirs


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """What of an answer must not depend on how it came."""
    return {
        "usage": answer["usage"],
        "choices": [
            {
                "index": choice["index"],
                "finish": choice["finish_reason"],
                "content": choice["message"]["content"] or "",
                "thoughts": choice["message"].get("reasoning_content") or "",
                "calls": [
                    (call["function"]["name"], call["function"]["arguments"])
                    for call in choice["message"].get("tool_calls") or ()
                ],
                "logprobs": (choice["logprobs"] or {}).get("content"),
            }
            for choice in answer["choices"]
        ],
    }


def calls(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in choice["calls"]]


def post(server: RunningServer, said: str, **fields: Any) -> httpx.Response:
    body = make_chat(f"say {said}.", **{"tools": TOOLS} | fields)
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)


# name, fields of the request -> content, thoughts, calls, finish; white space around text apart
CASES: list[tuple[str, dict[str, Any], str, str, list[Any], str]] = [
    ("thought", {}, "It is.", "Is it 雨 there?", [], "stop"),
    ("thought", {"tools": openai.omit}, "It is.", "Is it 雨 there?", [], "stop"),
    # nothing is said after the thought, not even the white space
    ("only thought", {}, "", "Is it 雨 there?", [], "stop"),
    ("unclosed", {}, "", "And then", [], "stop"),
    ("call", {}, "", "", [CALLED], "tool_calls"),
    ("prose", {}, "Let me look.", "", [CALLED], "tool_calls"),
    ("both", {}, "Let me look.", "Is it 雨 there?", [CALLED], "tool_calls"),
    # as many calls as there are blocks
    ("parallel", {}, "", "", [CALLED, ("now", {}), ("weather", {"city": "02134"})], "tool_calls"),
    ("undeclared", {}, f"Well. {OTHER}", "", [], "stop"),
    ("broken", {}, f"Well. {BROKEN}", "", [], "stop"),
    ("zip", {}, "", "", [("weather", {"city": "02134"})], "tool_calls"),
    ("call", {"tool_choice": "none"}, PARIS, "", [], "stop"),
    ("call", {"tools": openai.omit}, PARIS, "", [], "stop"),
    ("draft", {}, "No.", f"Maybe {PARIS}?", [], "stop"),
    ("plain", {}, "a < b, and <b>x</b>", "", [], "stop"),
    ("thought", {"extra_body": {"include_reasoning": False}}, "It is.", "", [], "stop"),
    ("thought", {"extra_body": {"reasoning": {"exclude": True}}}, "It is.", "", [], "stop"),
]


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(("said", "fields", "content", "thoughts", "made", "finish"), CASES)
def test_a_stream_adds_up_to_the_whole_answer(
    client: OpenAI,
    said: str,
    fields: dict[str, Any],
    content: str,
    thoughts: str,
    made: list[Any],
    finish: str,
    logprobs: bool,
) -> None:
    [choice] = ask(client, said, logprobs=logprobs, **fields)["choices"]
    assert choice["content"].strip().removesuffix(CLOSE) == content.removesuffix(CLOSE)
    assert choice["thoughts"].strip() == thoughts
    assert calls(choice) == made
    assert choice["finish"] == finish


def test_how_the_engine_cuts_its_text_changes_nothing(
    client: OpenAI, by_bytes: RunningServer
) -> None:
    """Every way of cutting gives what single bytes give; only tokens are counted differently."""
    with OpenAI(base_url=f"{by_bytes.url}/v1", api_key="none", max_retries=0) as other:
        for said in SAYS:
            [mine], [theirs] = ask(client, said)["choices"], ask(other, said)["choices"]
            assert mine == theirs


def test_several_choices_are_read_apart(client: OpenAI) -> None:
    answer = ask(client, "both", n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice in answer["choices"]:
        assert calls(choice) == [CALLED]
        assert choice["finish"] == "tool_calls"
    one = ask(client, "both")["usage"]
    for name in ("completion_tokens", "completion_tokens_details"):
        many, single = answer["usage"][name], one[name]
        if isinstance(many, dict):
            many, single = many["reasoning_tokens"], single["reasoning_tokens"]
        assert many == 3 * single


def test_a_call_that_the_limit_cut_says_length(client: OpenAI, server: RunningServer) -> None:
    """At every limit: what there is of the call, `length`, and never a call passed off as whole."""
    everything = ask(client, "both")
    [whole] = everything["choices"]
    total = everything["usage"]["completion_tokens"]
    for limit in range(1, total, 1 if total < 100 else 7):
        answer = ask(client, "both", max_tokens=limit)
        [choice] = answer["choices"]
        assert answer["usage"]["completion_tokens"] == limit
        assert choice["finish"] == "length"
        assert choice["content"].partition("\n</")[0].strip() in SAYS["both"]
        for (name, arguments), (full, all_of_it) in zip(
            choice["calls"], whole["calls"], strict=False
        ):
            assert name == full
            assert all_of_it.startswith(arguments)


# What the chunks of a stream look like


def deltas(response: httpx.Response) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in parse_events(response) if chunk["choices"]]


def test_the_first_chunk_of_a_call_names_it(server: RunningServer) -> None:
    said = [one["tool_calls"] for one in deltas(post(server, "parallel", stream=True))[1:] if one
            and "tool_calls" in one]  # fmt: skip
    assert all(len(one) == 1 for one in said)
    firsts = [one[0] for one in said if "id" in one[0]]
    assert [one["index"] for one in firsts] == [0, 1, 2]
    assert all(set(one) == {"index", "id", "type", "function"} for one in firsts)
    assert all(one["type"] == "function" for one in firsts)
    assert [one["function"] for one in firsts] == [
        {"name": name, "arguments": ""} for name in ("weather", "now", "weather")
    ]
    assert all(one["id"].startswith("call_") for one in firsts)
    assert len({one["id"] for one in firsts}) == 3
    for one in said:
        if "id" not in one[0]:
            assert set(one[0]) == {"index", "function"}
            assert set(one[0]["function"]) == {"arguments"}
            assert one[0]["function"]["arguments"]


def test_the_order_of_a_stream(server: RunningServer) -> None:
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


def test_arguments_flow_as_they_are_generated() -> None:
    """A long argument does not wait for its end."""
    long = "x" * 2000
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{long}"}}}}\n</tool_call>'
    with serve_scripted(ScriptedEngine(Reply(text, chunks=10)), chat_template=THINKER) as server:
        pieces = [
            one["tool_calls"][0]["function"]["arguments"]
            for one in deltas(post(server, "it", stream=True))
            if "tool_calls" in one
        ]
    assert len(pieces) > 150
    assert json.loads("".join(pieces)) == {"city": long}


def test_a_turn_of_calls_has_no_content(server: RunningServer) -> None:
    message = post(server, "call").json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"] is None
    assert "reasoning_content" not in message


def test_padded_streams_have_thoughts_and_calls_too(server: RunningServer) -> None:
    options = {"include_obfuscation": True}
    chunks = parse_events(post(server, "both", stream=True, stream_options=options))
    assert all("obfuscation" in chunk for chunk in chunks)
    thoughts = [chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks]
    assert "".join(thoughts).strip() == "Is it 雨 there?"


# Tokens


def test_usage_and_logprobs_count_exactly(by_bytes: RunningServer) -> None:
    """Every token is a byte here, so whatever is counted can be measured."""
    with OpenAI(base_url=f"{by_bytes.url}/v1", api_key="none", max_retries=0) as client:
        for said, text in SAYS.items():
            answer = ask(client, said, logprobs=True, top_logprobs=2)
            [choice] = answer["choices"]
            usage = answer["usage"]
            assert usage["completion_tokens"] == len(text.encode())
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
            assert thoughts == len(choice["thoughts"].encode())
            entries = choice["logprobs"] or []
            data = bytes(byte for entry in entries for byte in entry["bytes"])
            assert data.decode() == choice["content"]
            assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_thoughts_that_are_not_told_are_counted(by_bytes: RunningServer) -> None:
    told, untold = (
        post(by_bytes, "thought", include_reasoning=include).json() for include in (True, False)
    )
    assert told["usage"] == untold["usage"]
    assert "reasoning_content" not in untold["choices"][0]["message"]
    streamed = post(by_bytes, "thought", include_reasoning=False, stream=True)
    assert not any("reasoning_content" in delta for delta in deltas(streamed))


def test_a_slow_reader_gets_the_same(by_bytes: RunningServer) -> None:
    """Steps that were merged on their way are read token by token."""
    text = SAYS["both"].encode()
    engine = ScriptedEngine(Reply(pieces=(text[:50], text[50:90], text[90:])), tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        merged = post(server, "both", logprobs=True).json()
    single = post(by_bytes, "both", logprobs=True).json()
    assert plain(merged) == plain(single)


# Where an answer begins


@pytest.fixture(scope="module", params=[False, True])
def hesitant(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A model that ends a thought; the marks are letters to it, or tokens."""
    marks = ("<think>", "</think>") if request.param else ()
    engine = ScriptedEngine("hm</think>Yes.", tokens=request.param, markup=marks)
    with serve_scripted(engine, chat_template=THINKER) as made:
        yield made


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mention", ["", "<think>", "what does <think> do?", "</think>"])
@pytest.mark.parametrize(
    ("fields", "thoughts", "content"),
    [
        ({}, "", "hm</think>Yes."),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "hm", "Yes."),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "", "hm</think>Yes."),
        ({"reasoning_effort": "high"}, "hm", "Yes."),
        ({"reasoning_effort": "none"}, "", "hm</think>Yes."),
    ],
)
def test_the_prompt_decides_and_no_word_of_the_users(
    hesitant: RunningServer,
    fields: dict[str, Any],
    thoughts: str,
    content: str,
    mention: str,
    streamed: bool,
) -> None:
    """A mark that ends a thought which never began is of no account; it may be dropped."""
    response = post(hesitant, mention, stream=streamed, **fields)
    said = deltas(response) if streamed else [response.json()["choices"][0]["message"]]
    read = {
        name: "".join(one.get(name) or "" for one in said)
        for name in ("content", "reasoning_content")
    }
    assert read["reasoning_content"] == thoughts
    assert read["content"].replace("</think>", "") == content.replace("</think>", "")


@pytest.mark.parametrize(
    ("own", "thoughts", "content"),
    [
        ("<think>I wonder", "hm", "Yes."),
        ("<think>" + "word " * 500, "hm", "Yes."),
        ("\n<think>I write <b>bold</b> and", "hm", "Yes."),
        ("<think>\n1 [INST] so", "hm", "Yes."),
        ("<think>I</think>So <think>and", "hm", "Yes."),
        ("The tag <think> means", "", "hmYes."),
        ("Use <think>", "", "hmYes."),
        ("<think>I wonder</think>So", "", "hmYes."),
        ("So I say", "", "hmYes."),
    ],
)
def test_a_message_that_is_continued_says_where_it_is(
    hesitant: RunningServer, own: str, thoughts: str, content: str
) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": own}]
    body = {"model": "scripted", "messages": messages, "continue_final_message": True}
    response = httpx.post(f"{hesitant.url}/v1/chat/completions", json=body)
    message = response.json()["choices"][0]["message"]
    assert message.get("reasoning_content", "") == thoughts
    assert message["content"].replace("</think>", "") == content


# What a request can say of thinking


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"reasoning_effort": "none"}, "</think>\n\n"),
        ({"reasoning_effort": "low"}, "<think>\n"),
        ({"reasoning": {"enabled": False}}, "</think>\n\n"),
        ({"reasoning": {"effort": "high"}}, "<think>\n"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "</think>\n\n",
        ),
    ],
)
def test_efforts_turn_the_templates_switch(
    by_bytes: RunningServer, bytes_engine: ScriptedEngine, fields: dict[str, Any], ending: str
) -> None:
    assert post(by_bytes, "plain", **fields).status_code == 200
    prompt = bytes_engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert bytes_engine.tokenizer is not None
    assert bytes_engine.tokenizer.decode(prompt).endswith(ending)


NAMED = {"type": "function", "function": {"name": "nobody"}}
KNOWS_EFFORT = (
    "{{ messages[0].content }}{% if reasoning_effort %} {{ reasoning_effort }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        ("{{ messages[0].content }}", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("{{ messages[0].content }}", {"thinking_budget": 5}, "thinking_budget"),
        (KNOWS_EFFORT, {"reasoning_effort": "none"}, "reasoning_effort"),
        (THINKER, {"reasoning_effort": "enormous"}, "reasoning_effort"),
        ("{{ messages[0].content }}", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("{{ messages[0].content }}", {"reasoning": {"enabled": True}}, "reasoning.enabled"),
        (KNOWS_EFFORT, {"reasoning": {"enabled": False}}, "reasoning.enabled"),
        (THINKER, {"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ("{{ messages[0].content }}", {"thinking_token_budget": 5}, "thinking_token_budget"),
        ("{{ messages[0].content }}", {"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
        (THINKER, {"thinking_token_budget": 5, "n": 2}, "thinking_token_budget"),
        (THINKER, {"thinking_budget": 5, "n": 2}, "thinking_budget"),
        (THINKER, {"thinking_budget": -1}, "thinking_budget"),
        (THINKER, {"tool_choice": NAMED}, "tool_choice"),  # named, but nobody declared it
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    template: Any, fields: dict[str, Any], param: str
) -> None:
    with serve_scripted(ScriptedEngine("x", grammars=True), chat_template=template) as server:
        response = post(server, "it", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_thinking_can_be_turned_off_where_there_is_none(template: str | None) -> None:
    with serve_scripted("x", chat_template=template) as server:
        assert post(server, "it", reasoning={"enabled": False}).status_code == 200


def test_an_effort_goes_to_a_template_that_knows_it() -> None:
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=KNOWS_EFFORT) as server:
        assert post(server, "it", tools=None, reasoning_effort="medium").status_code == 200
    assert engine.jobs[-1].prompt == "say it. medium"


def test_no_grammar_is_made_for_tools_so_none_is_incomplete() -> None:
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert post(server, "it").status_code == 200
    assert engine.jobs[-1].grammar is None


STRENGTH = (
    "{{ messages[0].content }}{% if reasoning_strength %} {{ reasoning_strength }}{% endif %}"
)


def test_an_effort_goes_to_the_variable_that_the_template_has_for_it() -> None:
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=STRENGTH) as server:
        assert post(server, "it", tools=None, reasoning_effort="high").status_code == 200
    assert engine.jobs[-1].prompt == "say it. high"


BUDGET = [
    Reply("The answer.", when="</think>"),
    Reply("<think>one two three four five six</think>By myself.", chunks="words"),
]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("field", ["thinking_budget", "thinking_token_budget"])
def test_a_budget_ends_thoughts_that_take_too_long(tokens: bool, field: str) -> None:
    engine = ScriptedEngine(BUDGET, tokens=tokens, context=4096)
    said = "<think>one two"
    budget = len(" one two".strip().encode()) if tokens else 2
    with (
        serve_scripted(engine, chat_template=THINKER) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        free = post(server, "it").json()
        engine.jobs.clear()
        answer = ask(client, "it", extra_body={field: budget})
    [choice] = answer["choices"]
    assert choice["thoughts"] == "one two"
    assert choice["content"] == "The answer."
    assert choice["finish"] == "stop"
    usage = answer["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == budget
    assert usage["prompt_tokens"] == free["usage"]["prompt_tokens"]
    first, second = list(engine.jobs)[:2]
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert second.id != first.id
    rest = second.prompt[len(first.prompt) :]
    if isinstance(rest, list):
        assert engine.tokenizer is not None
        rest = engine.tokenizer.decode(rest)
        spent = len(said.encode())
        assert usage["completion_tokens"] == spent + len(b"The answer.")
        assert first.sampling.max_tokens is not None
        assert second.sampling.max_tokens == 4096 - len(second.prompt)
    assert rest == f"{said}\n</think>\n\n"


def test_a_budget_that_is_not_used_up_changes_nothing() -> None:
    engine = ScriptedEngine(BUDGET)
    with serve_scripted(engine, chat_template=THINKER) as server:
        free = post(server, "it").json()
        kept = post(server, "it", thinking_budget=1000).json()
    assert plain(free) == plain(kept)
    assert len(engine.jobs) == 2


def test_no_budget_at_all_ends_thoughts_before_they_begin() -> None:
    engine = ScriptedEngine("The answer.")
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = post(server, "it", thinking_budget=0, **thinking).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "The answer.", "refusal": None}
    [job] = engine.jobs
    assert str(job.prompt).endswith("assistant\n<think>\n\n</think>\n\n")


def test_no_budget_at_all_ends_thoughts_that_the_model_begins() -> None:
    engine = ScriptedEngine([BUDGET[1].text, "The answer."])
    with serve_scripted(engine, chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=0).json()
    assert answer["choices"][0]["message"]["content"] == "The answer."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert len(engine.jobs) == 2


def test_a_budget_leaves_the_limit_as_it_is() -> None:
    engine = ScriptedEngine(BUDGET)
    with serve_scripted(engine, chat_template=THINKER) as server:
        whole = post(server, "it", thinking_budget=2, max_tokens=6).json()
    assert whole["usage"]["completion_tokens"] == 6
    assert whole["choices"][0]["finish_reason"] == "length"


def test_a_budget_goes_to_a_template_that_reads_one() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if thinking_budget is defined %} Think for {{ thinking_budget }}.{% endif %}"
    )
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=template) as server:
        assert post(server, "it", tools=None, thinking_budget=7).status_code == 200
    assert engine.jobs[-1].prompt == "say it. Think for 7."


# Stop strings


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("said", "stop", "finish", "made"),
    [
        ("parallel", "</tool_call>\n", "tool_calls", ["weather"]),
        ("call", "ris", "stop", ["weather"]),
        ("both", "Is it", "stop", []),
        ("both", "Let me", "stop", []),
    ],
)
def test_stop_strings_are_met_in_what_the_model_writes(
    server: RunningServer, said: str, stop: str, finish: str, made: list[str], streamed: bool
) -> None:
    response = post(server, said, stop=[stop], stream=streamed)
    choices = [
        one["choices"][0] for one in (parse_events(response) if streamed else [response.json()])
    ]
    assert choices[-1]["finish_reason"] == finish
    named = [
        call["function"]["name"]
        for choice in choices
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ()
        if "name" in call["function"]
    ]
    assert named == made


# Marks that are control tokens


GEMMA = ("<|endoftext|>", "<|im_start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>",
         "<channel|>", "<|im_end|>")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "content", "thoughts", "made"),
    [
        ("<|channel>thought\nplan<channel|>Hi", "Hi", "plan", []),
        ('Hi<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>', "Hi", "",
         [("weather", {"city": "Rome", "days": 3})]),
        ("<|channel>thought\nplan", "", "plan", []),
        ("a<tool_call|>b<|im_start|>c", "abc", "", []),
        ("<|tool_call>call:nobody{}<tool_call|>", "call:nobody{}", "", []),
    ],
)  # fmt: skip
def test_marks_that_are_control_tokens_are_read_and_never_shown(
    text: str, content: str, thoughts: str, made: list[Any]
) -> None:
    engine = ScriptedEngine(Reply(text, chunks="bytes"), tokens=True)
    engine.tokenizer = ByteTokenizer(GEMMA)
    options = {"format": "gemma4", "reasoning_format": "gemma4_channel"}
    with (
        serve_scripted(engine, chat_template=THINKER, **options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = ask(client, "it", logprobs=True)
        [choice] = answer["choices"]
        bare = post(server, "it", tools=None).json()["choices"][0]["message"]
        prompt = {"model": "scripted", "prompt": "x", "max_tokens": 500}
        raw = httpx.post(f"{server.url}/v1/completions", json=prompt).json()["choices"][0]["text"]
    assert choice["content"] == content
    assert choice["thoughts"] == thoughts
    assert calls(choice) == made
    entries = choice["logprobs"] or []
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == content
    count = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert count == len(thoughts.encode())
    for mark in GEMMA:
        assert mark not in str(bare) + raw + content


def test_the_models_own_id_of_a_call_is_kept() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:4"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    with serve_scripted(text, chat_template=THINKER, format="kimi_k2") as server:
        [whole] = post(server, "it").json()["choices"][0]["message"]["tool_calls"]
        streamed = [one["tool_calls"][0] for one in deltas(post(server, "it", stream=True))
                    if "tool_calls" in one]  # fmt: skip
    assert whole["id"] == streamed[0]["id"] == "functions.now:4"
    assert whole["function"] == {"name": "now", "arguments": "{}"}


def test_every_choice_keeps_the_models_own_ids() -> None:
    one = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{one}{one}<|tool_calls_section_end|>"
    with serve_scripted(text, chat_template=THINKER, format="kimi_k2") as server:
        choices = post(server, "it", n=3).json()["choices"]
        streamed = [one["choices"][0] for one in parse_events(post(server, "it", n=3, stream=True))]
    whole = {(one["index"], at): call["id"] for one in choices
             for at, call in enumerate(one["message"]["tool_calls"])}  # fmt: skip
    said = {
        (one["index"], call["index"]): call["id"]
        for one in streamed
        for call in one["delta"].get("tool_calls", ())
        if "id" in call
    }
    for ids in (whole, said):
        assert [ids[choice, 0] for choice in range(3)] == ["functions.now:0"] * 3
        assert all(ids[choice, 1].startswith("call_") for choice in range(3))  # told twice


@pytest.mark.parametrize("tokens", [False, True])
def test_marks_that_are_part_of_the_answer_stay_in_it(tokens: bool) -> None:
    engine = ScriptedEngine(Reply("hm</think>Yes.", chunks="bytes"), tokens=True)
    if tokens:
        engine.tokenizer = ByteTokenizer(("<|endoftext|>", "<think>", "</think>", "<|im_end|>"))
    options = {"format": "none", "reasoning_format": "think_append"}
    with (
        serve_scripted(engine, chat_template=THINKER, **options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        opened = {"chat_template_kwargs": {"enable_thinking": True}}
        [choice] = ask(client, "it", logprobs=True, extra_body=opened)["choices"]
    assert choice["content"] == "<think>hm</think>Yes."
    told = bytes(byte for entry in choice["logprobs"] for byte in entry["bytes"]).decode()
    assert told == "hm</think>Yes."  # the first mark is the prompt's


# Headers that the template opens

MESSAGES = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}END{% endfor %}"
THEN = "<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize(
    ("name", "opening", "text", "thoughts"),
    [
        ("harmony", "<|start|>assistant", f"<|channel|>analysis<|message|>hm{THEN}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>", f"analysis<|message|>hm{THEN}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>", "final<|message|>Hi<|return|>", ""),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", f"hm{THEN}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Hi<|return|>", ""),
        (
            "muse_glimmer",
            "<|start|>",
            "assistant to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi<|eot|>",
            "hm",
        ),
    ],
)
def test_an_answer_may_begin_inside_a_header(
    name: str, opening: str, text: str, thoughts: str, tools: bool
) -> None:
    template = MESSAGES + "{% if add_generation_prompt %}" + opening + "{% endif %}"
    options = {"format": name if tools else "none", "reasoning_format": name}
    with serve_scripted(
        ScriptedEngine(Reply(text, chunks=3)), chat_template=template, **options
    ) as server:
        message = post(server, "it").json()["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content", "")) == ("Hi", thoughts)


def test_a_header_that_the_user_opens_is_none() -> None:
    with serve_scripted(
        "analysis<|message|>hm",
        chat_template="{{ messages[0].content }}",
        format="harmony",
        reasoning_format="harmony",
    ) as server:
        body = make_chat("<|start|>assistant<|channel|>")
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]


# Templates with no place for tools, and other roads


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}\n{% endfor %}"])
def test_tools_work_without_a_place_in_the_template(template: str | None) -> None:
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
    assert json.loads(call["function"]["arguments"]) == CALLED[1]
    assert last["message"]["content"] == "Sunny."
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, str)
    assert '{"type": "function", "function": {"name": "weather"' in prompt
    assert "<tool_response>\n21 degrees\n</tool_response>" in prompt
    written = prompt.partition("say it.")[2]
    assert written.count("<tool_call>") == 1  # the past call, as the model wrote it


def test_past_thoughts_and_calls_reach_the_template() -> None:
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


def test_completions_are_left_as_they_are(by_bytes: RunningServer) -> None:
    prompt = {"model": "scripted", "prompt": "say both.", "max_tokens": 1000}
    answer = httpx.post(f"{by_bytes.url}/v1/completions", json=prompt).json()
    assert answer["choices"][0]["text"] == SAYS["both"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


# What an operator can say


def test_formats_can_be_named_as_others_name_them() -> None:
    text = "[THINK]hm[/THINK]<function=now></function>"
    for names in (("format", "reasoning_format"), ("tool_parser", "reasoning_parser")):
        said = dict(zip(names, ("qwen3_coder", "mistral"), strict=True))
        with serve_scripted(text, **said) as server:
            message = post(server, "it").json()["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        assert message["tool_calls"][0]["function"]["name"] == "now"


def test_formats_can_be_turned_off(by_bytes: RunningServer) -> None:
    said = {"format": "none", "reasoning_format": "none"}
    with serve_scripted(SAYS["both"], chat_template=THINKER, **said) as server:
        assert post(server, "it").json()["choices"][0]["message"]["content"] == SAYS["both"]


@pytest.mark.parametrize(
    ("said", "choices"),
    [
        ({"format": "nonsense"}, ["nonsense", "hermes_json", "harmony"]),
        ({"reasoning_format": "nonsense"}, ["nonsense", "think", "harmony"]),
        ({"tool_parser": "nonsense"}, ["nonsense", "hermes_json"]),
        ({"reasoning_parser": "nonsense"}, ["nonsense", "think"]),
    ],
)
def test_an_unknown_format_is_refused_at_startup_with_the_choices(
    said: dict[str, str], choices: list[str]
) -> None:
    with pytest.raises(runtime.StartupError) as refusal:
        dragoman.app(ScriptedEngine("x"), **said)
    assert all(choice in str(refusal.value) for choice in choices)
    if "parser" not in next(iter(said)):
        with pytest.raises(runtime.StartupError):
            runtime.make_model_options(config.load(said))


# Every format there is


def examples() -> Iterator[tuple[str, str, str]]:
    for one in tool_formats().values():
        yield one.name, "none", one.example
    for thought in reasoning_formats().values():
        yield "none", thought.name, thought.example


@pytest.mark.parametrize(("tools", "reasoning", "text"), list(examples()))
def test_the_example_of_every_format_comes_through(tools: str, reasoning: str, text: str) -> None:
    """Whole and streamed alike, and as the library reads it."""
    declared: Any = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    with (
        serve_scripted(
            ScriptedEngine(Reply(text, chunks=3)), format=tools, reasoning_format=reasoning
        ) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        [choice] = ask(client, "it", tools=declared)["choices"]
    called = None if tools == "none" else tools
    parser = OutputParser(called, None if called else reasoning, tools=declared)
    spans = [*parser.feed(text), *parser.close()]
    read = {"text": "", "reasoning": "", "tool_name": "", "tool_args": ""}
    for span in spans:
        read[span.channel] += span.text
    assert choice["content"] == read["text"]
    assert choice["thoughts"] == read["reasoning"]
    assert "".join(name for name, _ in choice["calls"]) == read["tool_name"]
    assert "".join(arguments for _, arguments in choice["calls"]) == read["tool_args"]
    assert choice["finish"] == ("tool_calls" if called else "stop")
