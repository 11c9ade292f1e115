"""Requests to Ollama's API, and the checks that every answer must pass."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx

from tests.support.serving import RunningServer

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
COUNTS = ("prompt_eval_count", "eval_count")
USER = [{"role": "user", "content": "hi"}]


def send(server: RunningServer, path: str, **fields: Any) -> httpx.Response:
    """Send a request about the scripted model."""
    body = {"model": "scripted", **fields}
    if path in ("chat", "generate") and not fields.keys() & {"messages", "prompt"}:
        body |= {"messages": USER} if path == "chat" else {"prompt": "hi"}
    return httpx.post(f"{server.url}/api/{path}", json=body, timeout=60)


def read_lines(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the lines of a stream, each of which must be JSON."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, end = response.text.split("\n")
    assert end == ""
    return [json.loads(line) for line in lines]


def check_error(response: httpx.Response, status: int) -> str:
    """Check the form of an error and return its text."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    return str(body["error"])


def check_end(answer: dict[str, Any]) -> None:
    """Check the fields that only a complete answer has."""
    assert answer["done"] is True
    for name in (*DURATIONS, *COUNTS):
        assert type(answer[name]) is int
        assert answer[name] >= 0
    assert min(answer[name] for name in DURATIONS) > 0  # clients divide by them
    parts = sum(answer[name] for name in DURATIONS[1:])
    assert answer["total_duration"] >= parts - 1_000_000


def check_time(answer: dict[str, Any]) -> None:
    text = answer["created_at"]
    assert text.endswith("Z")
    datetime.fromisoformat(text[:26] + "+00:00")


def add_lines(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up the lines of a stream to the answer that is sent whole."""
    *deltas, last = lines
    check_end(last)
    for line in lines:
        check_time(line)
        assert line["model"] == last["model"]
    for line in deltas:
        assert line["done"] is False
        assert "done_reason" not in line
        assert not line.keys() & {*DURATIONS, *COUNTS}
    parts = [_get_part(line) for line in lines]
    whole = {"content": "".join(part["content"] for part in parts)}
    reasoning = [part["thinking"] for part in parts if "thinking" in part]
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    logprobs = [entry for line in lines for entry in line.get("logprobs", ())]
    return {
        **whole,
        **({"thinking": "".join(reasoning)} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
        **({"logprobs": logprobs} if logprobs else {}),
        "done_reason": last["done_reason"],
        **{name: last[name] for name in COUNTS},
    }


def _get_part(line: dict[str, Any]) -> dict[str, Any]:
    if "message" not in line:
        thinking = {"thinking": line["thinking"]} if "thinking" in line else {}
        return {"content": line["response"], **thinking}
    message: dict[str, Any] = line["message"]
    assert message["role"] == "assistant"
    return message


def ask_both_ways(server: RunningServer, path: str, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request, after checking that its stream adds up to the same."""
    streamed = add_lines(read_lines(send(server, path, **fields)))
    response = send(server, path, **fields, stream=False)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    whole = add_lines([response.json()])
    for answer in (streamed, whole):
        for call in answer.get("tool_calls", ()):
            assert call.pop("id").startswith("call")
    assert streamed == whole
    return whole
