"""The jobs of a request run in parts, on the slots that it gets; the answer is the same."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import parse_events, serve_scripted

REPLY = Reply("zero", variants=("one", "two", "three", "four"))


def complete(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    """Request a completion, streamed and whole, and return the whole one."""
    with serve_scripted(engine) as server:
        url = f"{server.url}/v1/completions"
        body = {"model": "scripted", "prompt": "a", "seed": 0, "temperature": 1.0, **fields}
        whole: dict[str, Any] = httpx.post(url, json=body).raise_for_status().json()
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        *events, last = parse_events(httpx.post(url, json=body | stream))
    texts = {choice["index"]: "" for choice in whole["choices"]}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert last["usage"] == whole["usage"]
    return whole


@pytest.mark.parametrize("slots", [None, 1, 2, 3, 8])
def test_choices_do_not_depend_on_the_number_of_slots(slots: int | None) -> None:
    engine = ScriptedEngine(REPLY, slots=slots)
    answer = complete(engine, n=5)
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["zero", "one", "two", "three", "four"]
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == 1
    assert sum(job.n for job in engine.jobs) == 10
    assert len({job.id for job in engine.jobs}) == len(engine.jobs)
    assert max(job.n for job in engine.jobs) <= (slots or 5)


@pytest.mark.parametrize("slots", [None, 1, 3])
def test_prompts_run_on_the_slots_that_there_are(slots: int | None) -> None:
    prompts = [f"number {number}" for number in range(20)]
    engine = ScriptedEngine({prompt + "!": f"answer {prompt}" for prompt in prompts}, slots=slots)
    answer = complete(engine, prompt=[prompt + "!" for prompt in prompts])
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [f"answer {prompt}" for prompt in prompts]
    assert engine.peak <= (slots or 20)


def test_prompt_logprobs_reach_every_part_of_a_job() -> None:
    engine = ScriptedEngine(REPLY, slots=1, tokens=True)
    answer = complete(engine, prompt="ab", n=3, echo=True, logprobs=1)
    for choice in answer["choices"]:
        assert choice["text"].startswith("ab")
        assert choice["logprobs"]["tokens"][:2] == ["a", "b"]
        assert choice["logprobs"]["token_logprobs"][1] is not None


def test_a_prompt_that_ended_at_a_stop_string_frees_its_slot() -> None:
    """Else its job would go on to the end, which here never comes, and the next would wait."""
    engine = ScriptedEngine(Reply("one two three four", hang_at=3), slots=1)
    answer = complete(engine, prompt=["a", "b", "c"], stop=[" two"])
    assert [choice["text"] for choice in answer["choices"]] == ["one"] * 3


def test_a_failure_of_one_prompt_fails_the_request_and_frees_all_slots() -> None:
    engine = ScriptedEngine({"bad": Reply("x y", raise_at=1), "good": "fine"}, slots=2)
    with serve_scripted(engine) as server:
        body = {"model": "scripted", "prompt": ["good", "bad", "good", "good"]}
        response = httpx.post(f"{server.url}/v1/completions", json=body)
        gate = server.get_gate()
        assert (gate.running, gate.waiting, gate.busy_slots) == (0, 0, 0)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
