"""Jobs that an engine in a child process accepts without a call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.engines.plain_jobs import is_accepted
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.connection import ChildConnection
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.errors import DragomanError
from dragoman.types import Adapter, Capabilities, Job, Sampling
from tests.support.llama_engine import CONTEXT, EngineRunner

SIZE = 100
CAPABILITIES = Capabilities(vocabulary_size=SIZE, context=8, token_prompts=True)
PLAIN: dict[str, Any] = {"id": "j", "prompt": [0, 1, SIZE - 1]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"sampling": Sampling(temperature=2.0, top_p=0.5, seed=1, max_tokens=9)}, True),
        ({"prompt": [5] * 7}, True),
        ({"prompt": [5] * 8}, False),
        ({"prompt": [SIZE]}, False),
        ({"prompt": [-1]}, False),
        ({"prompt": []}, False),
        ({"prompt": "text"}, False),
        ({"n": 2}, False),
        ({"logprobs": 0}, False),
        ({"prompt_logprobs": 0}, False),
        ({"grammar": "start: /a/"}, False),
        ({"lora": (Adapter("a"),)}, False),
        ({"sampling": Sampling(logit_bias={1: 1.0})}, False),
        ({"sampling": Sampling(stop_token_ids=(1,))}, False),
        ({"sampling": Sampling(samplers=("top_k",))}, False),
        ({"sampling": Sampling(temperature=2.1)}, False),
    ],
)
def test_which_jobs_are_accepted_without_a_call(change: dict[str, Any], expected: bool) -> None:
    assert is_accepted(Job(**PLAIN | change), CAPABILITIES) is expected


@pytest.mark.parametrize(
    "change", [{"vocabulary_size": None}, {"generates": False}, {"context": 3}]
)
def test_what_an_engine_needs_to_accept_them(change: dict[str, Any]) -> None:
    assert not is_accepted(Job(**PLAIN), msgspec.structs.replace(CAPABILITIES, **change))


@pytest.mark.slow
def test_only_other_jobs_are_sent_to_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    call = ChildConnection.call

    async def record(self: ChildConnection, make: Any, result_type: Any) -> Any:
        message = make(0)
        if isinstance(message, messages.AdmitJob):
            sent.append(message.job.id)
        return await call(self, make, result_type)

    async def go() -> None:
        settings = {"script": "Hello.", "tokens": True}
        engine = SubprocessEngine("dragoman.testing.scripted:create", settings, name="test")
        await engine.start()
        engine.capabilities = msgspec.structs.replace(engine.capabilities, vocabulary_size=SIZE)
        try:
            for name, prompt in (("plain", [1]), ("large", [SIZE])):
                await engine.admit(Job(id=name, prompt=prompt))
        finally:
            await engine.aclose()

    monkeypatch.setattr(ChildConnection, "call", record)
    asyncio.run(go())
    assert sent == ["large"]


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 3),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(-1, 1000),
    min_p=st.none() | st.floats(0, 1),
    mirostat=st.sampled_from([None, 0, 1, 2]),
    samplers=st.sampled_from([None, ("top_k",), ("infill",)]),
    stop_token_ids=st.sampled_from([None, (1,), (10**6,)]),
    min_tokens=st.none() | st.integers(0, 5),
    max_tokens=st.none() | st.integers(0, 10**6),
)


@pytest.mark.real_model
def test_the_default_engine_accepts_all_of_them(default_model: Path) -> None:
    runner = EngineRunner(path=str(default_model), context=CONTEXT, threads=1)
    size = runner.engine.capabilities.vocabulary_size or 0

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(
        prompt=st.lists(st.integers(-1, size), max_size=5) | st.just([5] * CONTEXT),
        sampling=SAMPLINGS,
        logprobs=st.sampled_from([None, 0, 10**6]),
    )
    def check(prompt: list[int], sampling: Sampling, logprobs: int | None) -> None:
        job = Job(id="j", prompt=prompt, sampling=sampling, logprobs=logprobs)
        if not is_accepted(job, runner.engine.capabilities):
            return
        try:
            runner.run(runner.engine.admit(job))
        except DragomanError as error:
            raise AssertionError(f"{job} is rejected: {error}") from error

    try:
        assert size > 1
        check()
    finally:
        runner.close()
