"""Reading a choice of a chat: however its steps are cut or merged, the same comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.detokenize import Detokenizer
from dragoman.engines.mailbox import merge
from dragoman.events import Completion
from dragoman.output import OutputParser
from dragoman.reader import ChatReader, Listening
from dragoman.tally import Place, Tally
from dragoman.testing import ByteTokenizer
from dragoman.types import Job, Logprob, Step, Tool

TOOLS = (Tool(name="f"), Tool(name="g"))
CALL = '<tool_call>{"name": "f", "arguments": {"a": "é 😀"}}</tool_call>'
PARTS = ("hm 雨", "<think>", "</think>", CALL, " <b>", "\n\n", "<tool_call>", "Yes. ", "</tool_")
BYTES = ByteTokenizer()


def read(steps: list[Step], stops: tuple[str, ...] = (), tell: bool = True) -> Completion:
    """Everything that the steps add up to, with logprobs."""
    parser = OutputParser("hermes_json", "think", tools=TOOLS, inside=False)
    job = Job(id="x", prompt="", logprobs=0)
    text = Detokenizer(BYTES.pieces, BYTES.control, stops)
    reader = ChatReader(0, job, text, Listening(parser, tell=tell), first=True)
    whole = Completion()
    for step in steps:
        for delta in reader.feed(step):
            whole.add(delta)
    return whole


def tokens_of(text: str, words: bool) -> list[Step]:
    """Tokens of an engine that speaks ids, or text."""
    if words:
        steps = [
            Step(text=letter, tokens=1, logprobs=[Logprob(-1, -0.5, text=letter)])
            for letter in text
        ]
    else:
        steps = [
            Step(ids=[byte], tokens=1, logprobs=[Logprob(byte, -0.5)]) for byte in text.encode()
        ]
    return [*steps, Step(finish="stop")]


def merged(steps: list[Step], sizes: list[int]) -> list[Step]:
    made, at = [], 0
    for size in sizes:
        made += merge(steps[at : at + size])
        at += size
    return [*made, *merge(steps[at:])]


@given(
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.lists(st.integers(1, 40), max_size=6),
    st.booleans(),
    st.sampled_from([(), ("Yes",), ("\n\n", "雨")]),
)
def test_d47_merged_steps_are_read_as_single_ones(
    text: str, sizes: list[int], words: bool, stops: tuple[str, ...]
) -> None:
    steps = tokens_of(text, words)
    single, together = read(steps, stops), read(merged(steps, sizes), stops)
    assert together.choices() == single.choices()
    assert together.usage == single.usage


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.booleans())
def test_every_token_is_where_its_characters_are(text: str, words: bool) -> None:
    """One token a letter, or a byte: so what is counted must be as long as what is said."""
    whole = read(tokens_of(text, words))
    [choice] = whole.choices()
    size = len if words else lambda said: len(said.encode())
    assert whole.usage.reasoning == size(choice.reasoning)
    assert b"".join(token.data for token in choice.tokens).decode() == choice.text
    assert whole.usage.completion == size(text)
    untold = read(tokens_of(text, words), tell=False)
    assert untold.usage == whole.usage
    assert untold.choices()[0].reasoning == ""


@pytest.mark.parametrize(
    ("places", "spans", "thoughts"),
    [
        ([(0, 4, 1)], [(0, 2), (2, 2)], 1),  # one token in two spans is one token
        ([(0, 4, 1), (4, 8, 1)], [(3, 2)], 2),  # any character of it counts
        ([(0, 4, 1), (4, 8, 1)], [(5, 1)], 1),
        ([(0, 10, 10)], [(2, 5)], 5),  # several that came as one text count by their share
        ([(0, 10, 10)], [(0, 3), (3, 3)], 6),
        ([(0, 10, 3)], [(0, 1)], 1),
        ([(0, 4, 0)], [(0, 4)], 0),  # an engine that does not count
    ],
)
def test_how_thoughts_are_counted(
    places: list[tuple[int, int, int]], spans: list[tuple[int, int]], thoughts: int
) -> None:
    tally = Tally()
    for start, end, tokens in places:
        tally.note(Place(start, end, tokens))
    for start, length in spans:
        tally.thought(start, "x" * length)
    assert tally.thoughts == thoughts


def test_control_tokens_are_cut_out_of_what_is_said() -> None:
    tally = Tally()
    for start, end, control in ((0, 2, False), (2, 7, True), (7, 9, False), (9, 12, True)):
        tally.note(Place(start, end, control=control))
    assert tally.said(0, "ab<mk>")[0] == "ab"
    assert tally.said(6, ">cd")[0] == "cd"
    assert tally.thought(9, "<m>") == ""
    assert tally.thoughts == 0
