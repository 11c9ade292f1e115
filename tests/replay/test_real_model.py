"""The real default model goes on from what it said, though its client tells it back otherwise.

The model is too small to think or to call tools by itself: a template teaches it the format, a
budget ends its thoughts, and it must call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.real_model import MODEL, OFFERED, TURNS, thinker, tool
from tests.support.serving import RunningServer

MANNERS = ("think", "mistral_think")
PLACES = ("Paris", "Lima", "Cairo", "Oslo", "Quito")


@pytest.fixture(scope="module", params=MANNERS)
def server(default_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with thinker(default_model, request.param) as made:
        yield made


def ask(server: RunningServer, messages: list[Any], **fields: Any) -> httpx.Response:
    tools = [tool(parameters, name) for name, parameters in OFFERED.items()]
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


def retold(message: dict[str, Any]) -> dict[str, Any]:
    """A turn as a client of another mind tells it: no thoughts, and its own JSON."""
    calls = []
    for call in message["tool_calls"]:
        value = json.loads(call["function"]["arguments"])
        arguments = json.dumps(dict(reversed(value.items())), indent=3)
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize("opened", [False, True], ids=["", "opened"])
def test_a_tool_conversation_without_its_thoughts_is_read_from_the_cache(
    server: RunningServer, opened: bool
) -> None:
    fields: dict[str, Any] = {"thinking_budget": 24}
    if opened:
        fields["chat_template_kwargs"] = {"enable_thinking": True}
    messages: list[Any] = [
        *TURNS,
        {"role": "user", "content": "Is it sunny elsewhere, too?"},
    ]
    prompts = cached = thoughts = 0
    for turn, place in enumerate(PLACES):
        response = ask(server, messages, **fields)
        answer, told = response.json(), response.headers["x-dragoman-prompt"]
        [choice], usage = answer["choices"], answer["usage"]
        assert choice["finish_reason"] == "tool_calls"
        thoughts += bool(choice["message"].get("reasoning_content"))
        known = usage["prompt_tokens_details"]["cached_tokens"]
        print(told, f"cached={known}")
        if turn:
            assert f"recalled={turn}," in told
            assert told.endswith("diverged=no")
            prompts, cached = prompts + usage["prompt_tokens"], cached + known
        messages.append(retold(choice["message"]))
        [call] = choice["message"]["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"sunny in {place}"}
        messages.append(result)
    assert thoughts or not opened
    assert cached >= 0.95 * prompts
