"""Every format on its own cases: whole, in pieces, truncated, and followed by other text.

The cases are data files in `tests/formats/`, one for each file in `formats/`. Each case is a text
that a model of the format writes, and the expected result. `lenient`: the text is not well-formed,
but is parsed all the same. `altered`: the text is not an unchanged part of the output. `any_tool`:
no tools are declared.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.testing import check_format
from dragoman.testing.format_checks import ParsedOutput, fold_spans, parse_pieces
from tests.support.paths import FORMAT_CASES
from tests.support.yaml_files import read_yaml

pytestmark = pytest.mark.slow

CASES = FORMAT_CASES
FILES = sorted(CASES.glob("*.yaml"))
TOOLS: list[dict[str, Any]] = json.loads((CASES / "tools.json").read_text(encoding="utf-8"))


@cache
def cases(file: Path) -> list[dict[str, Any]]:
    result = read_yaml(file)
    return [
        {"format": None, "reasoning": None, **result["with"], **case} for case in result["cases"]
    ]


ALL = [
    pytest.param(case, id=f"{file.stem}-{case['name'].replace(' ', '-')}")
    for file in FILES
    for case in cases(file)
]


def parser(case: dict[str, Any]) -> OutputParser:
    return OutputParser(
        case["format"],
        case["reasoning"],
        tools=None if case.get("any_tool") else TOOLS,
        prompt=case.get("prompt"),
        inside=case.get("inside"),
        policy=ParserPolicy(**case.get("policy", {})),
    )


def parse(case: dict[str, Any], pieces: list[str]) -> ParsedOutput:
    return fold_spans(parse_pieces(parser(case), pieces))


@pytest.mark.parametrize("case", ALL)
def test_cases_parse_as_expected(case: dict[str, Any]) -> None:
    """As a whole, in pieces, and truncated."""
    result = check_format(
        lambda: parser(case), case["text"], random_cuts=3, verbatim=not case.get("altered")
    )
    expected = {"text": "", "reasoning": "", "calls": [], **case["expected"]}
    calls = [list(call) for call in result.calls]
    assert {"text": result.text, "reasoning": result.reasoning, "calls": calls} == expected


@settings(max_examples=30)
@given(data=st.data())
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_cuts_never_change_the_result(file: Path, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases(file)))
    text = case["text"]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))
    edges = zip([0, *cuts], [*cuts, len(text)], strict=True)
    pieces = [text[start:end] for start, end in edges]
    assert parse(case, pieces) == parse(case, [text])


JUNK = ["\n", " and so on.", "</tool_call>", "<tool_call>", "{", '"]}', "<", "<|", "[", "\0"]


@pytest.mark.parametrize("case", ALL)
def test_text_after_a_case_does_not_change_its_calls(case: dict[str, Any]) -> None:
    if not case["expected"].get("calls") or case.get("inside") or "draft" in case["name"]:
        return
    whole = parse(case, [case["text"]])
    for junk in JUNK:
        text = case["text"] + junk
        more = parse(case, [text])
        assert more.raw_calls[: len(whole.raw_calls)] == whole.raw_calls
        assert parse(case, list(text)) == more


def test_every_format_has_cases() -> None:
    names = {case["format"] for file in FILES for case in cases(file)}
    reasoning = {case["reasoning"] for file in FILES for case in cases(file)}
    assert set(get_tool_formats()) <= names
    assert set(get_reasoning_formats()) <= reasoning
    assert {file.stem for file in FILES} == {*get_tool_formats(), *get_reasoning_formats()}


@pytest.mark.parametrize("name", [*get_tool_formats(), *get_reasoning_formats()])
def test_random_text_never_raises(name: str) -> None:
    """Markers of the format in any order, as a whole and in pieces."""
    tools, reasoning = get_tool_formats().get(name), get_reasoning_formats().get(name)
    texts = [spec.example for spec in (tools, reasoning) if spec is not None]
    bits = [*"".join(texts).split("<")[:40], *"{}[]()\"'\\,:=<>| \n", "f", "a", "1", *texts]
    noise = random.Random(name)
    for _ in range(60):
        text = "".join(noise.choice(bits) for _ in range(noise.randrange(1, 30)))
        case = {"format": name if tools else None, "reasoning": name if reasoning else "think"}
        whole = parse({**case, "any_tool": True}, [text])
        assert parse({**case, "any_tool": True}, list(text)) == whole, text
        assert all(isinstance(arguments, dict) for _, arguments in whole.calls), text
