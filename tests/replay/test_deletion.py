"""What is deleted is gone: from the store, from memory, and from the way between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from dragoman.replay import ReplayService
from dragoman.replay.cache import ReplayCache
from dragoman.replay.digest import ReplayEntry
from dragoman.store.completions import CompletionRepository
from dragoman.store.rows import StoredTurn as Row
from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import serve_scripted
from tests.support.stores import execute

THINKER = TEMPLATES / "thinker.jinja"
ENTRY = ReplayEntry(b"told", b"", b"", b"ids.")
SAID: Any = [{"role": "user", "content": "hi"}]


class Talk:
    """A client, and what its server has in memory and in its store."""

    def __init__(self, client: OpenAI, memory: ReplayService, url: str) -> None:
        self.client = client
        self.memory = memory
        self.url = url

    def respond(self, **more: Any) -> str:
        return str(self.client.responses.create(model="scripted", input="hi", **more).id)

    def chat(self, **more: Any) -> str:
        made = self.client.chat.completions.create(model="scripted", messages=SAID, **more)
        return str(made.id)

    @property
    def remembered(self) -> tuple[set[str | None], set[str | None]]:
        """Who said what is in the store, and what is in memory."""
        sources = {row[0] for row in execute(self.url, "SELECT source FROM memories")}
        return sources, {source for _, source in self.memory._cache._entries.values()}

    def settle(self, *sources: str) -> None:
        """Wait until these have been written."""
        late = time.monotonic() + 10
        while self.remembered[0] != set(sources):
            assert time.monotonic() < late, self.remembered
            time.sleep(0.005)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    url = f"sqlite:///{tmp_path}/store.db"
    engine = ScriptedEngine(Reply("<think>\nHm.\n</think>\n\nHello there!"), tokens=True)
    with (
        serve_scripted(engine, chat_template=THINKER, store=url) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=30) as client,
    ):
        assert server.app.runtime.services.replay is not None
        yield Talk(client, server.app.runtime.services.replay, url)


def test_a_deleted_response_is_not_remembered(talk: Talk) -> None:
    first = talk.respond()
    second = talk.respond(previous_response_id=first)
    talk.settle(first, second)
    talk.client.responses.delete(second)
    assert talk.remembered == ({first}, {first})


def test_a_deleted_background_response_is_not_remembered(talk: Talk) -> None:
    name = talk.respond(background=True)
    for _ in talk.client.responses.retrieve(name, stream=True):
        pass
    talk.client.responses.delete(name)  # though it may not have been written yet
    assert talk.remembered == (set(), set())


def test_a_deleted_chat_is_not_remembered(talk: Talk) -> None:
    name = talk.chat(store=True)
    talk.settle(name)
    talk.client.chat.completions.delete(name)
    assert talk.remembered == (set(), set())


def test_what_a_deleted_conversation_heard_is_not_remembered(talk: Talk) -> None:
    conversation = talk.client.conversations.create().id
    inside = [talk.respond(conversation=conversation) for _ in range(2)]
    outside = talk.respond(instructions="Be kind.")
    talk.settle(*inside, outside)
    talk.client.conversations.delete(conversation)
    assert talk.remembered == ({outside}, {outside})
    assert [talk.client.responses.retrieve(name).id for name in inside] == inside


def test_a_summary_is_nowhere_kept(talk: Talk) -> None:
    name = talk.respond()
    talk.settle(name)
    talk.client.responses.compact(model="scripted", previous_response_id=name)
    talk.client.responses.delete(name)
    assert talk.remembered[0] == set()


def test_a_chain_without_a_beginning_is_explained(talk: Talk) -> None:
    first = talk.respond()
    second = talk.respond(previous_response_id=first)
    talk.client.responses.delete(first)
    with pytest.raises(openai.BadRequestError, match="the beginning of its chain") as caught:
        talk.respond(previous_response_id=second)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError, match="There is no response"):
        talk.respond(previous_response_id="resp_x")


@pytest.mark.parametrize("limit", [1, 3, 4, 5])
def test_a_list_reads_no_more_than_it_shows(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    made = [talk.chat(store=True) for _ in range(4)]
    asked: list[int] = []
    original = CompletionRepository.list_page

    def list_page(self: CompletionRepository, owner: str, **page: Any) -> Any:
        asked.append(page["limit"])
        return original(self, owner, **page)

    monkeypatch.setattr(CompletionRepository, "list_page", list_page)
    page = talk.client.chat.completions.list(limit=limit)
    assert len(page.data) == min(4, limit)
    assert page.has_more == (limit < 4)
    assert asked == [limit + 1]
    assert sorted(one.id for one in talk.client.chat.completions.list(limit=limit)) == sorted(made)


# The shelf


class Slow:
    """A store that takes its time."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.rows: list[Row] = []

    async def save_turns(self, owner: str, rows: Sequence[Row]) -> None:
        await self.go.wait()
        self.rows += rows

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[Row]:
        return [row for row in self.rows if row.key in keys]


def test_what_is_forgotten_is_not_written_later() -> None:
    async def scene() -> None:
        store = Slow()
        shelf = ReplayCache(10_000, store)
        for source in ("a", "b", "c"):
            shelf.put("ann", {source: ENTRY}, source)
            shelf.write("ann", "m", {source: ENTRY}, source)
            await asyncio.sleep(0)  # the first is on its way
        forgetting = asyncio.create_task(shelf.forget("ann", ["a", "b"]))
        await asyncio.sleep(0.01)
        assert not forgetting.done()  # the store is asked to delete when it has the first one
        assert [shelf.get("ann", key) for key in "abc"] == [None, None, ENTRY]
        store.go.set()
        await forgetting
        assert "a" in [row.key for row in store.rows]
        await shelf.aclose()
        assert [row.key for row in store.rows] == ["a", "c"]

    asyncio.run(scene())


def test_forgetting_is_for_one_owner_and_gives_the_room_back() -> None:
    async def scene() -> None:
        shelf = ReplayCache(10_000)
        for owner in ("ann", "bob"):
            shelf.put(owner, {"k": ENTRY, "l": ENTRY}, "r")
        half = shelf.size // 2
        shelf.put("ann", {"l": ENTRY}, "later")  # said again by another
        await shelf.forget("ann", ["r", "nowhere"])
        assert shelf.get("ann", "k") is None
        assert shelf.get("ann", "l") == ENTRY
        assert shelf.get("bob", "k") == ENTRY
        await shelf.forget("ann", ["later"])
        assert shelf.size == half

    asyncio.run(scene())


def test_what_was_read_from_a_store_is_forgotten_as_well() -> None:
    async def scene() -> None:
        store = Slow()
        store.go.set()
        first = ReplayCache(10_000, store)
        first.write("ann", "m", {"k": ENTRY}, "r")
        await first.aclose()
        second = ReplayCache(10_000, store)
        await second.fetch("ann", ["k"])
        assert second.get("ann", "k") == ENTRY
        await second.forget("ann", ["r"])
        assert (second.get("ann", "k"), second.size) == (None, 0)

    asyncio.run(scene())
