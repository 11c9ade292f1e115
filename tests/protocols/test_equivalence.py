"""Three dialects, one answer: chat, Responses and Messages say the same of the same engine.

Each is asked by its vendor's own client, whole and as a stream that the client adds up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import serve_scripted

THINKER = TEMPLATES / "thinker.jinja"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
PARIS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 😀", "days": 2}}\n</tool_call>'
)
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nIs it 雨 there?\n</think>\n\n"
SAYS = {
    "text": "It is raining.\n\nTake an umbrella.",
    "nothing": "",
    "thought": f"{THOUGHT}It is.",
    "call": PARIS,
    "prose": f"Let me look.\n{PARIS}",
    "both": f"{THOUGHT}Let me look. {PARIS}",
    "parallel": f"{THOUGHT}{PARIS}\n{NOW}",
    "broken": "<tool_call>\nI am not sure.\n</tool_call>",
}
CUTS = (1, 7, "words")


@dataclass
class Clients:
    """The vendors' own, for one server."""

    openai: OpenAI
    anthropic: Anthropic


@dataclass
class Told:
    """What a client was told, whatever the dialect."""

    text: str
    thoughts: str
    calls: list[tuple[str, Any]]
    ended: str
    usage: tuple[int, int]


@pytest.fixture(scope="module", params=CUTS, ids=str)
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    script = [Reply(text, when=f"#{name}#", chunks=request.param) for name, text in SAYS.items()]
    with serve_scripted(
        ScriptedEngine(script, tokens=True), chat_template=THINKER, recall=False
    ) as made:
        theirs = OpenAI(base_url=f"{made.url}/v1", api_key="x", max_retries=0)
        other = Anthropic(base_url=made.url, api_key="x", max_retries=0)
        with theirs, other:
            yield Clients(theirs, other)


def ask(name: str) -> str:
    return f"#{name}#"


def by_chat(clients: Clients, name: str, streamed: bool, **more: Any) -> Told:
    client = clients.openai
    tools: Any = [
        {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now"}},
    ]
    said: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": ask(name)}],
        "tools": tools,
        **more,
    }
    if streamed:
        options: Any = {"include_usage": True}
        with client.chat.completions.stream(**said, stream_options=options) as stream:
            whole: Any = stream.get_final_completion()
    else:
        whole = client.chat.completions.create(**said)
    (choice,) = whole.choices
    calls = choice.message.tool_calls or []
    extra = choice.message.model_extra or {}
    return Told(
        choice.message.content or "",
        extra.get("reasoning_content") or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        {"stop": "end", "tool_calls": "calls", "length": "length"}[choice.finish_reason],
        (whole.usage.prompt_tokens, whole.usage.completion_tokens),
    )


def by_responses(clients: Clients, name: str, streamed: bool, **more: Any) -> Told:
    client = clients.openai
    if "max_tokens" in more:
        more = {"max_output_tokens": more["max_tokens"]}
    tools: Any = [
        {"type": "function", "name": "weather", "parameters": SCHEMA},
        {"type": "function", "name": "now"},
    ]
    said: Any = {"model": "scripted", "input": ask(name), "tools": tools, **more}
    if streamed:
        ends = ("response.completed", "response.incomplete")
        events = client.responses.create(**said, stream=True)
        (whole,) = [event.response for event in events if event.type in ends]
    else:
        whole = client.responses.create(**said)
    calls = [item for item in whole.output if item.type == "function_call"]
    thoughts = [item for item in whole.output if item.type == "reasoning"]
    ended = "calls" if calls and whole.status == "completed" else "end"
    return Told(
        whole.output_text,
        "".join(part.text for item in thoughts for part in item.content),
        [(call.name, json.loads(call.arguments)) for call in calls],
        "length" if whole.status == "incomplete" else ended,
        (whole.usage.input_tokens, whole.usage.output_tokens),
    )


def by_messages(clients: Clients, name: str, streamed: bool, **more: Any) -> Told:
    client = clients.anthropic
    tools: Any = [
        {"name": "weather", "input_schema": SCHEMA},
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    said: Any = {
        "model": "scripted",
        "max_tokens": more.get("max_tokens", 1000),
        "messages": [{"role": "user", "content": ask(name)}],
        "tools": tools,
        "thinking": {"type": "adaptive"},
    }
    if streamed:
        with client.messages.stream(**said) as stream:
            whole: Any = stream.get_final_message()
    else:
        whole = client.messages.create(**said)
    blocks: dict[str, list[Any]] = {"text": [], "thinking": [], "tool_use": []}
    for block in whole.content:
        blocks[block.type].append(block)
    reasons = {"end_turn": "end", "tool_use": "calls", "max_tokens": "length"}
    return Told(
        "".join(block.text for block in blocks["text"]),
        "".join(block.thinking for block in blocks["thinking"]),
        [(block.name, block.input) for block in blocks["tool_use"]],
        reasons[whole.stop_reason],
        (whole.usage.input_tokens, whole.usage.output_tokens),
    )


ASKED: dict[str, Callable[..., Told]] = {
    "chat": by_chat,
    "responses": by_responses,
    "messages": by_messages,
}


def plain(told: Told) -> Told:
    """Without the white space around texts, which dialects may leave out."""
    told.text, told.thoughts = told.text.strip(), told.thoughts.strip()
    return told


@pytest.mark.parametrize("name", SAYS)
def test_all_say_the_same(clients: Clients, name: str) -> None:
    expected = plain(by_chat(clients, name, streamed=False))
    for dialect, asked in ASKED.items():
        for streamed in (False, True):
            told = plain(asked(clients, name, streamed))
            if dialect != "chat":
                told.usage = (expected.usage[0], told.usage[1])  # prompts differ in their settings
            assert told == expected, (dialect, streamed)


@pytest.mark.parametrize("limit", [1, 20, 60])
@pytest.mark.parametrize("name", ["text", "both", "parallel"])
def test_all_are_cut_alike(clients: Clients, name: str, limit: int) -> None:
    expected = plain(by_responses(clients, name, streamed=False, max_tokens=limit))
    for asked in (by_responses, by_messages):
        for streamed in (False, True):
            told = plain(asked(clients, name, streamed, max_tokens=limit))
            assert (told.text, told.thoughts) == (expected.text, expected.thoughts)
            assert (told.ended, told.usage[1]) == (expected.ended, expected.usage[1])
