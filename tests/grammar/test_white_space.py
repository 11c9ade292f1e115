"""JSON under a grammar has the white space that models write, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.grammars import compile_spec, make_object
from tests.support.real_model import make_request, make_schema_fields, request_answer, serve
from tests.support.serving import RunningServer

NUMBERS = {"type": "array", "items": {"type": "integer"}}
SCHEMA = make_object("a b", a={"type": "string"}, b=make_object("c d", c=NUMBERS, d=NUMBERS))
VALUE: dict[str, Any] = {"a": "x", "b": {"c": [1, 2], "d": []}}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def compile_json(schema: Any) -> str:
    return compile_spec(constraint=Constraint(kind="json", value=schema, param="x"))


@pytest.mark.parametrize(
    "style",
    [
        {"separators": (",", ":")},
        {"separators": (", ", ": ")},
        {"separators": (",", ": ")},
        {"separators": (" , ", " : ")},
        {"indent": 0},
        {"indent": 2},
        {"indent": 4},
        {"indent": "\t"},
    ],
)
@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_styles_of_json(style: dict[str, Any], schema: Any) -> None:
    assert match_grammar(compile_json(schema), json.dumps(VALUE, **style))[0]
    windows = json.dumps(VALUE, **style).replace("\n", "\r\n")
    assert match_grammar(compile_json(schema), windows)[0]


@pytest.mark.parametrize(
    "text",
    [
        '{  "a":"x","b":{"c":[],"d":[]}}',
        '{\n\n"a":"x","b":{"c":[],"d":[]}}',
        '{"a":  "x","b":{"c":[],"d":[]}}',
        '{"a":\n"x","b":{"c":[],"d":[]}}',
        '{"a"\n:"x","b":{"c":[],"d":[]}}',
        '{"a":"x",\n\n"b":{"c":[],"d":[]}}',
        '{"a":"x"\n,"b":{"c":[],"d":[]}}',
        '{"a":"x","b":{"c":[],"d":[]}\n\n}',
        '{"a":"x",\n' + " " * 17 + '"b":{"c":[],"d":[]}}',
    ],
)
@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_more_white_space_is_not_allowed(text: str, schema: Any) -> None:
    json.loads(text)
    assert not match_grammar(compile_json(schema), text)[0]


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=1024, slots=1) as running:
        yield running


@pytest.mark.real_model
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, make_schema_fields(SCHEMA)]
)
def test_a_small_model_wastes_no_tokens(
    server: RunningServer, fields: dict[str, Any], seed: int
) -> None:
    question = "List three cities with their country and population as JSON."
    answer = request_answer(server, make_request(question, seed, max_tokens=64, **fields))
    between = STRING.sub("0", answer.content).partition('"')[0]  # a string may be cut
    runs = re.findall(r"[ \t\r\n]+", between)
    assert all(re.fullmatch(r" |\r?\n(?: {0,16}|\t{0,8})", run) for run in runs), answer.content
