"""Engines whose `admit` waits."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from dragoman.errors import BadRequest
from dragoman.testing import ScriptedEngine
from dragoman.types import Job
from tests.support.serving import make_chat, poll_until, serve_scripted


class SlowEngine(ScriptedEngine):
    """Waits several times before it accepts a job, or refuses it."""

    async def admit(self, job: Job) -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
        if "refuse" in str(job.prompt):
            raise BadRequest("This job is refused.", param="messages")
        await super().admit(job)


class StuckEngine(ScriptedEngine):
    """Never accepts a job."""

    was_cancelled = False
    is_waiting = False

    async def admit(self, job: Job) -> None:
        try:
            self.is_waiting = True
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def test_a_job_is_accepted_after_a_wait() -> None:
    with serve_scripted(SlowEngine("Hello!")) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("hi"))
        assert response.json()["choices"][0]["message"]["content"] == "Hello!"


def test_a_job_is_refused_after_a_wait() -> None:
    with serve_scripted(SlowEngine("Hello!")) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("refuse this"))
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "This job is refused."


def test_disconnecting_cancels_an_engine_that_does_not_answer() -> None:
    engine = StuckEngine("Hello!")
    with serve_scripted(engine) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("hi"), timeout=0.3)
        assert engine.is_waiting
        poll_until(lambda: engine.was_cancelled)
