"""Answers that may not think, because the time for thoughts is over: no mark of any can be written.

A script is a model that wants to think again; walks by chance are models that try everything.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dragoman.formats import find_reasoning, find_tools, reasoning_formats, tool_formats
from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from tests.pipeline.test_constrain import CALL, ROME, SCHEMA, THINKER, TOOLS, post
from tests.support.grammars import FormatPair, compile_spec, get_reasoning_format
from tests.support.serving import serve_scripted

pytestmark = pytest.mark.slow

FREE = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
CONTENT = {"kind": "json", "value": {"type": "object"}, "param": "it"}
ORDERS: dict[str, dict[str, Any]] = {
    "free": {},
    "one call": {"parallel_calls": False},
    "forced": {"tool_choice": "required"},
    "shaped": {"constraint": CONTENT},
}
# thoughts that go with headers of their own stand in no other format
PAIRS = [(name, get_reasoning_format(name)) for name in tool_formats()] + [
    ("hermes_json", name) for name, one in reasoning_formats().items() if one.header is None
]


@pytest.mark.parametrize(("name", "reasoning"), dict.fromkeys(PAIRS))
def test_no_walk_leads_to_a_thought(name: str, reasoning: str) -> None:
    chance, pair = random.Random(name), FormatPair(name, FREE, reasoning)
    thoughts = find_reasoning(reasoning)
    example = find_tools(name).example
    starts = [
        "",
        "Well. ",
        example,
        f"{example}\n",
        "[",
        "{",
        *thoughts.opens_at_start,
        *thoughts.open,
    ]
    for order in ORDERS.values():
        source = pair.compile(without_reasoning=True, **order)
        for text in pair.iter_walks(source, chance, starts):
            assert not pair.parse(text).reasoning, text


OPENED = {
    "think": ("hermes_json", "<think>"),
    "mistral_think": ("mistral", "[THINK]"),
    "gemma4_channel": ("gemma4", "thought\n"),
    "harmony": ("harmony", "<|channel|>analysis<|message|>"),
    "inkling": ("inkling", "<|message_model|><|content_thinking|>"),
    "muse_glimmer": ("muse_glimmer", " to=self<|message|>"),
    "granite33_tags": ("granite3", find_reasoning("granite33_tags").open[0]),
}


@pytest.mark.parametrize("reasoning", OPENED)
@pytest.mark.parametrize("order", ORDERS)
def test_a_thought_cannot_be_opened(reasoning: str, order: str) -> None:
    name, opening = OPENED[reasoning]
    pair = FormatPair(name, FREE, reasoning)
    assert match_grammar(pair.compile(**ORDERS[order]), opening)[1] == len(opening)
    silent = pair.compile(without_reasoning=True, **ORDERS[order])
    assert match_grammar(silent, opening)[1] < len(opening)


def test_a_mark_that_is_a_token_cannot_be_said() -> None:
    source = compile_spec(
        FREE,
        tool_format="hermes_json",
        reasoning_format="think",
        without_reasoning=True,
        special_tokens=TOKENS,
    )
    assert match_grammar(source, "Well.", tuple(TOKENS)) == (True, 5)
    assert match_grammar(source, "Well.<think>", tuple(TOKENS)) == (False, 5)


TOKENS = {"<think>": 256, "</think>": 257}


def test_headers_of_calls_name_no_channel_of_thoughts() -> None:
    source = FormatPair("harmony", FREE).compile(without_reasoning=True)
    call = "<|channel|>{} to=functions.f <|constrain|>json<|message|>{{}}<|call|>"
    assert match_grammar(source, call.format("commentary"))[0]
    assert not match_grammar(source, call.format("analysis"))[0]


def test_what_begins_like_a_mark_is_still_text() -> None:
    source = FormatPair("pythonic", FREE, "think").compile(without_reasoning=True)
    for text in ("a <b> [<b>x</b>] <thin>", "[<th", "1 < 2"):
        assert match_grammar(source, text)[0] or text.endswith("<th")
    for text in ("[<think>", "<think>", "a [f<think>", "[[<think>"):
        assert match_grammar(source, text)[1] < len(text)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (ROME, {"response_format": SCHEMA}),
        (CALL, {"tools": TOOLS, "tool_choice": "required"}),
        ("Just words.", {"tools": TOOLS}),
    ],
)
def test_a_model_that_wants_to_think_again_cannot(
    said: str, fields: dict[str, Any], budget: int, enabled: bool
) -> None:
    """The template opens thoughts, or the model does."""
    thoughts = ("" if enabled else "<think>") + "I go on and on and on and on and on"
    engine = ScriptedEngine([thoughts, said] if budget else said, grammars=True)
    kwargs = {"enable_thinking": enabled}
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, thinking_budget=budget, chat_template_kwargs=kwargs, **fields)
    assert response.status_code == 200
    last = engine.jobs[-1].grammar or ""
    assert match_grammar(last, said)[0]
    assert match_grammar(last, f"<think>Hm.</think>{said}")[1] < len("<think>")
