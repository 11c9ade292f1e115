"""Answers without reasoning, because its budget is spent: no marker can open it.

A script is a model that tries to reason again; random walks are models that try everything.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dragoman.formats import find_reasoning, find_tools, get_reasoning_formats, get_tool_formats
from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from tests.pipeline.test_constrain import CALL, ROME, SCHEMA, THINKER, TOOLS, post
from tests.support.grammars import FormatPair, compile_spec, get_reasoning_format
from tests.support.serving import serve_scripted

pytestmark = pytest.mark.slow

FREE = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
CONTENT = {"kind": "json", "value": {"type": "object"}, "param": "it"}
SPECS: dict[str, dict[str, Any]] = {
    "free": {},
    "one call": {"max_calls": 1},
    "forced": {"tool_choice": "required"},
    "constrained": {"constraint": CONTENT},
}
# a reasoning format with headers is used with no other tool format
PAIRS = [(name, get_reasoning_format(name)) for name in get_tool_formats()] + [
    ("hermes_json", name) for name, entry in get_reasoning_formats().items() if entry.header is None
]


@pytest.mark.parametrize(("name", "reasoning"), dict.fromkeys(PAIRS))
def test_no_walk_contains_reasoning(name: str, reasoning: str) -> None:
    chance, pair = random.Random(name), FormatPair(name, FREE, reasoning)
    markers = find_reasoning(reasoning)
    example = find_tools(name).example
    starts = [
        "",
        "Well. ",
        example,
        f"{example}\n",
        "[",
        "{",
        *markers.opens_at_start,
        *markers.open,
    ]
    for fields in SPECS.values():
        source = pair.compile(without_reasoning=True, **fields)
        for text in pair.iter_walks(source, chance, starts):
            assert not pair.parse(text).reasoning, text


OPENERS = {
    "think": ("hermes_json", "<think>"),
    "mistral_think": ("mistral", "[THINK]"),
    "gemma4_channel": ("gemma4", "thought\n"),
    "harmony": ("harmony", "<|channel|>analysis<|message|>"),
    "inkling": ("inkling", "<|message_model|><|content_thinking|>"),
    "muse_glimmer": ("muse_glimmer", " to=self<|message|>"),
    "granite33_tags": ("granite3", find_reasoning("granite33_tags").open[0]),
}


@pytest.mark.parametrize("reasoning", OPENERS)
@pytest.mark.parametrize("fields", SPECS)
def test_reasoning_cannot_be_opened(reasoning: str, fields: str) -> None:
    name, opening = OPENERS[reasoning]
    pair = FormatPair(name, FREE, reasoning)
    assert match_grammar(pair.compile(**SPECS[fields]), opening)[1] == len(opening)
    without = pair.compile(without_reasoning=True, **SPECS[fields])
    assert match_grammar(without, opening)[1] < len(opening)


def test_an_opening_special_token_is_not_allowed() -> None:
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


def test_headers_of_calls_do_not_name_the_reasoning_channel() -> None:
    source = FormatPair("harmony", FREE).compile(without_reasoning=True)
    call = "<|channel|>{} to=functions.f <|constrain|>json<|message|>{{}}<|call|>"
    assert match_grammar(source, call.format("commentary"))[0]
    assert not match_grammar(source, call.format("analysis"))[0]


def test_the_start_of_a_marker_is_still_text() -> None:
    source = FormatPair("pythonic", FREE, "think").compile(without_reasoning=True)
    for text in ("a <b> [<b>x</b>] <thin>", "[<th", "1 < 2"):
        assert match_grammar(source, text)[0] or text.endswith("<th")
    for text in ("[<think>", "<think>", "a [f<think>", "[[<think>"):
        assert match_grammar(source, text)[1] < len(text)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (ROME, {"response_format": SCHEMA}),
        (CALL, {"tools": TOOLS, "tool_choice": "required"}),
        ("Just words.", {"tools": TOOLS}),
    ],
)
def test_a_model_cannot_reason_again_after_its_budget(
    answer: str, fields: dict[str, Any], budget: int, enabled: bool
) -> None:
    """The template opens reasoning, or the model does."""
    reasoning = ("" if enabled else "<think>") + "I go on and on and on and on and on"
    engine = ScriptedEngine([reasoning, answer] if budget else answer, grammars=True)
    kwargs = {"enable_thinking": enabled}
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, thinking_budget=budget, chat_template_kwargs=kwargs, **fields)
    assert response.status_code == 200
    last = engine.jobs[-1].grammar or ""
    assert match_grammar(last, answer)[0]
    assert match_grammar(last, f"<think>Hm.</think>{answer}")[1] < len("<think>")
