"""A request that kills the engine each time is refused; those that ran beside it are not."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serving import poll_until
from tests.support.supervised_engine import PATIENT, SupervisedServer, serve_supervised

# ways to kill an engine: they are all the same to those who wait for it
DEADLY = ("crash", "step hang", "admit-crash")
MORE_DEADLY = ("segfault", "exit")  # in heavy/test_poison.py


@pytest.fixture(scope="module")
def server() -> Iterator[SupervisedServer]:
    with serve_supervised() as server:
        yield server


def check_third_try(server: SupervisedServer, prompts: tuple[str, ...]) -> None:
    for number, prompt in enumerate(prompts, 1):
        statuses = [server.complete(prompt).status_code for _ in range(2)]
        assert statuses == [503, 503], prompt
        refused = server.complete(prompt)
        assert refused.status_code == 422, prompt
        assert refused.json()["error"]["code"] == "poison_request"
        assert server.complete("step").status_code == 200
        assert sum(server.count_restarts().values()) == 2 * number, "the refused one reached it"


def test_the_third_try_is_refused(server: SupervisedServer) -> None:
    check_third_try(server, DEADLY)


def test_a_refused_stream_gets_no_headers_of_a_stream(server: SupervisedServer) -> None:
    prompt = "step crash stream"
    for _ in range(2):
        assert '"code":"engine_down"' in server.complete(prompt, stream=True).text
    refused = server.complete(prompt, stream=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "poison_request")


def test_a_new_id_or_seed_does_not_hide_it_and_another_prompt_does_not_match(
    server: SupervisedServer,
) -> None:
    statuses = [server.complete("crash a", seed=seed).status_code for seed in range(3)]
    assert statuses == [503, 503, 422]
    assert server.complete("crash b", seed=0).status_code == 503


@pytest.mark.parametrize("word", ["crash", "hang"])
def test_embeddings_are_refused_too(server: SupervisedServer, word: str) -> None:
    assert [server.embed("a", word).status_code for _ in range(3)] == [503, 503, 422]
    assert server.embed("a").status_code == 200


def test_requests_beside_it_are_not_refused(server: SupervisedServer) -> None:
    """Innocent requests run in both deaths, as clients that retry do, and are answered in the end.

    They are long, so that they run when the engine dies: they step until a deadly one comes.
    """
    innocent = [f"{'step wait:0.05 ' * 15}{number}" for number in range(3)]
    started = threading.Barrier(len(innocent) + 1, timeout=30)

    def retry(prompt: str) -> list[int]:
        started.wait()
        statuses: list[int] = []
        while not statuses or statuses[-1] == 503:
            statuses.append(server.complete(prompt).status_code)
        return statuses

    with ThreadPoolExecutor(len(innocent)) as pool:
        answers = [pool.submit(retry, prompt) for prompt in innocent]
        started.wait()
        deadly = [server.complete("wait:0.2 crash beside").status_code for _ in range(4)]
        statuses = [answer.result() for answer in answers]
    assert deadly == [503, 503, 422, 422]
    assert [each[-1] for each in statuses] == [200] * len(innocent)
    assert any(503 in each for each in statuses), "none of them was running when the engine died"


@pytest.mark.parametrize("fields", [{}, {"stop": ["xx"]}], ids=["finished", "cut"])
def test_a_success_clears_a_suspect(
    server: SupervisedServer, fields: dict[str, Any], tmp_path: Path
) -> None:
    """A request that was running in one death, finished since, and runs in another one."""
    may_end = tmp_path / "may_end"
    prompt = f"step until:{may_end} step step"
    for number in range(3):
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(server.complete, prompt, **fields)
            assert server.complete(f"beside:2 crash {number} {len(fields)}").status_code == 503
            assert beside.result().status_code == 503
        may_end.touch()
        assert server.complete(prompt, **fields).status_code == 200
        may_end.unlink()


KEYS = {name: {"authorization": f"Bearer {name}"} for name in ("anna", "bert")}


def complete_as(server: SupervisedServer, key: str, prompt: str) -> httpx.Response:
    body = {"model": "scripted", "prompt": prompt}
    return server.client.post("/v1/completions", json=body, headers=KEYS[key])


def test_an_owner_that_varies_the_request_is_paused_and_others_are_served() -> None:
    with serve_supervised(api_key=[*KEYS]) as server:
        assert complete_as(server, "bert", "step").status_code == 200
        deadly = [complete_as(server, "anna", f"crash {number}") for number in range(5)]
        assert [answer.status_code for answer in deadly] == [503, 503, 503, 429, 429]
        refused = deadly[-1]
        assert refused.json()["error"]["code"] == "too_many_crashes"
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        assert complete_as(server, "anna", "step").status_code == 429
        assert complete_as(server, "bert", "step").status_code == 200
        assert server.engine.restarts == 3


@pytest.mark.parametrize("word", ["kill", "hang"])
def test_an_owner_whose_requests_are_killed_or_hang_is_paused(word: str) -> None:
    """As by the kernel, for lack of memory. No process of the engine has answered this owner."""
    with serve_supervised(api_key=[*KEYS]) as server:
        assert complete_as(server, "bert", "step").status_code == 200
        deadly = [complete_as(server, "anna", f"{word} {number}") for number in range(4)]
        assert [answer.status_code for answer in deadly] == [503, 503, 503, 429]
        assert deadly[-1].json()["error"]["code"] == "too_many_crashes"
        assert complete_as(server, "bert", "step").status_code == 200


def test_nobody_is_paused_or_refused_when_others_kill_the_engine() -> None:
    """Both owners send requests all the time, with few prompts; then the engine is killed."""
    with serve_supervised(api_key=[*KEYS]) as server:
        outcomes: Counter[int] = Counter()
        stopped = threading.Event()

        def repeat(key: str) -> None:
            while not stopped.is_set():
                answer = complete_as(server, key, f"wait:0.01 step wait:0.01 {key}")
                outcomes[answer.status_code] += 1

        threads = [threading.Thread(target=repeat, args=[key]) for key in (*KEYS, *KEYS)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 9):
                before = outcomes[200]
                poll_until(lambda: outcomes[200] >= before + 20)  # noqa: B023
                pid = server.engine.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                poll_until(lambda: server.engine.restarts == number)  # noqa: B023
        finally:
            stopped.set()
            for thread in threads:
                thread.join(60)
        assert set(outcomes) == {200, 503}


def test_a_request_with_tokens_is_not_refused_because_others_kill_the_engine() -> None:
    body = {"model": "scripted", "prompt": "step hang", "stream": True}
    with serve_supervised(timing=PATIENT) as server:
        for number in range(1, 5):
            with server.client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200, "it is refused"
                texts = response.iter_text()
                next(texts)
                pid = server.engine.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                assert '"code":"engine_down"' in "".join(texts)
            poll_until(lambda: server.engine.restarts == number)  # noqa: B023
