"""Responses that are cancelled while they end, abandoned while they start, or cannot be stored.

Each of these was a bug once. The client and the store must never disagree about a response, nobody
may wait for ever, and no request may delay all others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.errors import BadRequest, EngineFailed, TooLarge, Unavailable
from dragoman.events import Delta
from dragoman.http.app import App
from dragoman.http.server import make_app
from dragoman.pipeline import pipeline
from dragoman.pipeline.plan import Plan
from dragoman.protocols import responses
from dragoman.protocols.responses.types import UniqueNames
from dragoman.responses.run import Sink
from dragoman.responses.state import PersistentState
from dragoman.responses.tool_rounds import find_approved_calls
from dragoman.runtime import build_engine_runtime
from dragoman.store.rows import StoredConversation, StoreLimits
from dragoman.store.store import Store
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Chat, Request
from tests.support.state_server import TEMPLATE
from tests.support.stores import add_conversation, get_response, intercept

SCRIPT = [
    Reply("One, two", when="hang", hang_at=2),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]


@asynccontextmanager
async def open_app(**options: Any) -> AsyncGenerator[App, None]:
    engine = ScriptedEngine(SCRIPT, tokens=True, context=options.pop("context", None))
    settings = {"name": "scripted", "chat_template": TEMPLATE, "store": "sqlite://"} | options
    app = make_app(build_engine_runtime(engine, settings), local=True)
    try:
        yield app
    finally:
        await app.aclose()


def run_with_app(scenario: Callable[[App], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), open_app(**options) as app:
            await scenario(app)

    asyncio.run(run())


def make_request(input_items: Any, **fields: Any) -> responses.DecodedRequest:
    body = {"model": "scripted", "input": input_items} | fields
    return responses.decode_request(json.dumps(body).encode())


def ignore(_: Delta) -> None:
    """Nothing is measured here."""


class Pause:
    """Pauses a store method until the test resumes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.reached = asyncio.Event()
        self.resume = asyncio.Event()

        async def wait(call: Callable[[], Awaitable[Any]]) -> Any:
            self.reached.set()
            await self.resume.wait()
            return await call()

        intercept(monkeypatch, method, wait)


async def follow(app: App, response: str) -> list[str]:
    """The types of all events of a response, from its beginning."""
    frames: list[bytes] = []
    run = await app.responses.resume("", response, -1)
    await run.stream(Sink(ignore, frames.extend))
    return [json.loads(responses.get_frame_json(frame))["type"] for frame in frames]


async def start_in_background(app: App, text: str) -> str:
    run = await app.responses.prepare(make_request(text, background=True), "")
    return str(json.loads(await run.collect(ignore))["id"])


async def get_status(app: App, response: str) -> str:
    row = await get_response(await app.runtime.state.get_store(), "", response)
    assert row is not None
    return row.status


@pytest.mark.parametrize(("text", "status"), [("hello", "completed"), ("break", "failed")])
def test_cancelling_a_response_that_is_ending_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, text: str, status: str
) -> None:
    async def scenario(app: App) -> None:
        await app.runtime.state.get_store()
        pause = Pause(monkeypatch, "finish_response")
        name = await start_in_background(app, text)
        following = asyncio.create_task(follow(app, name))
        await pause.reached.wait()
        cancelling = asyncio.create_task(app.responses.cancel("", name))
        await asyncio.sleep(0)
        pause.resume.set()
        assert json.loads(await cancelling)["status"] == status
        assert (await following)[-1] == f"response.{status}"
        assert await get_status(app, name) == status

    run_with_app(scenario)


def test_a_response_runs_even_if_its_client_disconnects_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(app: App) -> None:
        store = await app.runtime.state.get_store()
        pause = Pause(monkeypatch, "add_response")
        starting = asyncio.create_task(start_in_background(app, "hello"))
        await pause.reached.wait()
        starting.cancel()
        pause.resume.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        engine: Any = next(iter(app.runtime.services.models.list_loaded())).engine
        await engine.wait_until(lambda scripted: scripted.started == 1 and scripted.active == 0)
        await app.responder.runs.wait_idle()
        assert await store.sweep() is not None

    run_with_app(scenario)


def test_stopping_while_a_response_is_stored_sends_its_real_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(app: App) -> None:
        await app.runtime.state.get_store()
        pause = Pause(monkeypatch, "add_response")
        run = await app.responses.prepare(make_request("hello"), "")
        collecting = asyncio.create_task(run.collect(ignore))
        await pause.reached.wait()
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        pause.resume.set()
        frames = await run.fail(Unavailable("The server is stopping."))
        run.close()
        last = json.loads(responses.get_frame_json(frames[-1]))
        assert last["type"] == "response.completed"
        assert await get_status(app, last["response"]["id"]) == "completed"

    run_with_app(scenario)


@pytest.mark.parametrize("error", [Unavailable("It is down."), TooLarge("It is too large.")])
def test_a_response_that_could_not_be_stored_is_stored_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def scenario(app: App) -> None:
        await app.runtime.state.get_store()
        tried, done = asyncio.Event(), asyncio.Event()

        async def fail_once(call: Callable[[], Awaitable[Any]]) -> Any:
            if not tried.is_set():
                tried.set()
                raise error
            result = await call()
            done.set()
            return result

        intercept(monkeypatch, "finish_response", fail_once)
        name = await start_in_background(app, "hello")
        await follow(app, name)
        await done.wait()
        expected = "failed" if isinstance(error, TooLarge) else "completed"
        assert await get_status(app, name) == expected

    run_with_app(scenario)


@pytest.mark.parametrize(
    ("second", "status"),
    [(TooLarge("It is too large."), "failed"), (BadRequest("No."), "in_progress")],
)
def test_a_response_that_can_never_be_stored_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, second: Exception, status: str
) -> None:
    """The store is unavailable first; once it is back, it refuses the first response for good."""

    async def scenario(app: App) -> None:
        await app.runtime.state.get_store()
        errors: list[Exception] = [Unavailable("It is down."), Unavailable("It is down."), second]

        all_stored, expected = asyncio.Event(), 2 if status == "failed" else 1

        async def fail(call: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal expected
            if errors:
                raise errors.pop(0)
            result = await call()
            expected -= 1
            if not expected:
                all_stored.set()
            return result

        intercept(monkeypatch, "finish_response", fail)
        names = []
        for _ in range(2):
            names.append(await start_in_background(app, "hello"))
            await follow(app, names[-1])
        await all_stored.wait()
        assert [await get_status(app, name) for name in names] == [status, "completed"]

    run_with_app(scenario)


def test_a_running_response_whose_events_are_refused_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request to cancel the other comes from another process, through the store."""

    async def scenario(app: App) -> None:
        store = await app.runtime.state.get_store()
        refusals: list[int] = []

        async def refuse(_: Callable[[], Awaitable[Any]]) -> None:
            refusals.append(1)
            raise TooLarge("It is too large.")

        intercept(monkeypatch, "responses.append_frames", refuse)
        refused = [await start_in_background(app, "hang") for _ in range(2)]
        name = refused[1]
        await store.write(lambda tx: tx.responses.request_cancel("", name))
        await follow(app, name)
        assert await get_status(app, name) == "cancelled"
        await app.responses.cancel("", refused[0])
        assert len(refusals) <= len(refused)  # none is tried again

    run_with_app(scenario)


@pytest.mark.parametrize("text", ["hello", "break"])
def test_a_response_that_is_not_stored_says_so(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    async def fail(_: Callable[[], Awaitable[Any]]) -> None:
        raise Unavailable("It is down.")

    async def scenario(app: App) -> None:
        await app.runtime.state.get_store()
        intercept(monkeypatch, "add_response", fail)
        run: Any = await app.responses.prepare(make_request(text), "")
        frames = run.start()
        try:
            await run.stream(Sink(ignore, frames.extend))
        except EngineFailed as error:
            frames += await run.fail(error)
        run.close()
        events = [json.loads(responses.get_frame_json(frame)) for frame in frames]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [responses.is_final_event(frame) for frame in frames].count(True) == 1
        assert responses.is_final_event(frames[-1])
        assert events[-1]["response"]["store"] is False
        assert json.loads(run.encode_whole())["store"] is False

    run_with_app(scenario)


def test_referencing_one_item_many_times_is_cheap() -> None:
    async def scenario(app: App) -> None:
        run: Any = await app.responses.prepare(make_request("hello"), "")
        await run.collect(ignore)
        run.close()
        (item,) = run.encoder.finished_items
        references = [{"type": "item_reference", "id": item["id"]} for _ in range(900)]
        message = {"role": "user", "content": "and?"}
        continued = await app.responses.prepare(make_request([*references, message]), "")
        continued.close()
        many = make_request([{"type": "item_reference", "id": f"msg_{n}"} for n in range(1001)])
        with pytest.raises(BadRequest):
            await app.responses.prepare(many, "")

    run_with_app(scenario)


def test_truncating_a_long_conversation_takes_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    original = pipeline.prepare

    async def count_attempts(request: Request, services: Any, admitted: bool) -> Plan:
        chat = request.prompts[0]
        assert isinstance(chat, Chat)
        attempts.append(len(chat.messages))
        return await original(request, services, admitted)

    monkeypatch.setattr(pipeline, "prepare", count_attempts)

    async def scenario(app: App) -> None:
        messages = [{"role": "user", "content": f"Message {n}."} for n in range(5000)]
        run = await app.responses.prepare(make_request(messages, truncation="auto"), "")
        run.close()
        assert "the beginning of the conversation was left out" in " ".join(run.warnings)

    run_with_app(scenario, context=2000)
    assert attempts[0] == 5000
    assert 0 < attempts[-1] < 100
    assert len(attempts) < 20


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
def test_a_history_has_a_limit(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("dragoman.responses.history.MAX_ITEMS", 5)
    monkeypatch.setattr("dragoman.responses.history.PAGE_SIZE", 2)

    async def scenario(app: App) -> None:
        store = await app.runtime.state.get_store()
        await add_conversation(store, StoredConversation(id="conv_1", owner="", created=1))
        previous = "conv_1"
        for number in range(3):
            fields = {kind: previous} if number or kind == "conversation" else {}
            run = await app.responses.prepare(make_request("and?", **fields), "")
            body = await run.collect(ignore)
            run.close()
            if kind == "previous_response_id":
                previous = json.loads(body)["id"]
        with pytest.raises(BadRequest) as caught:
            await app.responses.prepare(make_request("and?", **{kind: previous}), "")
        assert caught.value.param == kind
        assert "at most 5 items" in caught.value.message

    run_with_app(scenario)


def test_making_many_names_unique_is_fast() -> None:
    names = UniqueNames(["a"])
    unique = {
        names.make_unique("a") for _ in range(20_000)
    }  # takes minutes if every name is tried each time
    assert len(unique) == 20_000


@pytest.mark.parametrize("invalid", [[], {}, 1, None])
def test_a_call_with_an_invalid_request_id_does_not_count_as_approved(invalid: Any) -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    call = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": invalid}
    answer = {
        "type": "mcp_approval_response",
        "id": "a",
        "approval_request_id": "mcpr_1",
        "approve": True,
    }
    assert find_approved_calls([answer], [request, call], {"s"}) == [request]


def test_opening_a_broken_store_is_not_retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def fail(*_: Any, **__: Any) -> Store:
        nonlocal attempts
        attempts += 1
        raise Unavailable("It is down.")

    monkeypatch.setattr(Store, "open", fail)

    async def scenario() -> None:
        state = PersistentState("sqlite://", StoreLimits())
        for _ in range(3):
            with pytest.raises(Unavailable):
                await state.get_store()
        first, second = await asyncio.gather(state.get_signer(), state.get_signer())
        packed = first.pack("", "x", b"data")
        assert second.unpack("", "x", packed) == b"data"

    asyncio.run(scenario())
    assert attempts == 1


@pytest.mark.parametrize(("after", "first"), [(-5, 0), (-1, 0), (2, 3), (10**9, None)])
def test_a_finished_background_response_is_replayed_from_an_event(
    after: int, first: int | None
) -> None:
    async def scenario(app: App) -> None:
        name = await start_in_background(app, "hello")
        await follow(app, name)
        frames: list[bytes] = []
        run = await app.responses.resume("", name, max(-1, after))
        await run.stream(Sink(ignore, frames.extend))
        events = [json.loads(responses.get_frame_json(frame)) for frame in frames]
        numbers = [event["sequence_number"] for event in events]
        assert numbers[:1] == ([] if first is None else [first])

    run_with_app(scenario)


def test_a_call_that_was_cut_off_is_not_in_the_history() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris, the capital of France"}}'

    async def scenario() -> None:
        engine = ScriptedEngine(call, tokens=True)
        settings = {"name": "scripted", "store": "sqlite://"}
        app = make_app(build_engine_runtime(engine, settings), local=True)
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
        run: Any = await app.responses.prepare(
            make_request("hi", tools=[tool], max_output_tokens=60), ""
        )
        await run.collect(ignore)
        run.close()
        continued: Any = await app.responses.prepare(
            make_request("and?", previous_response_id=run.id), ""
        )
        continued.close()
        assert not any(item["type"] == "function_call" for item in continued.items)
        await app.aclose()

    asyncio.run(scenario())
