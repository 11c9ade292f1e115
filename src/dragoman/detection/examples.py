"""Compares texts with the examples of formats."""

from __future__ import annotations

import re
from functools import lru_cache

from dragoman.detection.result import ProbeTurn
from dragoman.detection.round_trip import parse_answer
from dragoman.output.library import OutputParser
from dragoman.output.spec import ToolFormat

SPACE = re.compile(r"\s+")


@lru_cache(maxsize=256)
def parse_example(tools: ToolFormat) -> ProbeTurn:
    return parse_answer(OutputParser(tools.name), tools.example)


def rate_similarity(text: str, example: str) -> int:
    """Return 2 if the text ends with the example, 1 if it does apart from white space, else 0."""
    if text.strip().endswith(example.strip()):
        return 2
    return int(SPACE.sub("", text).endswith(SPACE.sub("", example)))


@lru_cache(maxsize=256)
def make_example_pattern(example: str) -> re.Pattern[str] | None:
    """Return a pattern for texts shaped like an example without markers."""
    call = re.match(r"(\[?)\w+\(\w+=", example)
    if call:
        return re.compile(re.escape(call[1]) + r"[\w<>-]{1,60}\([\w<>-]{1,60}=")
    brackets = re.match(r"[\[{]*", example)
    keys = re.findall(r'"(\w+)":', example)[:2]
    if brackets is None or not brackets[0] or len(keys) < 2:
        return None
    quoted = [rf'\\?"{key}\\?"\s*:' for key in keys]
    return re.compile(
        r"\s*".join(map(re.escape, brackets[0])) + r"\s*" + r"[^\n{}]{0,80}?".join(quoted)
    )


def make_skeleton(text: str) -> str:
    """Return a text with every run of words replaced by one character."""
    masked = re.sub(r"(?<=>)[^<>\s]+|\b\w+\b", "x", text)
    return re.sub(r"x(?:[ ,.]*x)+", "x", masked)
