"""Chats with a scripted model that writes reasoning and tool calls."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from dragoman.testing import Reply
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, make_chat, parse_events

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
REASONING = "<think>\nIs it 雨 there?\n</think>\n\n"
PARIS_CALL = ("weather", {"city": "Paris 😀", "days": 2})

# the text of the request's last message -> the text that the model writes
TEXTS = {
    "reasoning": f"{REASONING}It is.",
    "only reasoning": REASONING,
    "unclosed": "<think>\nAnd then",
    "call": PARIS,
    "prose": f"Let me look.\n{PARIS}",
    "both": f"{REASONING}Let me look. {PARIS}",
    "parallel": f"{PARIS}\n{NOW}\n{ZIP}",
    "undeclared": f"Well. {OTHER}",
    "broken": f"Well. {BROKEN}",
    "zip": ZIP,
    "draft": f"<think>Maybe {PARIS}?</think>No.",
    "plain": "a < b, and <b>x</b>",
}
CHUNKINGS: dict[str, dict[str, Any]] = {
    "words": {"chunks": "words"},
    "characters": {"chunks": 1},
    "whole": {"chunks": 10_000},
    "bytes": {"chunks": "bytes"},
}


def make_replies(**options: Any) -> list[Reply]:
    return [Reply(text, when=f"say {name}.", **options) for name, text in TEXTS.items()]


def ask_both_ways(client: OpenAI, name: str, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request, after checking that its stream adds up to the same."""
    messages: Any = [{"role": "user", "content": f"say {name}."}]
    fields = {"tools": TOOLS} | fields
    whole = client.chat.completions.create(model="scripted", messages=messages, **fields)
    state = ChatCompletionStreamState()
    options: Any = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model="scripted", messages=messages, stream=True, stream_options=options, **fields
    ):
        state.handle_chunk(chunk)
    streamed_answer = normalize(state.current_completion_snapshot.model_dump(warnings=False))
    whole_answer = normalize(whole.model_dump())
    assert streamed_answer == whole_answer
    return whole_answer


def normalize(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an answer that do not depend on streaming."""
    return {
        "usage": answer["usage"],
        "choices": [
            {
                "index": choice["index"],
                "finish": choice["finish_reason"],
                "content": choice["message"]["content"] or "",
                "reasoning": choice["message"].get("reasoning_content") or "",
                "calls": [
                    (call["function"]["name"], call["function"]["arguments"])
                    for call in choice["message"].get("tool_calls") or ()
                ],
                "logprobs": (choice["logprobs"] or {}).get("content"),
            }
            for choice in answer["choices"]
        ],
    }


def parse_calls(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in choice["calls"]]


def post(server: RunningServer, name: str, **fields: Any) -> httpx.Response:
    body = make_chat(f"say {name}.", **{"tools": TOOLS} | fields)
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)


def list_deltas(response: httpx.Response) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in parse_events(response) if chunk["choices"]]
