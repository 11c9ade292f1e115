"""Every format on its own cases: whole, in every pieces, cut short, and followed by junk.

The cases are data files in `tests/formats/`, one for each file in `formats/`. Each case is a text
that a model of the format says, and what it means. The laws here hold for every one of them.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output import OutputParser, Policy, Span

CASES = Path(__file__).parent / "formats"
FILES = sorted(CASES.glob("*.yaml"))
TOOLS: list[dict[str, Any]] = json.loads((CASES / "tools.json").read_text(encoding="utf-8"))


@cache
def cases(file: Path) -> list[dict[str, Any]]:
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [{"format": None, "reasoning": None, **found["with"], **one} for one in found["cases"]]


ALL = [
    pytest.param(case, id=f"{file.stem}-{case['name'].replace(' ', '-')}")
    for file in FILES
    for case in cases(file)
]


def parser(case: dict[str, Any]) -> OutputParser:
    return OutputParser(
        case["format"],
        case["reasoning"],
        tools=None if case.get("any") else TOOLS,
        prompt=case.get("prompt"),
        inside=case.get("inside"),
        policy=Policy(**case.get("policy", {})),
    )


def folded(spans: list[Span]) -> dict[str, Any]:
    """What spans say together; also checks that a call is a name and then arguments."""
    said: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}
    for span in spans:
        if span.channel == "tool_name":
            assert span.call == len(said["calls"])
            said["calls"].append([span.text, ""])
        elif span.channel == "tool_args":
            assert span.call == len(said["calls"]) - 1
            said["calls"][-1][1] += span.text
        else:
            said[span.channel] += span.text
    return said


def read(case: dict[str, Any], pieces: list[str], cut: bool = False) -> dict[str, Any]:
    one = parser(case)
    return folded([span for piece in pieces for span in one.feed(piece)] + one.close(cut))


def meant(said: dict[str, Any]) -> dict[str, Any]:
    """The same with arguments as values."""
    calls = [[name, json.loads(arguments)] for name, arguments in said["calls"]]
    return {**said, "calls": calls}


@pytest.mark.parametrize("case", ALL)
def test_it_says_what_it_means(case: dict[str, Any]) -> None:
    expected = {"text": "", "reasoning": "", "calls": [], **case["says"]}
    assert meant(read(case, [case["text"]])) == expected


@pytest.mark.parametrize("case", ALL)
def test_no_cut_changes_it(case: dict[str, Any]) -> None:
    """D47."""
    text = case["text"]
    whole = read(case, [text])
    assert read(case, list(text)) == whole
    for at in range(1, len(text)):
        assert read(case, [text[:at], text[at:]]) == whole, f"cut at {at}"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_cuts_change_it(file: Path, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases(file)))
    text = case["text"]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(case, pieces) == read(case, [text])


@pytest.mark.parametrize("case", ALL)
def test_cut_short_it_is_still_read(case: dict[str, Any]) -> None:
    """D50: nothing raises, and a call that was handed out ends as JSON unless the limit cut it."""
    text = case["text"]
    for at in range(len(text)):
        for _, arguments in read(case, [text[:at]])["calls"]:
            assert isinstance(json.loads(arguments), dict)
        assert read(case, list(text[:at]), cut=True) == read(case, [text[:at]], cut=True)


JUNK = ["\n", " and so on.", "</tool_call>", "<tool_call>", "{", '"]}', "<", "<|", "[", "\0"]


@pytest.mark.parametrize("case", ALL)
def test_junk_after_it_takes_nothing_back(case: dict[str, Any]) -> None:
    if not case["says"].get("calls") or case.get("inside") or "draft" in case["name"]:
        return
    whole = read(case, [case["text"]])
    for junk in JUNK:
        text = case["text"] + junk
        said = read(case, [text])
        assert said["calls"][: len(whole["calls"])] == whole["calls"]
        assert read(case, list(text)) == said


@pytest.mark.parametrize("case", ALL)
def test_nothing_is_lost(case: dict[str, Any]) -> None:
    """Text and thoughts are pieces of what the model said, where the spans say they are."""
    if case.get("unsaid"):
        return
    one = parser(case)
    pieces = [case["text"][at : at + 3] for at in range(0, len(case["text"]), 3)]
    spans = [span for piece in pieces for span in one.feed(piece)] + one.close()
    last = 0
    for span in spans:
        if span.channel in ("text", "reasoning"):
            assert case["text"][span.start : span.start + len(span.text)] == span.text
            assert span.start >= last
            last = span.start + len(span.text)


def test_every_format_has_cases() -> None:
    names = {case["format"] for file in FILES for case in cases(file)}
    thoughts = {case["reasoning"] for file in FILES for case in cases(file)}
    assert set(tool_formats()) <= names
    assert set(reasoning_formats()) <= thoughts
    assert {file.stem for file in FILES} == {*tool_formats(), *reasoning_formats()}


@pytest.mark.parametrize("name", [*tool_formats(), *reasoning_formats()])
def test_noise_never_raises(name: str) -> None:
    """Marks of the format in any order, whole and in pieces, with and without thoughts."""
    tools, thoughts = tool_formats().get(name), reasoning_formats().get(name)
    texts = [one.example for one in (tools, thoughts) if one is not None]
    bits = [*"".join(texts).split("<")[:40], *"{}[]()\"'\\,:=<>| \n", "f", "a", "1", *texts]
    noise = random.Random(name)
    for _ in range(60):
        text = "".join(noise.choice(bits) for _ in range(noise.randrange(1, 30)))
        case = {"format": name if tools else None, "reasoning": name if thoughts else "think"}
        whole = read({**case, "any": True}, [text])
        assert read({**case, "any": True}, list(text)) == whole
        for _, arguments in whole["calls"]:
            assert isinstance(json.loads(arguments), dict), text
