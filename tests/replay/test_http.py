"""What a client sees of replay: a header, metrics, and nothing of other API keys."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.replay_client import (
    REASONING_TEXT,
    TAGGED,
    TEMPLATE_DIR,
    WEATHER,
    answer_ids,
    make_engine,
)
from tests.support.serving import make_chat as make_chat_body
from tests.support.serving import serve_scripted


def post(url: str, body: dict[str, Any], key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def tool_fields() -> list[dict[str, Any]]:
    function = {"name": WEATHER.name, "parameters": WEATHER.parameters}
    return [{"type": "function", "function": function}]


def header(response: httpx.Response) -> dict[str, str]:
    parts = response.headers["x-dragoman-prompt"].split(", ")
    return dict(part.split("=") for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_and_metrics_report_how_much_of_a_prompt_is_reused(stream: bool) -> None:
    engine = make_engine(TAGGED, TAGGED.answer, "Yes.", "No.")
    with serve_scripted(engine, chat_template=TEMPLATE_DIR / "thinker.jinja") as server:
        body = make_chat_body("Is it sunny?", tools=tool_fields(), stream=False)
        first = post(server.url, body)
        assert header(first)["known"] == "0"
        message = first.json()["choices"][0]["message"]
        call = {k: v for k, v in message.items() if k in ("role", "content", "tool_calls")}
        result = {
            "role": "tool",
            "tool_call_id": message["tool_calls"][0]["id"],
            "content": "sunny",
        }
        body |= {"messages": [*body["messages"], call, result], "stream": stream}
        second = header(post(server.url, body))
        job = engine.jobs[-1]
        assert second["tokens"] == str(len(job.prompt))
        assert second["recalled"] == "1"
        assert second["diverged"] == "no"
        known = len(engine.jobs[0].prompt) + len(answer_ids(TAGGED, TAGGED.answer))
        assert second["known"] == str(known)
        body["messages"][0] = {"role": "user", "content": "Is it rainy?"}
        third = header(post(server.url, body))
        assert int(third["diverged"]) == int(third["known"]) < known
        page = httpx.get(f"{server.url}/metrics").text
        assert "dragoman_recalled_turns_total 2.0" in page
        known += int(third["known"])
        assert f"dragoman_chat_prompt_known_tokens_total {known}.0" in page
        raw = httpx.post(
            f"{server.url}/v1/completions", json={"model": "scripted", "prompt": "No?"}
        )
        assert "x-dragoman-prompt" not in raw.headers


def test_a_prewarmed_prompt_is_reused() -> None:
    engine = make_engine(TAGGED, "Yes.", "Yes.")
    with serve_scripted(engine, chat_template=TEMPLATE_DIR / "thinker.jinja") as server:
        url = f"{server.url}/v1/responses"
        body: dict[str, Any] = {"model": "scripted", "input": "Is it sunny?", "store": False}
        ahead = httpx.post(url, json=body | {"prompt_cache_options": {"prewarm": True}})
        assert ahead.json()["output"] == []
        assert ahead.json()["usage"]["output_tokens"] == 0
        then = httpx.post(url, json=body)
        assert then.json()["output"][0]["content"][0]["text"] == "Yes."
    reuse = header(then)
    assert (reuse["known"], reuse["diverged"]) == (reuse["tokens"], "no")
    assert reuse["tokens"] == str(len(engine.jobs[0].prompt))


def test_replay_can_be_turned_off() -> None:
    engine = make_engine(TAGGED, TAGGED.answer)
    with serve_scripted(
        engine, chat_template=TEMPLATE_DIR / "thinker.jinja", recall=False
    ) as server:
        response = post(server.url, make_chat_body("Is it sunny?", tools=tool_fields()))
        assert response.status_code == 200
        assert "x-dragoman-prompt" not in response.headers


def test_nothing_is_reused_across_api_keys() -> None:
    engine = make_engine(TAGGED, f"{REASONING_TEXT}Yes.", "Yes.", "Yes.")
    options = {"chat_template": TEMPLATE_DIR / "thinker.jinja", "api_key": ("one", "two")}
    with serve_scripted(engine, **options) as server:
        body = make_chat_body("Is it sunny?")
        assert header(post(server.url, body, "one"))["known"] == "0"
        body["messages"] += [
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "So?"},
        ]
        headers = {key: header(post(server.url, body, key)) for key in ("two", "one")}
        assert (headers["one"]["recalled"], headers["two"]["recalled"]) == ("1", "0")
        assert headers["two"]["known"] == "0"
