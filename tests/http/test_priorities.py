"""Priorities: how clients ask for one, and what the answer says about it."""

from __future__ import annotations

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.serving import make_chat, parse_events, poll_until, serve_scripted


@pytest.mark.parametrize(
    ("tier", "priority", "warns"),
    [
        (None, "live", False),
        ("auto", "live", False),
        ("default", "live", False),
        ("flex", "batch", False),
        ("priority", "live", True),
        ("scale", "live", True),
    ],
)
def test_service_tier_is_a_priority(tier: str | None, priority: str, warns: bool) -> None:
    """Only `flex` means something here, and the answer says so."""
    with serve_scripted(engine := ScriptedEngine("Hello.")) as server:
        for path, body in (
            ("/v1/chat/completions", make_chat(service_tier=tier)),
            ("/v1/responses", {"model": "scripted", "input": "a", "service_tier": tier}),
        ):
            response = httpx.post(server.url + path, json=body).raise_for_status()
            assert engine.jobs[-1].priority == priority
            assert ("service_tier" in response.headers.get("x-dragoman-warning", "")) == warns
            expected = "flex" if tier == "flex" else "default"
            assert response.json()["service_tier"] == expected
        stream = httpx.post(
            f"{server.url}/v1/chat/completions", json=make_chat(service_tier=tier, stream=True)
        )
        assert {event["service_tier"] for event in parse_events(stream)} == {expected}


def test_background_responses_have_a_lower_priority() -> None:
    with serve_scripted(engine := ScriptedEngine("Hello.")) as server:
        body = {"model": "scripted", "input": "a", "background": True}
        for tier, priority in (("auto", "background"), ("flex", "batch")):
            started = engine.started
            response = httpx.post(f"{server.url}/v1/responses", json=body | {"service_tier": tier})
            assert response.status_code == 200
            poll_until(lambda: engine.started > started)  # noqa: B023
            assert engine.jobs[-1].priority == priority
