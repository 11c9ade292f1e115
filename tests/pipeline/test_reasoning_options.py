"""Where an answer begins, and how a request controls the reasoning of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.support.scripted_chats import (
    THINKER,
    ask_both_ways,
    list_deltas,
    normalize,
    post,
)
from tests.support.serving import RunningServer, serve_scripted

pytestmark = pytest.mark.slow

# Where an answer begins


@pytest.fixture(scope="module", params=[False, True])
def closing_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """Serve a model that closes reasoning; its markers are plain text or special tokens."""
    markers = ("<think>", "</think>") if request.param else ()
    engine = ScriptedEngine("hm</think>Yes.", tokens=request.param, markup=markers)
    with serve_scripted(engine, chat_template=THINKER) as running:
        yield running


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mention", ["", "<think>", "what does <think> do?", "</think>"])
@pytest.mark.parametrize(
    ("fields", "reasoning", "content"),
    [
        ({}, "", "hm</think>Yes."),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "hm", "Yes."),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "", "hm</think>Yes."),
        ({"reasoning_effort": "high"}, "hm", "Yes."),
        ({"reasoning_effort": "none"}, "", "hm</think>Yes."),
    ],
)
def test_prompt_decides_where_the_answer_begins_not_the_users_text(
    closing_server: RunningServer,
    fields: dict[str, Any],
    reasoning: str,
    content: str,
    mention: str,
    streamed: bool,
) -> None:
    """A closing marker without reasoning has no meaning; it may be dropped."""
    response = post(closing_server, mention, stream=streamed, **fields)
    messages = list_deltas(response) if streamed else [response.json()["choices"][0]["message"]]
    joined = {
        field: "".join(message.get(field) or "" for message in messages)
        for field in ("content", "reasoning_content")
    }
    assert joined["reasoning_content"] == reasoning
    assert joined["content"].replace("</think>", "") == content.replace("</think>", "")


@pytest.mark.parametrize(
    ("final_message", "reasoning", "content"),
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
def test_continued_message_decides_where_the_answer_begins(
    closing_server: RunningServer, final_message: str, reasoning: str, content: str
) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": final_message}]
    body = {"model": "scripted", "messages": messages, "continue_final_message": True}
    response = httpx.post(f"{closing_server.url}/v1/chat/completions", json=body)
    message = response.json()["choices"][0]["message"]
    assert message.get("reasoning_content", "") == reasoning
    assert message["content"].replace("</think>", "") == content


# Reasoning options of a request


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
def test_reasoning_effort_sets_the_templates_switch(
    byte_server: RunningServer, bytes_engine: ScriptedEngine, fields: dict[str, Any], ending: str
) -> None:
    assert post(byte_server, "plain", **fields).status_code == 200
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
        ("{{ messages[0].content }}", {"thinking_budget": 5}, "thinking_budget"),
        ("{{ messages[0].content }}", {"thinking_token_budget": 5}, "thinking_token_budget"),
        ("{{ messages[0].content }}", {"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
        (THINKER, {"thinking_token_budget": 5, "n": 2}, "thinking_token_budget"),
        (THINKER, {"thinking_budget": 5, "n": 2}, "thinking_budget"),
        (THINKER, {"thinking_budget": -1}, "thinking_budget"),
        (THINKER, {"tool_choice": NAMED}, "tool_choice"),  # an undeclared tool
        (THINKER, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(
    template: Any, fields: dict[str, Any], param: str
) -> None:
    with serve_scripted(ScriptedEngine("x", grammars=True), chat_template=template) as server:
        response = post(server, "it", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_reasoning_can_be_disabled_for_models_without_reasoning(template: str | None) -> None:
    with serve_scripted("x", chat_template=template) as server:
        assert post(server, "it", reasoning={"enabled": False}).status_code == 200


def test_template_gets_the_reasoning_effort() -> None:
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=KNOWS_EFFORT) as server:
        assert post(server, "it", tools=None, reasoning_effort="medium").status_code == 200
    assert engine.jobs[-1].prompt == "say it. medium"


def test_engine_without_grammars_gets_no_grammar() -> None:
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert post(server, "it").status_code == 200
    assert engine.jobs[-1].grammar is None


STRENGTH = (
    "{{ messages[0].content }}{% if reasoning_strength %} {{ reasoning_strength }}{% endif %}"
)


def test_template_gets_the_reasoning_effort_in_its_own_variable() -> None:
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
def test_budget_ends_long_reasoning(tokens: bool, field: str) -> None:
    engine = ScriptedEngine(BUDGET, tokens=tokens, context=4096)
    written = "<think>one two"
    budget = len(" one two".strip().encode()) if tokens else 2
    with (
        serve_scripted(engine, chat_template=THINKER) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        free = post(server, "it").json()
        engine.jobs.clear()
        answer = ask_both_ways(client, "it", extra_body={field: budget})
    [choice] = answer["choices"]
    assert choice["reasoning"] == "one two"
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
        spent = len(written.encode())
        assert usage["completion_tokens"] == spent + len(b"The answer.")
        assert first.sampling.max_tokens is not None
        assert second.sampling.max_tokens == 4096 - len(second.prompt)
    assert rest == f"{written}\n</think>\n\n"


def test_unused_budget_changes_nothing() -> None:
    engine = ScriptedEngine(BUDGET)
    with serve_scripted(engine, chat_template=THINKER) as server:
        free = post(server, "it").json()
        limited = post(server, "it", thinking_budget=1000).json()
    assert normalize(free) == normalize(limited)
    assert len(engine.jobs) == 2


def test_zero_budget_ends_reasoning_that_the_template_opens() -> None:
    engine = ScriptedEngine("The answer.")
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = post(server, "it", thinking_budget=0, **thinking).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "The answer.", "refusal": None}
    [job] = engine.jobs
    assert str(job.prompt).endswith("assistant\n<think>\n\n</think>\n\n")


def test_zero_budget_ends_reasoning_that_the_model_opens() -> None:
    engine = ScriptedEngine([BUDGET[1].text, "The answer."])
    with serve_scripted(engine, chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=0).json()
    assert answer["choices"][0]["message"]["content"] == "The answer."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert len(engine.jobs) == 2


def test_budget_keeps_the_token_limit() -> None:
    engine = ScriptedEngine(BUDGET)
    with serve_scripted(engine, chat_template=THINKER) as server:
        whole = post(server, "it", thinking_budget=2, max_tokens=6).json()
    assert whole["usage"]["completion_tokens"] == 6
    assert whole["choices"][0]["finish_reason"] == "length"


def test_template_gets_the_budget() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if thinking_budget is defined %} Think for {{ thinking_budget }}.{% endif %}"
    )
    engine = ScriptedEngine("x")
    with serve_scripted(engine, chat_template=template) as server:
        assert post(server, "it", tools=None, thinking_budget=7).status_code == 200
    assert engine.jobs[-1].prompt == "say it. Think for 7."
