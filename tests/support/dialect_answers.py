"""Asks the same question in every wire API, and reads the answers alike."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import httpx
from msgspec import Struct

DialectName: TypeAlias = Literal["chat", "responses", "messages"]
DIALECTS: tuple[DialectName, ...] = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOL_NAMES = ("weather", "forecast")


class DialectAnswer(Struct):
    """An answer, whatever the wire API; arguments are JSON text, in a whole message as a value."""

    text: str = ""
    calls: list[tuple[str, Any]] = []
    finish: str = ""  # `stop`, `calls` or `length`


def make_body(
    dialect: DialectName, choice: str, max_tokens: int | None = None, question: str = "Go."
) -> dict[str, Any]:
    """Make a request with tools; `choice` is a mode or the name of the tool to call."""
    body: dict[str, Any] = {"model": "scripted"}
    modes = {"required": "any"} if dialect == "messages" else {}
    is_mode = choice in ("auto", "required", "none")
    if dialect == "chat":
        body["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
            for name in TOOL_NAMES
        ]
        named: Any = {"type": "function", "function": {"name": choice}}
        body["tool_choice"] = choice if is_mode else named
    elif dialect == "responses":
        body["tools"] = [
            {"type": "function", "name": name, "parameters": SCHEMA} for name in TOOL_NAMES
        ]
        body["tool_choice"] = choice if is_mode else {"type": "function", "name": choice}
    else:
        body["tools"] = [{"name": name, "input_schema": SCHEMA} for name in TOOL_NAMES]
        named = {"type": "tool", "name": choice}
        body["tool_choice"] = {"type": modes.get(choice, choice)} if is_mode else named
    if dialect == "responses":
        body["input"] = question
    else:
        body["messages"] = [{"role": "user", "content": question}]
    limit = "max_output_tokens" if dialect == "responses" else "max_tokens"
    if max_tokens is not None or dialect == "messages":
        body[limit] = max_tokens or 4096
    return body


def ask(
    client: httpx.Client, dialect: DialectName, body: dict[str, Any], *, streamed: bool
) -> DialectAnswer:
    response = client.post(PATHS[dialect], json=body | {"stream": streamed})
    assert response.status_code == 200, response.text
    if streamed:
        frames = [frame for frame in response.text.split("\n\n") if frame]
        data = [frame.partition("data: ")[2] for frame in frames if not frame.startswith(":")]
        events = [json.loads(text) for text in data if text != "[DONE]"]
        return {"chat": _add_chunks, "responses": _read_last, "messages": _add_events}[dialect](
            events
        )
    readers = {"chat": _read_chat, "responses": _read_response, "messages": _read_message}
    return readers[dialect](response.json())


def _name_finish(reason: str | None) -> str:
    names = {"tool_calls": "calls", "tool_use": "calls", "max_tokens": "length", "end_turn": "stop"}
    return names.get(reason or "", reason or "")


def _read_chat(body: dict[str, Any]) -> DialectAnswer:
    [choice] = body["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return DialectAnswer(
        message["content"] or "",
        [(call["name"], call["arguments"]) for call in calls],
        _name_finish(choice["finish_reason"]),
    )


def _add_chunks(chunks: list[dict[str, Any]]) -> DialectAnswer:
    answer = DialectAnswer(calls=[])
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            answer.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                if function.get("name"):
                    answer.calls.append((function["name"], ""))
                name, arguments = answer.calls[call["index"]]
                answer.calls[call["index"]] = (name, arguments + (function.get("arguments") or ""))
            answer.finish = _name_finish(choice["finish_reason"]) or answer.finish
    return answer


def _read_response(body: dict[str, Any]) -> DialectAnswer:
    parts = [item["content"] for item in body["output"] if item["type"] == "message"]
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    finish = "length" if body["status"] == "incomplete" else "calls" if calls else "stop"
    return DialectAnswer(
        "".join(part["text"] for content in parts for part in content),
        [(call["name"], call["arguments"]) for call in calls],
        finish,
    )


def _read_last(events: list[dict[str, Any]]) -> DialectAnswer:
    """Read the response in the last event; the deltas before it must add up to the same text."""
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    answer = _read_response(events[-1]["response"])
    assert "".join(deltas) == answer.text
    return answer


def _read_message(body: dict[str, Any]) -> DialectAnswer:
    blocks = body["content"]
    return DialectAnswer(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        _name_finish(body["stop_reason"]),
    )


def _add_events(events: list[dict[str, Any]]) -> DialectAnswer:
    answer = DialectAnswer(calls=[])
    for event in events:
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                answer.calls.append((event["content_block"]["name"], ""))
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                answer.text += event["delta"]["text"]
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                name, arguments = answer.calls[-1]
                answer.calls[-1] = (name, arguments + event["delta"]["partial_json"])
            case "message_delta":
                answer.finish = _name_finish(event["delta"]["stop_reason"])
    return answer
