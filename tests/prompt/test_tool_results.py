"""Results are matched with their calls and runs are merged, in linear time."""

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
from dragoman.prompt.special_tokens import join_texts, make_trusted_text
from dragoman.prompt.template.capabilities import TemplateCapabilities
from dragoman.prompt.tool_results import match_results
from dragoman.prompt.turn import Turn
from dragoman.types import Message, ReplayedTurn, Role, ToolCall, make_text_content
from tests.support.work_counter import count_lines

EVERYTHING = TemplateCapabilities(
    tools_rendered=True, tool_calls_rendered=True, tool_results_rendered=True, developer=True
)


def capable(**changes: Any) -> TemplateCapabilities:
    return msgspec.structs.replace(EVERYTHING, **changes)


def call(id_: str, name: str = "f") -> ToolCall:
    return ToolCall(id=id_, name=name, arguments="{}")


def calls(*ids: str) -> Turn:
    return Turn(role="assistant", tool_calls=tuple(map(call, ids)))


def result(id_: str | None, content: str = "r", name: str | None = None) -> Turn:
    return Turn(role="tool", text=content, name=name, tool_call_id=id_)


def arrange(turns: Iterable[Turn], capabilities: TemplateCapabilities) -> list[Turn]:
    """Arrange the messages of these turns."""
    messages = [
        Message(
            role=turn.role,
            content=make_text_content(turn.text),
            name=turn.name,
            reasoning=turn.reasoning,
            tool_calls=turn.tool_calls,
            tool_call_id=turn.tool_call_id,
            replay=turn.replay,
        )
        for turn in turns
    ]
    return arrange_messages(messages, capabilities)


USER = Turn(role="user", text="u")


# Random conversations

IDS, NAMES = ["", "a", "b", "c", "d"], ["f", "g", "h"]
any_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=6)
unique_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=5, unique=True)
any_results = st.builds(
    result,
    st.none() | st.sampled_from([*IDS, "nobody"]),
    name=st.none() | st.sampled_from([*NAMES, "nothing"]),
)


def make_turns(ids: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[Turn]]:
    """Make turns of calls, runs of results, and user messages between them."""

    def make_turn(ids: list[str], names: list[str]) -> Turn:
        pairs = zip(ids, names, strict=False)
        return Turn(role="assistant", tool_calls=tuple(call(*pair) for pair in pairs))

    turn = st.builds(make_turn, ids, st.lists(st.sampled_from(NAMES), min_size=6, max_size=6))
    run = st.lists(any_results, min_size=1, max_size=5)
    chat = st.lists(turn.map(lambda turn: [turn]) | run | run | st.just([USER]), max_size=10)
    return chat.map(number_texts)


def number_texts(runs: list[list[Turn]]) -> list[Turn]:
    """Make one conversation in which every message has a different text."""
    turns = [turn for run in runs for turn in run]
    return [msgspec.structs.replace(turn, text=str(n)) for n, turn in enumerate(turns)]


def match_slowly(
    turns: list[Turn],
) -> Iterator[tuple[list[Turn], list[ToolCall], list[ToolCall | None]]]:
    """Yield each run of results, the calls open before it, and the call that each result answers.

    That is the first open call with the id of the result; for a result without an id, the first
    open call with its name, if it has one.
    """
    still_open: list[ToolCall] = []
    for results, group in groupby(turns, lambda turn: turn.role == "tool"):
        run, before, answers = list(group), still_open, list[ToolCall | None]()
        if not results:
            last = [turn for turn in run if turn.tool_calls][-1:]
            still_open = list(last[0].tool_calls) if last else still_open
            continue
        for result in run:
            candidates = (
                [call for call in still_open if call.id == result.tool_call_id]
                if result.tool_call_id is not None
                else [call for call in still_open if result.name in (None, call.name)]
            )
            answer = candidates[0] if candidates else None
            answers.append(answer)
            still_open = [call for call in still_open if call is not answer]
        yield run, before, answers


@given(make_turns(any_ids))
def test_every_result_gets_the_id_and_name_of_its_call(turns: list[Turn]) -> None:
    matched = {turn.text: turn for turn in match_results(turns)}
    for run, _, answers in match_slowly(turns):
        for result, call in zip(run, answers, strict=True):
            expected = result
            if call is not None:
                name = result.name or call.name
                expected = msgspec.structs.replace(result, tool_call_id=call.id, name=name)
            assert matched[result.text] == expected


@given(make_turns(unique_ids))
def test_results_stand_in_the_order_of_their_calls_and_others_after_them(
    turns: list[Turn],
) -> None:
    matched = list(match_results(turns))
    for run, before, _ in match_slowly(turns):
        positions: dict[str | None, int] = {call.id: n for n, call in enumerate(before)}
        texts = {result.text for result in run}
        ranks = [
            (positions.get(turn.tool_call_id, len(before)), int(turn.text or ""))
            for turn in matched
            if turn.text in texts
        ]
        assert ranks == sorted(ranks)  # results of one call stay in their order


@given(make_turns(any_ids))
def test_only_results_move_and_only_within_their_run(turns: list[Turn]) -> None:
    matched = list(match_results(turns))
    for (_, before), (_, after) in zip(
        groupby(turns, lambda turn: turn.role),
        groupby(matched, lambda turn: turn.role),
        strict=True,
    ):
        old, new = list(before), list(after)
        assert old == new if old[0].role != "tool" else True
        assert Counter(turn.text for turn in old) == Counter(turn.text for turn in new)


@pytest.mark.parametrize(
    ("results", "expected"), [("zb", "bz"), ("zc", "cz"), ("zcaa", "aacz"), ("aaab", "aaab")]
)
def test_if_ids_repeat_each_result_goes_to_another_call(results: str, expected: str) -> None:
    matched = match_results([calls("a", "a", "b", "c"), *(result(id_) for id_ in results)])
    assert "".join(turn.tool_call_id or "" for turn in list(matched)[1:]) == expected


@pytest.mark.parametrize("id_", ["", "a"])
def test_separate_calls_with_one_id_share_their_results(id_: str) -> None:
    turn, results = calls(id_, id_), [result(id_, str(n)) for n in range(3)]
    arranged = arrange([USER, turn, *results], capable(parallel_calls=False))
    assert [turn.text for turn in arranged if turn.role in ("assistant", "tool")] == [
        *(arranged[1].text, "0"),
        *(arranged[3].text, "1", "2"),
    ]


@given(unique_ids, st.lists(any_results, max_size=8))
def test_separate_calls_have_their_results_right_after_them(
    ids: list[str], results: list[Turn]
) -> None:
    turns = number_texts([[calls(*ids), *results]])
    arranged = arrange(turns, capable(parallel_calls=False))
    texts = Counter(turn.text for turn in arranged[1:] if turn.text)
    assert texts == Counter(turn.text for turn in turns[1:])
    call_ids = [[call.id for call in turn.tool_calls] for turn in arranged if turn.tool_calls]
    assert call_ids == [[id_] for id_ in ids]
    last = ""
    for turn in arranged:
        last = turn.tool_calls[0].id if turn.tool_calls else last
        if turn.role == "tool":
            unmatched = turn.tool_call_id not in ids and last == ids[-1]
            assert turn.tool_call_id == last or unmatched


texts = st.sampled_from(["", "x", "y"]) | st.just(join_texts([make_trusted_text("<o>"), "z"]))
any_turns = st.builds(
    Turn,
    role=st.sampled_from(["user", "assistant"]),
    text=texts,
    reasoning=st.none() | texts,
    name=st.sampled_from([None, "Ada", "Bob"]),
    tool_calls=st.sampled_from([(), (), (call("a"),), (call("b"), call("c"))]),
    replay=st.sampled_from([None, ReplayedTurn((1,), (2,))]),
)


@given(st.lists(any_turns, max_size=12))
def test_a_run_of_one_role_becomes_one_message_with_all_texts(
    turns: list[Turn],
) -> None:
    turns = [turn for turn in turns if turn.role == "assistant" or not turn.tool_calls]
    arranged = arrange(turns, capable(user_twice=False, assistant_twice=False))
    runs = [list(run) for _, run in groupby(turns, lambda turn: turn.role)]
    assert [turn.role for turn in arranged] == [run[0].role for run in runs]
    for run, merged in zip(runs, arranged, strict=True):
        if len(run) == 1:
            assert merged == run[0]
            continue
        for field, empty in (("text", ""), ("reasoning", None)):
            texts = [text for text in (getattr(turn, field) for turn in run) if text]
            joined = join_texts(texts, "\n\n") if texts else empty
            assert getattr(merged, field) == joined
            parts = getattr(joined, "parts", None)  # our own parts stay our own
            assert getattr(getattr(merged, field), "parts", None) == parts
        assert merged.tool_calls == tuple(call for turn in run for call in turn.tool_calls)
        assert merged.name == (run[0].name if len({turn.name for turn in run}) == 1 else None)
        assert merged.replay is None


@given(st.lists(any_turns, max_size=12))
def test_calls_and_texts_are_not_merged_if_they_may_not_stand_together(
    turns: list[Turn],
) -> None:
    arranged = arrange(turns, capable(assistant_twice=False, content_with_calls=False))
    assert not any(turn.tool_calls and turn.text for turn in arranged)
    calls = Counter(len(turn.tool_calls) for turn in turns if turn.tool_calls)
    assert Counter(len(turn.tool_calls) for turn in arranged if turn.tool_calls) == calls


# How much work it is


def unknown_ids(count: int) -> list[Turn]:
    return [
        calls(*(f"c{n}" for n in range(count))),
        *(result(f"z{n}") for n in range(count)),
    ]


def backwards(count: int) -> list[Turn]:
    turn = calls(*(f"c{n}" for n in range(count)))
    return [turn, *(result(f"c{n}") for n in reversed(range(count)))]


def in_small_runs(count: int) -> list[Turn]:
    """Make runs that answer one call each and leave most calls open."""
    runs = [[result(f"c{n}"), result("z"), USER] for n in range(count)]
    return [
        calls(*(f"c{n}" for n in range(2 * count))),
        *(turn for run in runs for turn in run),
    ]


def one_id(count: int) -> list[Turn]:
    turn = calls(*["c"] * (2 * count))
    return [turn, *(turn for _ in range(count) for turn in (result("c"), result("z"), USER))]


def without_ids(count: int) -> list[Turn]:
    named = (result(None, name="f" if n % 2 else "g") for n in range(count))
    return [calls(*(f"c{n}" for n in range(count))), *named, *[result(None)] * count]


@pytest.mark.parametrize("chat", [unknown_ids, backwards, in_small_runs, one_id, without_ids])
def test_twice_the_results_are_twice_the_work(chat: Callable[[int], list[Turn]]) -> None:
    once, twice = chat(64), chat(128)
    small = count_lines(lambda: list(match_results(once)))
    assert count_lines(lambda: list(match_results(twice))) < 2.2 * small


@pytest.mark.parametrize("chat", [unknown_ids, backwards])
def test_twice_the_separate_calls_are_twice_the_work(
    chat: Callable[[int], list[Turn]],
) -> None:
    single = capable(parallel_calls=False)
    once, twice = chat(64), chat(128)
    small = count_lines(lambda: arrange(once, single))
    assert count_lines(lambda: arrange(twice, single)) < 2.2 * small


@pytest.mark.parametrize(
    ("role", "field"), [("user", "user_twice"), ("assistant", "assistant_twice")]
)
def test_a_long_run_is_copied_once(role: Role, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = Counter[str]()

    def count_copies(turn: Turn, **changes: Any) -> Turn:
        copied["text"] += len(changes.get("text") or "")
        copied["tool_calls"] += len(changes.get("tool_calls") or ())
        return msgspec.structs.replace(turn, **changes)

    monkeypatch.setattr(conversation, "replace", count_copies)
    turn = Turn(role=role, text="text", tool_calls=(call("a"),) if role == "assistant" else ())
    [merged] = arrange([turn] * 500, capable(**{field: False}))
    assert merged.text == "\n\n".join(["text"] * 500)
    assert copied == {"text": len(merged.text), "tool_calls": len(merged.tool_calls)}
