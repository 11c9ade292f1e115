"""The limits of a context: how long an answer may be, and what an error says."""

from __future__ import annotations

import httpx
import pytest
from msgspec.structs import replace

from dragoman.testing import ScriptedEngine
from tests.support.serving import make_scripted_app, run_app

PROMPT = "x" * 40  # a token for each character


@pytest.mark.parametrize(
    ("context_shift", "requested", "limit"),
    [(False, 100, 24), (False, 10, 10), (True, 100, 100), (True, 10, 10)],
)
def test_an_answer_ends_with_the_context_unless_that_shifts(
    context_shift: bool, requested: int, limit: int
) -> None:
    engine = ScriptedEngine("Hello.", tokens=True, context=64)
    engine.capabilities = replace(engine.capabilities, context_shift=context_shift)
    with run_app(make_scripted_app(engine)) as server:
        body = {"model": "scripted", "prompt": PROMPT, "max_tokens": requested}
        answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 200
    assert engine.jobs[-1].sampling.max_tokens == limit


@pytest.mark.parametrize(
    ("trained", "more"),
    [
        (None, ""),
        (32, ""),
        (131072, " (it was trained for 131072 tokens; the server's --context can raise it)"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_the_error_for_a_long_prompt_says_what_is_served_and_trained(
    path: str, trained: int | None, more: str
) -> None:
    engine = ScriptedEngine("Hello.", tokens=True, context=32)
    engine.capabilities = replace(engine.capabilities, trained_context=trained)
    body = {
        "model": "scripted",
        "max_tokens": 4,
        **(
            {"prompt": PROMPT}
            if path == "/v1/completions"
            else {"messages": [{"role": "user", "content": PROMPT}]}
        ),
    }
    with run_app(make_scripted_app(engine)) as server:
        answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    if path == "/v1/messages":
        assert message == f"prompt is too long: 40 tokens > 32 maximum{more}"
    else:
        assert message.startswith(
            f"This model's maximum context length is 32 tokens{more}. However"
        )
