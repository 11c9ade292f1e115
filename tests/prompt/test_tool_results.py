"""Results go to their calls and runs become one, with work that grows like the conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.prompt import conversation
from dragoman.prompt.conversation import arrange_messages
from dragoman.prompt.special_tokens import join_texts, trust_text
from dragoman.prompt.template.capabilities import TemplateCapabilities
from dragoman.prompt.tool_results import match_results
from dragoman.prompt.turn import Turn
from dragoman.types import Message, ReplayedTurn, Role, ToolCall, text_content
from tests.support.work_counter import count_lines

EVERYTHING = TemplateCapabilities(
    tools_rendered=True, tool_calls_rendered=True, tool_results_rendered=True, developer=True
)


def able(**changes: Any) -> TemplateCapabilities:
    return msgspec.structs.replace(EVERYTHING, **changes)


def call(id_: str, name: str = "f") -> ToolCall:
    return ToolCall(id=id_, name=name, arguments="{}")


def calls(*ids: str) -> Turn:
    return Turn(role="assistant", tool_calls=tuple(map(call, ids)))


def result(id_: str | None, content: str = "r", name: str | None = None) -> Turn:
    return Turn(role="tool", text=content, name=name, tool_call_id=id_)


def arrange(turns: Iterable[Turn], abilities: TemplateCapabilities) -> list[Turn]:
    """Arrange the messages that these turns are of."""
    messages = [
        Message(
            role=turn.role,
            content=text_content(turn.text),
            name=turn.name,
            reasoning=turn.reasoning,
            tool_calls=turn.tool_calls,
            tool_call_id=turn.tool_call_id,
            replay=turn.replay,
        )
        for turn in turns
    ]
    return arrange_messages(messages, abilities)


USER = Turn(role="user", text="u")


# Made-up conversations

IDS, NAMES = ["", "a", "b", "c", "d"], ["f", "g", "h"]
made_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=6)
own_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=5, unique=True)
made_results = st.builds(
    result,
    st.none() | st.sampled_from([*IDS, "nobody"]),
    name=st.none() | st.sampled_from([*NAMES, "nothing"]),
)


def turns_of(ids: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[Turn]]:
    """Turns of calls, results in runs, and somebody who speaks between them."""

    def turn(ids: list[str], names: list[str]) -> Turn:
        named = zip(ids, names, strict=False)
        return Turn(role="assistant", tool_calls=tuple(call(*one) for one in named))

    called = st.builds(turn, ids, st.lists(st.sampled_from(NAMES), min_size=6, max_size=6))
    run = st.lists(made_results, min_size=1, max_size=5)
    chat = st.lists(called.map(lambda one: [one]) | run | run | st.just([USER]), max_size=10)
    return chat.map(numbered)


def numbered(runs: list[list[Turn]]) -> list[Turn]:
    """One conversation, in which every message says something else."""
    every = [turn for run in runs for turn in run]
    return [msgspec.structs.replace(turn, text=str(at)) for at, turn in enumerate(every)]


def matched(
    turns: list[Turn],
) -> Iterator[tuple[list[Turn], list[ToolCall], list[ToolCall | None]]]:
    """Each run of results, the calls open before it, and the call that each of them answers.

    It is the first open one with the id of the result; of a result without an id, the first open
    one with its name, if it has one.
    """
    still_open: list[ToolCall] = []
    for results, group in groupby(turns, lambda turn: turn.role == "tool"):
        run, before, answers = list(group), still_open, list[ToolCall | None]()
        if not results:
            last = [turn for turn in run if turn.tool_calls][-1:]
            still_open = list(last[0].tool_calls) if last else still_open
            continue
        for one in run:
            fit = (
                [known for known in still_open if known.id == one.tool_call_id]
                if one.tool_call_id is not None
                else [known for known in still_open if one.name in (None, known.name)]
            )
            answers.append(fit[0] if fit else None)
            still_open = [known for known in still_open if not fit or known is not fit[0]]
        yield run, before, answers


@given(turns_of(made_ids))
def test_every_result_is_told_the_call_that_it_answers(turns: list[Turn]) -> None:
    made = {turn.text: turn for turn in match_results(turns)}
    for run, _, answers in matched(turns):
        for one, own in zip(run, answers, strict=True):
            known = {} if own is None else {"tool_call_id": own.id, "name": one.name or own.name}
            assert made[one.text] == msgspec.structs.replace(one, **known)


@given(turns_of(own_ids))
def test_results_stand_in_the_order_of_their_calls_and_others_behind_them(
    turns: list[Turn],
) -> None:
    made = list(match_results(turns))
    for run, before, _ in matched(turns):
        places: dict[str | None, int] = {known.id: at for at, known in enumerate(before)}
        said = {one.text for one in run}
        ranks = [
            (places.get(one.tool_call_id, len(before)), int(one.text or ""))
            for one in made
            if one.text in said
        ]
        assert ranks == sorted(ranks)  # where the call is the same, as they came


@given(turns_of(made_ids))
def test_only_results_change_places_and_only_within_their_run(turns: list[Turn]) -> None:
    made = list(match_results(turns))
    for (_, before), (_, after) in zip(
        groupby(turns, lambda turn: turn.role), groupby(made, lambda turn: turn.role), strict=True
    ):
        old, new = list(before), list(after)
        assert old == new if old[0].role != "tool" else True
        assert Counter(turn.text for turn in old) == Counter(turn.text for turn in new)


@pytest.mark.parametrize(
    ("results", "wanted"), [("zb", "bz"), ("zc", "cz"), ("zcaa", "aacz"), ("aaab", "aaab")]
)
def test_where_ids_repeat_each_result_goes_to_a_call_of_its_own(results: str, wanted: str) -> None:
    made = match_results([calls("a", "a", "b", "c"), *(result(id_) for id_ in results)])
    assert "".join(one.tool_call_id or "" for one in list(made)[1:]) == wanted


@pytest.mark.parametrize("id_", ["", "a"])
def test_calls_of_one_id_made_one_by_one_share_out_their_results(id_: str) -> None:
    turn, results = calls(id_, id_), [result(id_, str(at)) for at in range(3)]
    made = arrange([USER, turn, *results], able(parallel_calls=False))
    assert [one.text for one in made if one.role in ("assistant", "tool")] == [
        *(made[1].text, "0"),
        *(made[3].text, "1", "2"),
    ]


@given(own_ids, st.lists(made_results, max_size=8))
def test_one_call_at_a_time_has_its_results_right_behind_it(
    ids: list[str], results: list[Turn]
) -> None:
    said = numbered([[calls(*ids), *results]])
    made = arrange(said, able(parallel_calls=False))
    assert Counter(turn.text for turn in made[1:] if turn.text) == Counter(
        turn.text for turn in said[1:]
    )
    assert [[one.id for one in turn.tool_calls] for turn in made if turn.tool_calls] == [
        [id_] for id_ in ids
    ]
    own = ""
    for turn in made:
        own = turn.tool_calls[0].id if turn.tool_calls else own
        if turn.role == "tool":
            assert turn.tool_call_id == own or (turn.tool_call_id not in ids and own == ids[-1])


texts = st.sampled_from(["", "x", "y"]) | st.just(join_texts([trust_text("<o>"), "z"]))
speakers = st.builds(
    Turn,
    role=st.sampled_from(["user", "assistant"]),
    text=texts,
    reasoning=st.none() | texts,
    name=st.sampled_from([None, "Ada", "Bob"]),
    tool_calls=st.sampled_from([(), (), (call("a"),), (call("b"), call("c"))]),
    replay=st.sampled_from([None, ReplayedTurn((1,), (2,))]),
)


@given(st.lists(speakers, max_size=12))
def test_a_run_of_one_role_becomes_one_message_with_all_that_was_said(
    turns: list[Turn],
) -> None:
    turns = [turn for turn in turns if turn.role == "assistant" or not turn.tool_calls]
    made = arrange(turns, able(user_twice=False, assistant_twice=False))
    runs = [list(run) for _, run in groupby(turns, lambda turn: turn.role)]
    assert [turn.role for turn in made] == [run[0].role for run in runs]
    for run, one in zip(runs, made, strict=True):
        if len(run) == 1:
            assert one == run[0]
            continue
        for field in ("content", "reasoning"):
            said = [text for text in (getattr(turn, field) for turn in run) if text]
            whole = join_texts(said, "\n\n") if said else None
            assert getattr(one, field) == whole
            parts = getattr(whole, "parts", None)  # what is ours in it stays ours
            assert getattr(getattr(one, field), "parts", None) == parts
        assert one.tool_calls == tuple(own for turn in run for own in turn.tool_calls)
        assert one.name == (run[0].name if len({turn.name for turn in run}) == 1 else None)
        assert one.replay is None


@given(st.lists(speakers, max_size=12))
def test_calls_are_not_joined_to_text_where_they_may_not_stand_together(
    turns: list[Turn],
) -> None:
    made = arrange(turns, able(assistant_twice=False, content_with_calls=False))
    assert not any(turn.tool_calls and turn.text for turn in made)
    kept = Counter(len(turn.tool_calls) for turn in turns if turn.tool_calls)
    assert Counter(len(turn.tool_calls) for turn in made if turn.tool_calls) == kept


# How much work it is


def unknown(n: int) -> list[Turn]:
    return [calls(*(f"c{at}" for at in range(n))), *(result(f"z{at}") for at in range(n))]


def backwards(n: int) -> list[Turn]:
    turn = calls(*(f"c{at}" for at in range(n)))
    return [turn, *(result(f"c{at}") for at in reversed(range(n)))]


def in_small_runs(n: int) -> list[Turn]:
    """Runs that leave most calls open, each answering one of them."""
    runs = [[result(f"c{at}"), result("z"), USER] for at in range(n)]
    return [calls(*(f"c{at}" for at in range(2 * n))), *(turn for run in runs for turn in run)]


def of_one_id(n: int) -> list[Turn]:
    turn = calls(*["c"] * (2 * n))
    return [turn, *(one for _ in range(n) for one in (result("c"), result("z"), USER))]


def without_ids(n: int) -> list[Turn]:
    named = (result(None, name="f" if at % 2 else "g") for at in range(n))
    return [calls(*(f"c{at}" for at in range(n))), *named, *[result(None)] * n]


@pytest.mark.parametrize("chat", [unknown, backwards, in_small_runs, of_one_id, without_ids])
def test_twice_the_results_are_twice_the_work(chat: Callable[[int], list[Turn]]) -> None:
    once, twice = chat(64), chat(128)
    small = count_lines(lambda: list(match_results(once)))
    assert count_lines(lambda: list(match_results(twice))) < 2.2 * small


@pytest.mark.parametrize("chat", [unknown, backwards])
def test_twice_the_calls_one_by_one_are_twice_the_work(
    chat: Callable[[int], list[Turn]],
) -> None:
    single = able(parallel_calls=False)
    once, twice = chat(64), chat(128)
    small = count_lines(lambda: arrange(once, single))
    assert count_lines(lambda: arrange(twice, single)) < 2.2 * small


@pytest.mark.parametrize(
    ("role", "field"), [("user", "user_twice"), ("assistant", "assistant_twice")]
)
def test_a_long_run_is_written_down_once(
    role: Role, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages it has: what is copied is counted."""
    copied = Counter[str]()

    def counted(turn: Turn, **changes: Any) -> Turn:
        copied["text"] += len(changes.get("text") or "")
        copied["tool_calls"] += len(changes.get("tool_calls") or ())
        return msgspec.structs.replace(turn, **changes)

    monkeypatch.setattr(conversation, "replace", counted)
    said = Turn(role=role, text="text", tool_calls=(call("a"),) if role == "assistant" else ())
    [one] = arrange([said] * 500, able(**{field: False}))
    assert one.text == "\n\n".join(["text"] * 500)
    assert copied == {"text": len(one.text), "tool_calls": len(one.tool_calls)}
