"""The limit of request bodies follows from the context, unless the operator sets it."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from dragoman.http.body import MAXIMUM, MINIMUM, BodyLimit
from dragoman.runtime import build_engine_runtime
from dragoman.testing import ScriptedEngine
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.types.worker_threads import run_in_decoder
from tests.support.remote_engines import in_event_loop
from tests.support.serving import make_chat, serve_scripted

LONGEST = len("<|endoftext|>")  # characters of the longest token


def find_limit(context: int | None, **options: object) -> int:
    engine = ScriptedEngine("x", tokens=True, context=context)
    runtime = build_engine_runtime(engine, {"tokenizer": ByteTokenizer(), **options})
    return BodyLimit(runtime.settings, runtime.services.models.list_loaded).get()


@pytest.mark.parametrize(
    ("context", "limit"),
    [
        (512, MINIMUM),
        (8_192, MINIMUM),
        (200_000, 6 * LONGEST * (200_000 - 1)),
        (1_000_000, MAXIMUM),
        (None, MAXIMUM),
    ],
)
def test_the_limit_follows_from_the_context(context: int | None, limit: int) -> None:
    assert find_limit(context) == limit
    assert find_limit(context, body_limit=1000) == 1000


def test_without_a_model_the_limit_is_the_highest() -> None:
    runtime = build_engine_runtime(ScriptedEngine("x"), {})
    assert BodyLimit(runtime.settings, tuple).get() == MAXIMUM


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "8,388,608 bytes allowed. This follows from the model's context; the server's --body"),
        ({"body_limit": 1000}, "1,000 bytes allowed. The server's --body-limit can raise this."),
    ],
    ids=["default", "set"],
)
def test_the_error_says_where_the_limit_comes_from(options: dict[str, int], reason: str) -> None:
    engine = ScriptedEngine("x", tokens=True, context=512)
    with serve_scripted(engine, tokenizer=ByteTokenizer(), **options) as server:
        headers = {"content-length": str(MINIMUM + 1), "content-type": "application/json"}
        response = httpx.post(
            f"{server.url}/v1/chat/completions", content=b" " * (MINIMUM + 1), headers=headers
        )
        assert response.status_code == 413
        assert reason in response.json()["error"]["message"]
        fitting = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
        assert fitting.status_code == 200


@pytest.mark.parametrize("escape", ["\\n", '\\"', "\\\\", "\\/"])
def test_a_body_of_escaped_characters_is_refused_before_it_is_decoded(escape: str) -> None:
    """Each takes as long to decode as several others, and nothing else runs meanwhile."""
    with serve_scripted(ScriptedEngine("x", context=1_000_000)) as server:
        for count, status in ((2_900_000, 200), (3_100_000, 400)):
            message = f'{{"role":"user","content":"{escape * count}"}}'
            body = f'{{"model":"scripted","messages":[{message}]}}'
            answer = httpx.post(
                f"{server.url}/v1/chat/completions",
                content=body,
                headers={"content-type": "application/json"},
                timeout=60,
            )
            assert answer.status_code == status
            is_refused_early = "more than 3,000,000 escaped characters" in answer.text
            assert is_refused_early == (count > 3_000_000)


@in_event_loop
async def test_large_bodies_are_decoded_one_at_a_time() -> None:
    """Each holds the interpreter: the event loop waits for one at most."""
    running: set[int] = set()
    together: list[int] = []

    def decode(number: int) -> None:
        running.add(number)
        time.sleep(0.01)  # another one would begin
        together.append(len(running))
        running.discard(number)

    await asyncio.gather(*(run_in_decoder(decode, number) for number in range(5)))
    assert together == [1] * 5
