"""Turns that the model wrote are found and replayed, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dragoman.prompt.conversation import flatten_content
from dragoman.replay import ReplayScope, ReplayService
from dragoman.store.rows import StoredTurn
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import (
    Adapter,
    Chat,
    Message,
    Sampling,
    make_text_content,
)
from tests.support.replay_client import (
    CALL,
    QUESTION,
    REASONING,
    REASONING_TEXT,
    STYLES,
    TAGGED,
    WEATHER,
    ReplayClient,
    answer_ids,
    edit,
    make_engine,
    read_template,
    user,
)

EXAMPLE = (  # a turn that the model did not write
    user("Hello!"),
    Message(role="assistant", content=make_text_content("Hi."), reasoning="Greet."),
)


@pytest.mark.parametrize("reasoning_on", [False, True], ids=["", "reasoning on"])
@pytest.mark.parametrize("name", STYLES)
def test_a_conversation_without_reasoning_continues_the_tokens_of_the_model(
    name: str, reasoning_on: bool
) -> None:
    """The client sends five turns of calls back without reasoning and with other JSON."""
    style = STYLES[name]
    text = style.answer.removeprefix(style.opening) if reasoning_on else style.answer
    fields = {"template_kwargs": {"enable_thinking": True}} if reasoning_on else {}

    async def run() -> None:
        client = ReplayClient(
            make_engine(style, *[text] * 5),
            read_template(style.template),
            ReplayService(),
            **fields,
        )
        client.messages += EXAMPLE
        before: list[int] = []
        for turn in range(5):
            last = user(f"And day {turn}?") if turn % 2 == 0 else client.make_result()
            earlier = [client.make_result()] if turn and turn % 2 == 0 else []
            answer = await client.send(*earlier, last)
            assert [call.name for call in answer.tool_calls] == ["weather"]
            assert answer.tool_calls[0].arguments != CALL
            assert client.prompt[: len(before)] == before
            assert client.reuse.replayed_turns == turn
            assert client.reuse.skipped == ("unknown",)
            assert client.reuse.reused_tokens == len(before)
            assert str(client.reuse).endswith("diverged=no")
            before = [*client.prompt, *answer_ids(style, text)]

    asyncio.run(run())


# Turns that the client edited


def edit_call(message: Message, **fields: Any) -> Message:
    [call] = message.tool_calls
    return edit(message, tool_calls=(msgspec.structs.replace(call, **fields),))


# what a client does to the turn, and whether it is replayed
EDITS: dict[str, tuple[Callable[[Message], Message], bool]] = {
    "unchanged": (lambda turn: turn, True),
    "white space": (lambda turn: edit(turn, content=make_text_content("  \n")), True),
    "an empty text": (lambda turn: edit(turn, content=make_text_content("")), True),
    "the reasoning": (lambda turn: edit(turn, reasoning=f"{REASONING}\n"), True),
    "other reasoning": (lambda turn: edit(turn, reasoning="Hm."), False),
    "a text": (lambda turn: edit(turn, content=make_text_content("Well.")), False),
    "another name": (lambda turn: edit_call(turn, name="now"), False),
    "other arguments": (lambda turn: edit_call(turn, arguments='{"city": "Rome"}'), False),
    "other numbers": (
        lambda turn: edit_call(turn, arguments='{"city": "Paris", "days": 3}'),
        False,
    ),
    "the same number": (
        lambda turn: edit_call(turn, arguments='{"days":2.0,"city":"Par\\u0069s"}'),
        True,
    ),
    "no JSON": (lambda turn: edit_call(turn, arguments="{"), False),
    "another id": (lambda turn: edit_call(turn, id="call_1"), True),
    "two calls": (lambda turn: edit(turn, tool_calls=turn.tool_calls * 2), False),
    "no call": (lambda turn: edit(turn, tool_calls=(), content=make_text_content("Yes.")), False),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_turn_is_replayed_if_the_client_sends_what_it_received(name: str) -> None:
    change, same = EDITS[name]

    async def run() -> None:
        engine = make_engine(TAGGED, TAGGED.answer, "Yes.")
        client = ReplayClient(engine, read_template("thinker"), ReplayService())
        turn = change(await client.send(QUESTION))
        before = [*client.prompt, *answer_ids(TAGGED, TAGGED.answer)]
        client.messages[-1] = turn
        after = user("So?")
        if turn.tool_calls:
            after = Message(
                role="tool", content=make_text_content("sunny"), tool_call_id=turn.tool_calls[0].id
            )
        await client.send(after)
        assert client.reuse.replayed_turns == same
        assert (client.prompt[: len(before)] == before) == same
        plain = ReplayClient(make_engine(TAGGED, "Yes."), read_template("thinker"), None)
        plain.messages = client.messages[:-1]
        await plain.ask()
        assert (client.prompt == plain.prompt) != same
        assert client.services.replay is not None
        stats = client.services.replay.stats
        assert (stats.replayed_turns, sum(stats.skipped.values())) == ((1, 0) if same else (0, 1))

    asyncio.run(run())


EARLIER = (user("My PIN is 4711."), Message(role="assistant", content=make_text_content("Noted.")))


@pytest.mark.parametrize("change", ["owner", "last", "first", "before", "model", "adapter"])
def test_a_text_is_replayed_for_one_owner_one_model_and_one_conversation(change: str) -> None:
    async def run() -> None:
        replay = ReplayService()
        client = ReplayClient(
            make_engine(TAGGED, f"{REASONING_TEXT}Yes."), read_template("thinker"), replay
        )
        client.request["owner"] = "one"
        client.messages += EARLIER
        answer = await client.send(QUESTION)

        async def find_turn(*messages: Message, scope: ReplayScope) -> Message:
            chat = Chat(messages=(*messages, answer, user("So?")), tools=(WEATHER,))
            turns = await replay.find_turns(chat, scope)
            return turns.chat.messages[-2]

        with await client.models.acquire("scripted") as model:
            scope = ReplayScope(model, "one")
            same = await find_turn(*EARLIER, QUESTION, scope=scope)
            assert same.replay is not None
            before = {
                "last": (*EARLIER, user("Is it?")),
                "first": (user("My PIN is 1147."), EARLIER[1], QUESTION),
                "before": (QUESTION,),
            }
            other = {
                "owner": ReplayScope(model, "two"),
                "model": ReplayScope(msgspec.structs.replace(model, id="another"), "one"),
                "adapter": ReplayScope(model, "one", (Adapter("spicy"),)),
            }
            messages = before.get(change, (*EARLIER, QUESTION))
            turn = await find_turn(*messages, scope=other.get(change, scope))
            assert turn.replay is None

    asyncio.run(run())


def test_a_turn_of_calls_is_found_by_its_call_ids_whatever_comes_before() -> None:
    """An agent that shortens old results still gets the reasoning of its calls replayed."""

    async def run() -> None:
        client = ReplayClient(
            make_engine(TAGGED, TAGGED.answer, "Yes."), read_template("thinker"), ReplayService()
        )
        await client.send(user("A long story. Is it sunny?"))
        client.messages[0] = user("[shortened]")
        await client.send(client.make_result())
        assert client.reuse.replayed_turns == 1
        assert REASONING in client.engine.tokenizer.decode(client.prompt)  # type: ignore[union-attr]

    asyncio.run(run())


def test_each_choice_is_recorded() -> None:
    async def run() -> None:
        texts = [f"{REASONING_TEXT.replace('see', word)}{word}" for word in ("one", "two")]
        reply = Reply(texts[0], variants=(texts[1],), chunks="bytes")
        engine = ScriptedEngine([reply], tokens=True)
        engine.tokenizer = TAGGED.make_tokenizer()
        client = ReplayClient(engine, read_template("thinker"), ReplayService())
        client.messages, client.request["n"] = [QUESTION], 2
        answers = await client.ask()
        assert len(answers) == 2
        prompt = list(client.prompt)
        client.request["n"] = 1
        for answer in answers:
            client.messages = [QUESTION, answer, user("So?")]
            await client.ask()
            [text] = [text for text in texts if text.endswith(flatten_content(answer.content))]
            before = [*prompt, *answer_ids(TAGGED, text)]
            assert client.prompt[: len(before)] == before

    asyncio.run(run())


# name, the model's answer, fields, how many of its tokens are replayed
ENDINGS: list[tuple[str, str, dict[str, Any], Sampling, int | None]] = [
    ("cut by max_tokens", f"{REASONING_TEXT}Yes, I think", {}, Sampling(max_tokens=20), 20),
    ("cut by a stop string", f"{REASONING_TEXT}Yes, I think", {"stop": (" I",)}, Sampling(), None),
    ("nothing", "", {}, Sampling(), None),
]


@pytest.mark.parametrize(("name", "text", "fields", "sampling", "replayed"), ENDINGS)
def test_how_an_answer_ends_decides_whether_it_is_replayed(
    name: str, text: str, fields: dict[str, Any], sampling: Sampling, replayed: int | None
) -> None:
    async def run() -> None:
        client = ReplayClient(
            make_engine(TAGGED, text, "So."), read_template("thinker"), ReplayService()
        )
        client.sampling, client.request = sampling, dict(fields)
        await client.send(QUESTION)
        before = [*client.prompt, *answer_ids(TAGGED, text)[: replayed or 0]]
        client.request.clear()
        await client.send(user("So?"))
        assert client.reuse.replayed_turns == (replayed is not None)
        assert client.prompt[: len(before)] == before
        assert ("see" in client.engine.tokenizer.decode(client.prompt)) == (replayed is not None)  # type: ignore[union-attr]

    asyncio.run(run())


def test_reasoning_that_a_budget_ends_is_replayed_with_its_end() -> None:
    async def run() -> None:
        long = f"<think>\n{'Hm. ' * 20}"
        client = ReplayClient(
            make_engine(TAGGED, long, "Yes.", "So."), read_template("thinker"), ReplayService()
        )
        client.fields["thinking_budget"] = 8
        await client.send(QUESTION)
        before = list(client.prompt)  # of the second job, after the budget
        assert len(client.engine.jobs) == 2
        await client.send(user("So?"))
        expected = [*before, *b"Yes."]
        assert client.prompt[: len(expected)] == expected
        assert client.reuse.reused_tokens == len(expected)

    asyncio.run(run())


def test_a_prompt_that_is_too_long_with_replays_is_rendered_without() -> None:
    async def run() -> None:
        engine = make_engine(TAGGED, f"<think>{'Hm. ' * 100}</think>Yes.", "So.", context=700)
        client = ReplayClient(engine, read_template("thinker"), ReplayService())
        await client.send(QUESTION)
        await client.send(user("So? " + "x" * 50))
        assert client.reuse.replayed_turns == 0
        assert client.reuse.skipped == ("room",)
        assert client.reuse.has_diverged

    asyncio.run(run())


@pytest.mark.parametrize("marker", ["\ufdd20\ufdd2", "\\ufdd20\\ufdd2", "\\uFDD20\\ufdd2"])
def test_no_client_can_forge_a_marker(marker: str) -> None:
    """Markers in a client's texts do not move a turn."""

    async def run() -> None:
        client = ReplayClient(
            make_engine(TAGGED, TAGGED.answer, "Yes."), read_template("thinker"), ReplayService()
        )
        await client.send(user(f"Is it? {marker}"))
        before = [*client.prompt, *answer_ids(TAGGED, TAGGED.answer)]
        await client.send(client.make_result(f"{marker} sunny {marker}"), user(f"{marker}?"))
        assert client.reuse.replayed_turns == 1
        assert client.prompt[: len(before)] == before
        rest = bytes(token for token in client.prompt[len(before) :] if token < 256).decode()
        assert " sunny " in rest
        shown = marker if "\\" in marker else "0"
        assert rest.count(shown) == 3

    asyncio.run(run())


# The database


class RecordingStore:
    """A database that a test can look into."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: dict[tuple[str, str], StoredTurn] = {}
        self.fails = fails
        self.reads = 0

    async def save_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self.rows |= {(owner, row.key): row for row in rows}

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        self.reads += 1
        if self.fails:
            raise OSError("the disk is gone")
        return [self.rows[owner, key] for key in keys if (owner, key) in self.rows]


def test_turns_are_stored_in_the_database_and_found_again() -> None:
    async def run() -> None:
        store = RecordingStore()
        first = ReplayClient(
            make_engine(TAGGED, TAGGED.answer), read_template("thinker"), ReplayService(store=store)
        )
        first.request["owner"] = "one"
        await first.send(QUESTION)
        before = [*first.prompt, *answer_ids(TAGGED, TAGGED.answer)]
        assert first.services.replay is not None
        await first.services.replay.aclose()
        assert {owner for owner, _ in store.rows} == {"one"}
        for owner in ("one", "two"):
            engine = make_engine(TAGGED, "Yes.", "Yes.")
            again = ReplayClient(engine, read_template("thinker"), ReplayService(store=store))
            again.request["owner"] = owner
            again.messages = list(first.messages)
            await again.send(first.make_result())
            assert again.reuse.replayed_turns == (owner == "one")
            assert (again.prompt[: len(before)] == before) == (owner == "one")
        reads = store.reads
        await again.ask()
        assert store.reads == reads + 1

    asyncio.run(run())


def test_a_database_that_fails_only_costs_the_turns_it_would_have_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        replay = ReplayService(store=RecordingStore(fails=True))
        client = ReplayClient(
            make_engine(TAGGED, TAGGED.answer, "Yes."), read_template("thinker"), replay
        )
        await client.send(QUESTION)
        await client.send(client.make_result())
        assert client.reuse.replayed_turns == 1
        await replay.aclose()

    asyncio.run(run())
    assert "cannot store turns" in caplog.text
