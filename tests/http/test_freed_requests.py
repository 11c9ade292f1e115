"""What belongs to a request is freed when it ends, without a garbage collection.

Collections are rare in a server. A reference cycle, or a reference that something keeps, would hold
the bodies, prompts and answers of many requests until then.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.telemetry.record import RequestRecord
from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import THINKER
from tests.support import soak
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted
from tests.support.soak import SoakLoad

REPETITIONS = 6
LARGE = "x" * (1 << 20)  # decoded in a worker thread


async def send_invalid(load: SoakLoad, client: httpx.AsyncClient) -> str:
    """Send requests that fail at different stages."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        (soak.CHAT, make_chat(temperature="hot")),
        (soak.CHAT, make_chat(LARGE, temperature="hot")),
        (soak.CHAT, make_chat(LARGE)),
        (soak.CHAT, make_chat(model="nobody")),
        (soak.RESPONSES, {"model": "scripted", "input": "a", "previous_response_id": "resp_1"}),
        (soak.RESPONSES, {"model": "scripted", "input": "a", "conversation": "conv_1"}),
    ]
    for path, body in bodies:
        response = await client.post(path, json=body)
        assert 400 <= response.status_code < 500, response.text
    return "refused"


class SteadyLoad(SoakLoad):
    """Draws the same numbers each time, so that caches do not grow."""

    def draw(self, limit: int) -> int:
        return 0


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    replies = [msgspec.convert(reply, Reply) for reply in soak.SCRIPT]
    return ScriptedEngine(replies, grammars=True, context=100_000)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine, store="sqlite://", chat_template=str(THINKER)) as running:
        yield running


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def count_objects(engine: ScriptedEngine) -> Counter[str]:
    """Count the live objects of our own classes; cyclic garbage is alive, too."""
    engine.jobs.clear()  # what it records
    kinds = Counter(map(type, gc.get_objects()))
    names = {f"{kind.__module__}.{kind.__qualname__}": n for kind, n in kinds.items()}
    return Counter({name: n for name, n in names.items() if is_ours(name)})


def is_ours(name: str) -> bool:
    """Whether a class is ours; expressions of SQLAlchemy, with our column types, are cyclic."""
    return name.startswith("dragoman.") and name != "dragoman.store.tables.EscapedText"


def wait_until_freed(engine: ScriptedEngine, before: Counter[str]) -> set[str]:
    """Wait until nothing is left of most repetitions; return what is left after a while.

    The last request may be left: timers and connections keep its context for a while.
    """
    deadline = time.monotonic() + 20
    while True:
        left = count_objects(engine) - before
        many = {name for name, count in left.items() if count >= REPETITIONS}
        if not many or time.monotonic() > deadline:
            return many
        time.sleep(0.05)  # there is no event to wait for


def repeat(load: SoakLoad, operation: soak.Operation, times: int) -> None:
    """Repeat an operation, each time with a connection of its own."""
    for _ in range(times):
        asyncio.run(load.run_once(operation))
    assert not load.problems, load.problems


@pytest.mark.parametrize(
    "operation",
    [*(op for op in dict.fromkeys(soak.OPERATIONS) if op is not soak.attack), send_invalid],
    ids=lambda operation: operation.__name__,
)
@pytest.mark.usefixtures("_no_collections")
def test_requests_are_freed_when_they_end(
    server: RunningServer, engine: ScriptedEngine, operation: soak.Operation
) -> None:
    load = SteadyLoad(server.url, {"anna": "key"}, seed=1)
    load.read_pause = 0.001
    repeat(load, operation, 2)  # fills caches
    gc.collect()
    before = count_objects(engine)
    repeat(load, operation, REPETITIONS)
    assert not wait_until_freed(engine, before)


def is_held(response: httpx.Response) -> bool:
    """Whether the record of a request is in memory, after a garbage collection."""
    gc.collect()
    records = [thing for thing in gc.get_objects() if isinstance(thing, RequestRecord)]
    return response.headers["x-request-id"] in [record.request_id for record in records]


def test_the_request_that_opens_the_store_is_freed(engine: ScriptedEngine) -> None:
    with serve_scripted(engine, store="sqlite://") as server:
        body = {"model": "scripted", "input": "a"}
        response = httpx.post(f"{server.url}{soak.RESPONSES}", json=body)
        assert response.status_code == 200, response.text
        poll_until(lambda: not is_held(response))


def test_a_request_is_freed_while_others_run() -> None:
    body = make_chat(stream=True)
    with serve_scripted(ScriptedEngine(Reply("one two", hang_at=1))) as server:
        url = f"{server.url}{soak.CHAT}"
        with (
            httpx.stream("POST", url, json=body) as first,
            httpx.stream("POST", url, json=body) as second,
        ):
            lines = [response.iter_lines() for response in (first, second)]
            assert all(map(next, lines))
            first.close()
            poll_until(lambda: not is_held(first))
            assert is_held(second)
