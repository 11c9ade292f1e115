"""The default model continues its own tokens, though its client sends the turns in another form.

The model is too small to reason or to call tools by itself: a template teaches it the format, a
budget ends its reasoning, and it must call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.real_model import (
    EARLIER_TURNS,
    MODEL,
    TOOL_SCHEMAS,
    make_tool,
    serve_reasoning_model,
)
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model

STYLES = ("think", "mistral_think")
PLACES = ("Paris", "Lima", "Cairo", "Oslo", "Quito")


@pytest.fixture(scope="module", params=STYLES)
def server(default_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with serve_reasoning_model(default_model, request.param) as running:
        yield running


def ask(server: RunningServer, messages: list[Any], **fields: Any) -> httpx.Response:
    tools = [make_tool(parameters, name) for name, parameters in TOOL_SCHEMAS.items()]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "tools": tools,
        "tool_choice": "required",
    }
    body |= {"temperature": 0, "max_tokens": 160, "parallel_tool_calls": False}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body | fields, timeout=300)
    assert response.status_code == 200, response.text
    return response


def rewrite_turn(message: dict[str, Any]) -> dict[str, Any]:
    """Return a turn as a client sends it back: without reasoning, and with other JSON."""
    calls = []
    for call in message["tool_calls"]:
        value = json.loads(call["function"]["arguments"])
        arguments = json.dumps(dict(reversed(value.items())), indent=3)
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize("reasoning_on", [False, True], ids=["", "reasoning on"])
def test_a_tool_conversation_without_reasoning_is_in_the_prefix_cache(
    server: RunningServer, reasoning_on: bool
) -> None:
    fields: dict[str, Any] = {"thinking_budget": 24}
    if reasoning_on:
        fields["chat_template_kwargs"] = {"enable_thinking": True}
    messages: list[Any] = [
        *EARLIER_TURNS,
        {"role": "user", "content": "Is it sunny elsewhere, too?"},
    ]
    prompt_tokens = cached_tokens = with_reasoning = 0
    for turn, place in enumerate(PLACES):
        response = ask(server, messages, **fields)
        answer, header = response.json(), response.headers["x-dragoman-prompt"]
        [choice], usage = answer["choices"], answer["usage"]
        assert choice["finish_reason"] == "tool_calls"
        with_reasoning += bool(choice["message"].get("reasoning_content"))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(header, f"cached={cached}")
        if turn:
            assert f"recalled={turn}," in header
            assert header.endswith("diverged=no")
            prompt_tokens += usage["prompt_tokens"]
            cached_tokens += cached
        messages.append(rewrite_turn(choice["message"]))
        [call] = choice["message"]["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"sunny in {place}"}
        messages.append(result)
    assert with_reasoning or not reasoning_on
    assert cached_tokens >= 0.95 * prompt_tokens
