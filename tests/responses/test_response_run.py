"""Turns in bad weather: cancelled while they end, left while they begin, a store that fails.

Each of these was seen to go wrong once. What must not happen is that a client is told one thing and
the store keeps another, that somebody waits for ever, or that one request holds up all others.
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

SCRIPT = [
    Reply("One, two", when="hang", hang_at=2),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]


@asynccontextmanager
async def desk(**options: Any) -> AsyncGenerator[App, None]:
    engine = ScriptedEngine(SCRIPT, tokens=True, context=options.pop("context", None))
    said = {"name": "scripted", "chat_template": TEMPLATE, "store": "sqlite://"} | options
    app = make_app(build_engine_runtime(engine, said), local=True)
    try:
        yield app
    finally:
        await app.aclose()


def play(scene: Callable[[App], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(30), desk(**options) as app:
            await scene(app)

    asyncio.run(scenario())


def asked(text: Any, **more: Any) -> responses.DecodedRequest:
    said = {"model": "scripted", "input": text} | more
    return responses.decode_request(json.dumps(said).encode())


def ignored(_: Delta) -> None:
    """Nothing is measured here."""


class Slow:
    """Holds a method of the store until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        real = getattr(Store, method)

        async def slowed(*args: Any, **more: Any) -> Any:
            self.reached.set()
            await self.go.wait()
            return await real(*args, **more)

        monkeypatch.setattr(Store, method, slowed)


async def heard(app: App, name: str) -> list[str]:
    """The kinds of all events of a response, told from its beginning."""
    frames: list[bytes] = []
    work = await app.responses.resume("", name, -1)
    await work.stream(Sink(ignored, frames.extend))
    return [json.loads(responses.get_frame_json(frame))["type"] for frame in frames]


async def launched(app: App, text: str) -> str:
    work = await app.responses.prepare(asked(text, background=True), "")
    return str(json.loads(work.whole())["id"])


async def status(app: App, name: str) -> str:
    row = await (await app.runtime.state.get_store()).get("", name)
    assert row is not None
    return row.status


@pytest.mark.parametrize(("text", "end"), [("hello", "completed"), ("break", "failed")])
def test_a_cancel_while_it_ends_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str, end: str
) -> None:
    async def scene(app: App) -> None:
        await app.runtime.state.get_store()
        slow = Slow(monkeypatch, "finish_turn")
        name = await launched(app, text)
        listening = asyncio.create_task(heard(app, name))
        await slow.reached.wait()
        cancelling = asyncio.create_task(app.responses.cancel("", name))
        await asyncio.sleep(0)
        slow.go.set()
        assert json.loads(await cancelling)["status"] == end
        assert (await listening)[-1] == f"response.{end}"
        assert await status(app, name) == end

    play(scene)


def test_leaving_while_it_is_launched_does_not_orphan_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(app: App) -> None:
        store = await app.runtime.state.get_store()
        slow = Slow(monkeypatch, "add")
        leaving = asyncio.create_task(launched(app, "hello"))
        await slow.reached.wait()
        leaving.cancel()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        engine: Any = next(iter(app.runtime.services.models.list_loaded())).engine
        await engine.until(lambda one: one.started == 1 and one.active == 0)
        await app.responder.runs.wait_idle()
        assert await store.sweep() is not None

    play(scene)


def test_a_stop_while_it_is_kept_tells_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(app: App) -> None:
        await app.runtime.state.get_store()
        slow = Slow(monkeypatch, "add")
        turn = await app.responses.prepare(asked("hello"), "")
        running = asyncio.create_task(turn.collect(ignored))
        await slow.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        slow.go.set()
        frames = await turn.fail(Unavailable("The server is stopping."))
        turn.close()
        last = json.loads(responses.get_frame_json(frames[-1]))
        assert last["type"] == "response.completed"
        assert await status(app, last["response"]["id"]) == "completed"

    play(scene)


@pytest.mark.parametrize("error", [Unavailable("It is down."), TooLarge("It is too large.")])
def test_a_store_that_fails_at_the_end_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def scene(app: App) -> None:
        await app.runtime.state.get_store()
        real, tried, done = Store.finish_turn, asyncio.Event(), asyncio.Event()

        async def failing(*args: Any, **more: Any) -> Any:
            if not tried.is_set():
                tried.set()
                raise error
            made = await real(*args, **more)
            done.set()
            return made

        monkeypatch.setattr(Store, "finish_turn", failing)
        name = await launched(app, "hello")
        await heard(app, name)
        await done.wait()
        expected = "failed" if isinstance(error, TooLarge) else "completed"
        assert await status(app, name) == expected

    play(scene)


@pytest.mark.parametrize("text", ["hello", "break"])
def test_what_could_not_be_kept_says_so(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    async def failing(*_: Any, **__: Any) -> None:
        raise Unavailable("It is down.")

    async def scene(app: App) -> None:
        await app.runtime.state.get_store()
        monkeypatch.setattr(Store, "add", failing)
        turn: Any = await app.responses.prepare(asked(text), "")
        frames = turn.start()
        try:
            await turn.stream(Sink(ignored, frames.extend))
        except EngineFailed as error:
            frames += await turn.fail(error)
        turn.close()
        events = [json.loads(responses.get_frame_json(frame)) for frame in frames]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [responses.is_final_event(frame) for frame in frames].count(True) == 1
        assert responses.is_final_event(frames[-1])
        assert events[-1]["response"]["store"] is False
        assert json.loads(turn.whole())["store"] is False

    play(scene)


def test_naming_many_items_costs_little() -> None:
    async def scene(app: App) -> None:
        turn: Any = await app.responses.prepare(asked("hello"), "")
        await turn.collect(ignored)
        turn.close()
        (item,) = turn.writer.items
        named = [{"type": "item_reference", "id": item["id"]} for _ in range(900)]
        again: Any = await app.responses.prepare(asked([*named, {"role": "user", "content": "and?"}]), "")
        again.close()
        many = asked([{"type": "item_reference", "id": f"msg_{at}"} for at in range(1001)])
        with pytest.raises(BadRequest):
            await app.responses.prepare(many, "")

    play(scene)


def test_a_long_conversation_is_shortened_in_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    real = pipeline.prepare

    async def counted(request: Request, models: Any, again: bool = False) -> pipeline.Plan:
        chat = request.prompts[0]
        assert isinstance(chat, Chat)
        tries.append(len(chat.messages))
        return await real(request, models, again)

    monkeypatch.setattr(pipeline, "prepare", counted)

    async def scene(app: App) -> None:
        said = [{"role": "user", "content": f"Message {at}."} for at in range(5000)]
        turn = await app.responses.prepare(asked(said, truncation="auto"), "")
        turn.close()
        assert "the beginning of the conversation was left out" in " ".join(turn.warnings)

    play(scene, context=2000)
    assert tries[0] == 5000
    assert 0 < tries[-1] < 100
    assert len(tries) < 20


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
def test_what_a_response_follows_has_a_bound(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("dragoman.responses.history.MOST", 5)
    monkeypatch.setattr("dragoman.responses.history.PAGE", 2)

    async def scene(app: App) -> None:
        store = await app.runtime.state.get_store()
        await store.add_conversation(StoredConversation(id="conv_1", owner="", created=1), [])
        named = "conv_1"
        for number in range(3):
            more = {kind: named} if number or kind == "conversation" else {}
            turn = await app.responses.prepare(asked("and?", **more), "")
            await turn.collect(ignored)
            turn.close()
            if kind == "previous_response_id":
                named = json.loads(turn.whole())["id"]
        with pytest.raises(BadRequest) as refused:
            await app.responses.prepare(asked("and?", **{kind: named}), "")
        assert refused.value.param == kind
        assert "at most 5 items" in refused.value.message

    play(scene)


def test_names_that_collide_are_told_apart_at_once() -> None:
    names = UniqueNames(["a"])
    found = {names.make_unique("a") for _ in range(20_000)}  # minutes, if all were tried each time
    assert len(found) == 20_000


@pytest.mark.parametrize("odd", [[], {}, 1, None])
def test_an_odd_call_in_a_history_is_no_approval(odd: Any) -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    call = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": odd}
    answer = {
        "type": "mcp_approval_response",
        "id": "a",
        "approval_request_id": "mcpr_1",
        "approve": True,
    }
    assert find_approved_calls([answer], [request, call], {"s"}) == [request]


def test_a_store_that_cannot_be_opened_is_not_tried_by_everyone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    async def failing(*_: Any, **__: Any) -> Store:
        nonlocal tries
        tries += 1
        raise Unavailable("It is down.")

    monkeypatch.setattr(Store, "open", failing)

    async def scenario() -> None:
        state = PersistentState("sqlite://", StoreLimits())
        for _ in range(3):
            with pytest.raises(Unavailable):
                await state.get_store()
        first, second = await asyncio.gather(state.get_signer(), state.get_signer())
        sealed = first.pack("", "x", b"data")
        assert second.unpack("", "x", sealed) == b"data"

    asyncio.run(scenario())
    assert tries == 1


@pytest.mark.parametrize(("after", "first"), [(-5, 0), (-1, 0), (2, 3), (10**9, None)])
def test_where_a_finished_background_response_is_heard_from(after: int, first: int | None) -> None:
    async def scene(app: App) -> None:
        name = await launched(app, "hello")
        await heard(app, name)
        frames: list[bytes] = []
        work = await app.responses.resume("", name, max(-1, after))
        await work.stream(Sink(ignored, frames.extend))
        numbers = [json.loads(responses.get_frame_json(frame))["sequence_number"] for frame in frames]
        assert numbers[:1] == ([] if first is None else [first])

    play(scene)


def test_a_call_that_was_cut_is_not_gone_on_from() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris, the capital of France"}}'

    async def scenario() -> None:
        engine = ScriptedEngine(call, tokens=True)
        said = {"name": "scripted", "store": "sqlite://"}
        app = make_app(build_engine_runtime(engine, said), local=True)
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
        turn: Any = await app.responses.prepare(asked("hi", tools=[tool], max_output_tokens=60), "")
        await turn.collect(ignored)
        turn.close()
        again: Any = await app.responses.prepare(asked("and?", previous_response_id=turn.id), "")
        again.close()
        assert not any(item["type"] == "function_call" for item in again.items)
        await app.aclose()

    asyncio.run(scenario())
