"""Deleting responses leaves no turn to replay: not in the database, in memory or in between."""

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
from dragoman.store.rows import Page, StoredTurn
from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import serve_scripted
from tests.support.stores import execute

pytestmark = pytest.mark.slow

THINKER = TEMPLATES / "thinker.jinja"
ENTRY = ReplayEntry(b"digest", b"", b"", b"ids.")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


class Session:
    """A client, and what its server has in memory and in its database."""

    def __init__(self, client: OpenAI, replay: ReplayService, url: str) -> None:
        self.client = client
        self.replay = replay
        self.url = url

    def respond(self, **fields: Any) -> str:
        return str(self.client.responses.create(model="scripted", input="hi", **fields).id)

    def chat(self, **fields: Any) -> str:
        completion = self.client.chat.completions.create(
            model="scripted", messages=MESSAGES, **fields
        )
        return str(completion.id)

    @property
    def stored(self) -> tuple[set[str | None], set[str | None]]:
        """The responses whose turns are in the database, and those in memory."""
        sources = {row[0] for row in execute(self.url, "SELECT source FROM memories")}
        return sources, {source for _, source in self.replay._cache._entries.values()}

    def wait_until_stored(self, *sources: str) -> None:
        deadline = time.monotonic() + 10
        while self.stored[0] != set(sources):
            assert time.monotonic() < deadline, self.stored
            time.sleep(0.005)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    url = f"sqlite:///{tmp_path}/store.db"
    engine = ScriptedEngine(Reply("<think>\nHm.\n</think>\n\nHello there!"), tokens=True)
    with (
        serve_scripted(engine, chat_template=THINKER, store=url) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=30) as client,
    ):
        assert server.app.runtime.services.replay is not None
        yield Session(client, server.app.runtime.services.replay, url)


def test_deleting_a_response_deletes_its_turns(session: Session) -> None:
    first = session.respond()
    second = session.respond(previous_response_id=first)
    session.wait_until_stored(first, second)
    session.client.responses.delete(second)
    assert session.stored == ({first}, {first})


def test_deleting_a_background_response_deletes_its_turns(session: Session) -> None:
    name = session.respond(background=True)
    for _ in session.client.responses.retrieve(name, stream=True):
        pass
    session.client.responses.delete(name)  # its turn may not be written yet
    assert session.stored == (set(), set())


def test_deleting_a_chat_completion_deletes_its_turns(session: Session) -> None:
    name = session.chat(store=True)
    session.wait_until_stored(name)
    session.client.chat.completions.delete(name)
    assert session.stored == (set(), set())


def test_deleting_a_conversation_deletes_the_turns_of_its_responses(session: Session) -> None:
    conversation = session.client.conversations.create().id
    inside = [session.respond(conversation=conversation) for _ in range(2)]
    outside = session.respond(instructions="Be kind.")
    session.wait_until_stored(*inside, outside)
    session.client.conversations.delete(conversation)
    assert session.stored == ({outside}, {outside})
    assert [session.client.responses.retrieve(name).id for name in inside] == inside


def test_compaction_stores_no_turn(session: Session) -> None:
    name = session.respond()
    session.wait_until_stored(name)
    session.client.responses.compact(model="scripted", previous_response_id=name)
    session.client.responses.delete(name)
    assert session.stored[0] == set()


def test_the_error_for_a_chain_without_its_beginning(session: Session) -> None:
    first = session.respond()
    second = session.respond(previous_response_id=first)
    session.client.responses.delete(first)
    with pytest.raises(openai.BadRequestError, match="the beginning of its history") as caught:
        session.respond(previous_response_id=second)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError, match="There is no response"):
        session.respond(previous_response_id="resp_x")


@pytest.mark.parametrize("limit", [1, 3, 4, 5])
def test_a_list_reads_no_more_than_it_shows(
    session: Session, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    ids = [session.chat(store=True) for _ in range(4)]
    limits: list[int] = []
    original = CompletionRepository.list_page

    def list_page(self: CompletionRepository, owner: str, page: Page) -> Any:
        limits.append(page.limit)
        return original(self, owner, page)

    monkeypatch.setattr(CompletionRepository, "list_page", list_page)
    page = session.client.chat.completions.list(limit=limit)
    assert len(page.data) == min(4, limit)
    assert page.has_more == (limit < 4)
    assert limits == [limit + 1]
    listed = session.client.chat.completions.list(limit=limit)
    assert sorted(completion.id for completion in listed) == sorted(ids)


# The cache


class SlowStore:
    """A database that writes when it is allowed to."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()
        self.rows: list[StoredTurn] = []

    async def save_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        await self.may_write.wait()
        self.rows += rows

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        return [row for row in self.rows if row.key in keys]


def test_forgotten_turns_are_not_written_later() -> None:
    async def run() -> None:
        store = SlowStore()
        cache = ReplayCache(10_000, store)
        for source in ("a", "b", "c"):
            cache.put("ann", {source: ENTRY}, source)
            cache.write("ann", "m", {source: ENTRY}, source)
            await asyncio.sleep(0)  # the first one is being written
        task = asyncio.create_task(cache.drop_entries("ann", ["a", "b"]))
        await asyncio.sleep(0.01)
        assert not task.done()  # the caller deletes from the database once the first is written
        assert [cache.get("ann", key) for key in "abc"] == [None, None, ENTRY]
        store.may_write.set()
        await task
        assert "a" in [row.key for row in store.rows]
        await cache.aclose()
        assert [row.key for row in store.rows] == ["a", "c"]

    asyncio.run(run())


def test_forgetting_affects_one_owner_and_frees_memory() -> None:
    async def run() -> None:
        cache = ReplayCache(10_000)
        for owner in ("ann", "bob"):
            cache.put(owner, {"k": ENTRY, "l": ENTRY}, "r")
        half = cache.size // 2
        cache.put("ann", {"l": ENTRY}, "later")  # another response wrote the same
        await cache.drop_entries("ann", ["r", "nowhere"])
        assert cache.get("ann", "k") is None
        assert cache.get("ann", "l") == ENTRY
        assert cache.get("bob", "k") == ENTRY
        await cache.drop_entries("ann", ["later"])
        assert cache.size == half

    asyncio.run(run())


def test_turns_read_from_the_database_are_forgotten_as_well() -> None:
    async def run() -> None:
        store = SlowStore()
        store.may_write.set()
        first = ReplayCache(10_000, store)
        first.write("ann", "m", {"k": ENTRY}, "r")
        await first.aclose()
        second = ReplayCache(10_000, store)
        await second.fetch("ann", ["k"])
        assert second.get("ann", "k") == ENTRY
        await second.drop_entries("ann", ["r"])
        assert (second.get("ann", "k"), second.size) == (None, 0)

    asyncio.run(run())
