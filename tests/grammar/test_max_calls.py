"""The grammar of an answer that must call tools bounds how often it does, in every format."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dragoman.formats import get_tool_formats
from tests.support.grammars import FormatPair, make_object

NUMBER = {"type": "integer"}
TOOLS = {"f": make_object("a", a=NUMBER), "g": make_object()}
LIMIT, WALKS, ENOUGH = 2, 40, 2
ONE_CALL = ("glm4_legacy",)  # formats that cannot write more than one call


@pytest.mark.slow
@pytest.mark.parametrize("name", list(get_tool_formats()))
def test_no_answer_has_more_calls_than_the_limit(name: str) -> None:
    chance, pair = random.Random(name), FormatPair(name, TOOLS, "none")
    limited = pair.compile(tool_choice="required", max_calls=LIMIT)
    counts: Counter[int] = Counter()
    for text in pair.iter_walks(limited, chance, [""] * WALKS):
        count = len(pair.parse(text).raw_calls)
        assert 1 <= count <= LIMIT, text
        counts[count] += 1
        if counts[LIMIT] == ENOUGH or (name in ONE_CALL and counts[1] == ENOUGH):
            break
    assert counts[1 if name in ONE_CALL else LIMIT]
