"""Reading a choice of a chat gives the same result however its steps are split or merged."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engines.step_queue import merge_steps
from dragoman.events import Choice, Completion, Token
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.models.output_format import OutputFormat
from dragoman.output.library import OutputParser
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.reader import ChatReader, Reader, ReaderOptions
from dragoman.pipeline.reading.usage import TokenLedger, TokenSpan
from dragoman.testing import ByteTokenizer
from dragoman.types import Job, Logprob, Sampling, Step, Tool
from tests.support.timing import measures_time

TOOLS = (Tool(name="f"), Tool(name="g"))
CALL = '<tool_call>{"name": "f", "arguments": {"a": "é 😀"}}</tool_call>'
PARTS = ("hm 雨", "<think>", "</think>", CALL, " <b>", "\n\n", "<tool_call>", "Yes. ", "</tool_")
BYTES = ByteTokenizer()
OUTPUT_KINDS = ("text", "ids", "both")


def read(
    steps: list[Step],
    stops: tuple[str, ...] = (),
    include_reasoning: bool = True,
    limit: int | None = None,
) -> Completion:
    """Fold the steps into a completion, with logprobs."""
    parser = OutputParser("hermes_json", "think", tools=TOOLS, inside=False)
    job = Job(id="x", prompt="", logprobs=0, sampling=Sampling(max_tokens=limit))
    text = Detokenizer(BYTES.pieces, BYTES.control, stops)
    reader = ChatReader(
        0, job, text, ReaderOptions(parser, include_reasoning=include_reasoning), first=True
    )
    completion = Completion()
    for step in steps:
        for delta in reader.feed(step):
            completion.add(delta)
    return completion


def make_token_steps(text: str, output_kind: str) -> list[Step]:
    """Make the steps of an engine that sends ids, text or both, one token each."""
    if output_kind != "ids":
        steps = [
            Step(
                text=letter,
                ids=[0] if output_kind == "both" else [],
                tokens=1,
                logprobs=[Logprob(-1, -0.5, text=letter)],
            )
            for letter in text
        ]
    else:
        steps = [
            Step(ids=[byte], tokens=1, logprobs=[Logprob(byte, -0.5)]) for byte in text.encode()
        ]
    return [*steps, Step(finish="stop")]


def merge_by_sizes(steps: list[Step], sizes: list[int]) -> list[Step]:
    result, start = [], 0
    for size in sizes:
        result += merge_steps(steps[start : start + size])
        start += size
    return [*result, *merge_steps(steps[start:])]


@given(
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.lists(st.integers(1, 40), max_size=6),
    st.sampled_from(OUTPUT_KINDS),
    st.sampled_from([(), ("Yes",), ("\n\n", "雨")]),
    st.none() | st.integers(1, 80),
)
def test_merged_steps_are_read_like_single_ones(
    text: str, sizes: list[int], output_kind: str, stops: tuple[str, ...], limit: int | None
) -> None:
    """The engine does not enforce the limit, so the reader must, always at the same token."""
    steps = make_token_steps(text, output_kind)
    single = read(steps, stops, limit=limit)
    merged = read(merge_by_sizes(steps, sizes), stops, limit=limit)
    assert merged.build_choices() == single.build_choices()
    assert merged.usage == single.usage


@pytest.mark.parametrize("output_kind", OUTPUT_KINDS)
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_merged_steps_of_plain_text_are_read_like_single_ones(
    output_kind: str, limit: int | None, logprobs: int | None
) -> None:
    def plain(steps: list[Step]) -> tuple[list[Choice], int]:
        job = Job(id="x", prompt="", sampling=Sampling(max_tokens=limit), logprobs=logprobs)
        text = Detokenizer(BYTES.pieces, BYTES.control, logprobs=logprobs is not None)
        reader, completion = Reader(0, job, text, "", first=True), Completion()
        for step in steps:
            for delta in reader.feed(step):
                completion.add(delta)
        return completion.build_choices(), completion.usage.completion

    steps = make_token_steps("abc", output_kind)
    assert plain(merge_steps(steps)) == plain(steps)


def test_token_without_text_is_counted() -> None:
    steps = [Step(text="a", tokens=1), Step(tokens=1), Step(text="b", tokens=1), Step(tokens=1)]
    steps.append(Step(finish="stop"))
    for variant in (steps, merge_steps(steps)):
        completion = read(variant)
        assert completion.build_choices()[0].text == "ab"
        assert completion.usage.completion == 4


def test_text_of_several_tokens_is_split_by_its_logprobs() -> None:
    texts = ("<think>", "hm", "</think>", "Hi", " you")
    logprobs = [Logprob(-1, -0.5, text=text) for text in texts]
    completion = read([Step(text="".join(texts), tokens=5, logprobs=logprobs), Step(finish="stop")])
    assert [token.text for token in completion.build_choices()[0].tokens] == ["Hi", " you"]
    assert completion.usage.reasoning == 1


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.sampled_from(OUTPUT_KINDS))
def test_every_token_counts_where_its_characters_are(text: str, output_kind: str) -> None:
    """Each character or byte is a token, so counts must equal lengths."""
    completion = read(make_token_steps(text, output_kind))
    [choice] = completion.build_choices()
    count = len if output_kind != "ids" else lambda value: len(value.encode())
    assert completion.usage.reasoning == count(choice.reasoning)
    assert b"".join(token.data for token in choice.tokens).decode() == choice.text
    assert completion.usage.completion == count(text)
    without_reasoning = read(make_token_steps(text, output_kind), include_reasoning=False)
    assert without_reasoning.usage == completion.usage
    assert without_reasoning.build_choices()[0].reasoning == ""


@pytest.mark.parametrize(
    ("token_spans", "spans", "expected"),
    [
        ([(0, 4, 1)], [(0, 2), (2, 2)], 1),  # one token in two spans counts once
        ([(0, 4, 1), (4, 8, 1)], [(3, 2)], 2),  # any character counts
        ([(0, 4, 1), (4, 8, 1)], [(5, 1)], 1),
        ([(0, 10, 10)], [(2, 5)], 5),  # several tokens of one text count pro rata
        ([(0, 10, 10)], [(0, 3), (3, 3)], 6),
        ([(0, 10, 3)], [(0, 1)], 1),
        ([(0, 4, 0)], [(0, 4)], 0),  # an engine that does not count tokens
    ],
)
def test_reasoning_tokens_are_counted_by_their_characters(
    token_spans: list[tuple[int, int, int]], spans: list[tuple[int, int]], expected: int
) -> None:
    ledger = TokenLedger()
    for start, end, tokens in token_spans:
        ledger.add(TokenSpan(start, end, tokens))
    for start, length in spans:
        ledger.take_reasoning(start, "x" * length)
    assert ledger.reasoning_tokens == expected


def test_special_tokens_are_cut_out_of_text() -> None:
    ledger = TokenLedger()
    for start, end, control in ((0, 2, False), (2, 7, True), (7, 9, False), (9, 12, True)):
        ledger.add(TokenSpan(start, end, is_special=control))
    assert ledger.take_text(0, "ab<mk>")[0] == "ab"
    assert ledger.take_text(6, ">cd")[0] == "cd"
    assert ledger.take_reasoning(9, "<m>") == ""
    assert ledger.reasoning_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True])
@measures_time
def test_long_held_text_is_released_quickly(control: bool) -> None:
    count = 100_000
    entry = (Token("x", b"x", -0.5),)
    ledger = TokenLedger()
    for at in range(count):
        ledger.add(TokenSpan(at, at + 1, logprobs=entry, is_special=control and at % 2 == 0))
    started = time.perf_counter()
    text, logprobs = ledger.take_text(0, "x" * count)
    assert time.perf_counter() - started < 1
    assert len(text) == len(logprobs) == (count // 2 if control else count)


def test_token_spans_of_a_call_are_discarded() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 5000
    rest = '"}}</tool_call>\n \nSo.'
    parser = OutputParser("hermes_json", "think", tools=TOOLS, inside=False)
    job = Job(id="x", prompt="", logprobs=0)
    reader = ChatReader(0, job, Detokenizer(None), ReaderOptions(parser), first=True)
    completion = Completion()
    steps = iter(make_token_steps(call + rest, "text"))
    for _, step in zip(call, steps, strict=False):
        for delta in reader.feed(step):
            completion.add(delta)
    assert sum(isinstance(value, TokenSpan) for value in gc.get_objects()) < 2000
    for step in steps:
        for delta in reader.feed(step):
            completion.add(delta)
    [choice] = completion.build_choices()
    assert b"".join(token.data for token in choice.tokens).decode() == choice.text == "\n \nSo."


# Markers that are special tokens

PIECE = re.compile(
    r"<\|[^<>\s]+>|<[^<>\s]+\|>|<｜[^<>\s]+｜>|</?[a-z_:]{3,}>|◁/?think▷|\[/?[A-Z_]+\]"
)
WIDE = (
    '<|tool_call>call:f{a:<|"|>Rome, Italy: {x} "y"<|"|>,'
    'b:<|"|>02134<|"|>,c:<|"|>true<|"|>}<tool_call|>'
)


def list_examples() -> Iterator[tuple[str | None, str | None, str]]:
    for tools in get_tool_formats().values():
        yield tools.name, None, tools.example
    for expected in get_reasoning_formats().values():
        yield None, expected.name, expected.example
    yield "gemma4", None, WIDE


def read_as_tokens(text: str, output_format: OutputFormat, known: ByteTokenizer) -> Choice:
    """Read a text whose markers are special tokens of the vocabulary."""
    shown = output_format.find_marker_tokens(known)
    parser = OutputParser(output_format.tools, output_format.reasoning, tools=TOOLS)
    reader = ChatReader(
        0,
        Job(id="x", prompt=""),
        Detokenizer(known.pieces, known.control - shown),
        ReaderOptions(
            parser, parser_only_tokens=shown - output_format.find_visible_marker_tokens(known)
        ),
        first=True,
    )
    completion = Completion()
    for step in [Step(ids=[token], tokens=1) for token in known.encode_with_specials(text)]:
        for delta in reader.feed(step):
            completion.add(delta)
    for delta in reader.feed(Step(finish="stop")):
        completion.add(delta)
    [choice] = completion.build_choices()
    return choice


@pytest.mark.parametrize(("tools", "reasoning", "text"), list(list_examples()))
def test_markers_parse_the_same_as_special_tokens(
    tools: str | None, reasoning: str | None, text: str
) -> None:
    output_format = OutputFormat(tools, reasoning)
    plain = read_as_tokens(text, output_format, ByteTokenizer(()))
    assert plain.calls or plain.reasoning or plain.text
    assert (
        read_as_tokens(text, output_format, ByteTokenizer(sorted(set(PIECE.findall(text)))))
        == plain
    )


def test_strings_between_special_tokens_stay_strings() -> None:
    known = ByteTokenizer(("<|tool_call>", "<tool_call|>", '<|"|>'))
    [call] = read_as_tokens(WIDE, OutputFormat("gemma4"), known).calls
    assert json.loads(call.arguments) == {"a": 'Rome, Italy: {x} "y"', "b": "02134", "c": "true"}
