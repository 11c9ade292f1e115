"""Tools that take free text, in every format: the text keeps to its grammar however it is written.

The text is written as the format writes an argument called `input`, and read back by the format's
own parser. What it must be is asked of `llguidance`, with the client's own grammar.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import httpx
import pytest

from dragoman.errors import BadRequest
from dragoman.formats import tool_formats
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.grammar.lark_builder import HEADER
from dragoman.output.spec import TaggedArguments
from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint, Tool
from tests.grammar.test_tool_formats import UNMARKED
from tests.pipeline.test_constrain import THINKER
from tests.support.client_grammars import CASES, INVALID_PATCHES, PATCH, PATCHES, QUERY
from tests.support.grammars import Pair, Walk
from tests.support.hostile_grammars import GRAMMARS, PATTERNS
from tests.support.serving import serve_scripted

NAMES = list(tool_formats())
TRIMMED = {
    name
    for name, one in tool_formats().items()
    for body in one.bodies
    if isinstance(body, TaggedArguments) and body.trim == "newline"
}
COUNT = 4  # ways to write a call
TEXT = {"type": "string"}


def schema(text: Any) -> dict[str, Any]:
    """What a tool that takes free text looks like to a model."""
    return {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }


def lark(grammar: str) -> Constraint:
    return Constraint(
        kind="grammar", value=grammar, language="lark", param="tools[0].format.definition"
    )


def source(name: str, text: Constraint | None, **order: Any) -> str:
    """The grammar of an answer that may use the tool."""
    tool = Tool(name="f", parameters=schema(TEXT), takes_free_text=True, input=text)
    made = compile_grammar(
        GrammarSpec(tools=(tool,), tool_format=name, reasoning_format="none", **order)
    )
    assert made.grammar is not None
    return made.grammar


def calls(name: str, text: str) -> list[str]:
    """Ways to call the tool with this text."""
    pair = Pair(name, {"f": schema({"const": text})}, "none")
    forced = pair.grammar(tool_choice="required", parallel_calls=False)
    return list(pair.walks(forced, random.Random(name), [""] * COUNT))


def inputs(name: str, text: str) -> list[str]:
    """The texts of all calls in an answer."""
    said = Pair(name, {"f": schema(TEXT)}, "none").said(text)
    return [json.loads(arguments)["input"] for _, arguments in said.raw_calls]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_fits_can_be_written_and_no_other(name: str) -> None:
    forced, free = source(name, lark(PATCH), tool_choice="required"), source(name, lark(PATCH))
    right = [text for text in PATCHES if not text.endswith("\n")]
    for text in right:
        found = [call for call in calls(name, text) if match_grammar(forced, call)[0]]
        # a line feed before the closing mark is part of it
        assert found if name in TRIMMED else len(found) == COUNT, text
        assert [inputs(name, call) for call in found] == [[text]] * len(found)
        assert name in UNMARKED or match_grammar(free, found[0])[0]
    for text in ("x", INVALID_PATCHES[2], *INVALID_PATCHES[6:]):
        call = calls(name, text)[0]
        assert not match_grammar(forced, call)[0], text
        assert not match_grammar(free, call)[0] or not inputs(name, call), text


WALKS = {
    "patch": (lark(PATCH), PATCH),
    "query": (lark(QUERY), QUERY),
    "lines": (lark(CASES["lines"].grammar), CASES["lines"].grammar),
    "quotes": (lark(CASES["quotes"].grammar), CASES["quotes"].grammar),
    "pattern": (
        Constraint(kind="regex", value=r'^[^\n<]{2,9}("|\\|\n)x?$', param="tools[0].format"),
        r'start: /[^\n<]{2,9}("|\\|\n)x?/',
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", WALKS)
def test_whatever_is_written_fits(name: str, what: str) -> None:
    shape, own = WALKS[what]
    chance, words = random.Random(name + what), ("</", "<", '\\"', "\\n", "\n", "a", '"')
    forced = source(name, shape, tool_choice="required", parallel_calls=False)
    for _ in range(3):
        text = Walk(forced, chance, words).go(steps=200)
        for one in [] if text is None else inputs(name, text):
            assert match_grammar(f"{HEADER}\n{own}", one)[0], f"{one!r} in {text!r}"


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_is_kept_to(name: str) -> None:
    shape = Constraint(kind="regex", value=r'a"[0-9]\n<?|é+', param="tools[0].format")
    forced = source(name, shape, tool_choice="required")
    for text in ('a"1\n<', "éé"):
        assert any(match_grammar(forced, call)[0] for call in calls(name, text)), text
    for text in ('a"1', ' a"1\n<'):
        assert not any(match_grammar(forced, call)[0] for call in calls(name, text)), text


@pytest.mark.parametrize("name", NAMES)
def test_without_a_grammar_any_text_will_do(name: str) -> None:
    forced = source(name, None, tool_choice="required")
    for text in ("x", 'a "b" \\ c\nd\té', "1", "null", "{}"):
        call = calls(name, text)[0]
        assert match_grammar(forced, call)[0], call
        assert inputs(name, call) == [text]
    chance = random.Random(name)
    for _ in range(4):
        text = Walk(forced, chance).go() or ""
        assert all(isinstance(one, str) for one in inputs(name, text))


# on the line

APPLY = {
    "type": "custom",
    "name": "f",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}


def said(text: str, **fields: Any) -> httpx.Response:
    """What becomes of an answer that calls the tool with a text."""
    call = {"name": "f", "arguments": {"input": text}}
    script = ScriptedEngine(f"<tool_call>\n{json.dumps(call)}\n</tool_call>", check_grammars=True)
    body = {"model": "scripted", "input": "Go.", "tools": [APPLY]} | fields
    with serve_scripted(script, chat_template=THINKER) as server:
        return httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_client_gets_a_text_that_fits(choice: str) -> None:
    response = said(PATCHES[1], tool_choice=choice)
    [item] = response.json()["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", PATCHES[1])
    assert said(INVALID_PATCHES[1], tool_choice=choice).status_code == 500  # it leaves its grammar


def test_a_grammar_is_a_demand_whatever_the_choice() -> None:
    body = {"model": "scripted", "input": "Go.", "tools": [APPLY]}
    with serve_scripted(ScriptedEngine("Hello."), chat_template=THINKER) as server:
        refused = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)
        none = httpx.post(f"{server.url}/v1/responses", json=body | {"tool_choice": "none"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools[0].format.definition")
    assert none.status_code == 200


GBNF = 'root ::= "say \\"" [^"\\n]+ "\\"\\n"?'


def test_gbnf_will_do() -> None:
    shape = Constraint(kind="grammar", value=GBNF, language="gbnf", param="tools[0].format")
    forced = source("hermes_json", shape, tool_choice="required")
    assert all(match_grammar(forced, call)[0] for call in calls("hermes_json", 'say "é\\"\n'))
    assert not any(match_grammar(forced, call)[0] for call in calls("hermes_json", 'say "a\nb"'))


REFUSED = [
    ('start: "a" <[5]>', "`<`"),
    ('start: %json {"type": "object"}', "`%json`"),
    ('start: a::0\na::_: "x" a::set_bit(0) %if bit_clear(0)\n  | "y"', "`::`"),
    ("start: a\na[lazy]: /.*;/", "option"),
    ("start: /[a-z&&[^b]]/", "class made of classes"),
    ("start: /(?x: a b)/", "flag"),
]


@pytest.mark.parametrize(("grammar", "what"), REFUSED)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_cannot_be_rewritten_is_refused_by_name(grammar: str, what: str, choice: str) -> None:
    with pytest.raises(BadRequest) as refused:
        source("hermes_json", lark(grammar), tool_choice=choice)
    assert refused.value.param == "tools[0].format.definition"
    assert what in refused.value.message


# what means harm


def texts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that are texts: the others get no further than the decoder."""
    for name, value in values.items():
        try:
            said = json.loads(value() if callable(value) else value)
            said.encode()
        except ValueError:
            continue
        yield name, said


HOSTILE: dict[str, tuple[Literal["grammar", "regex"], str]] = {
    **{f"grammar, {name}": ("grammar", value) for name, value in texts(GRAMMARS)},
    **{f"pattern, {name}": ("regex", value) for name, value in texts(PATTERNS)},
}
FORMATS = ("hermes_json", "qwen3_coder", "gemma4", "pythonic")  # each writes texts in its own way


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[[GrammarSpec], CompiledGrammar]]:
    """Makes grammars as a server does."""
    shop = CompilerPool(workers=1)
    with asyncio.Runner() as runner:

        def make(order: GrammarSpec) -> CompiledGrammar:
            try:
                return runner.run(shop.compile(order))
            except BadRequest as error:
                raise Refused(error.param, len(error.message)) from error

        yield make
        runner.run(shop.aclose())


class Refused(Exception):
    """By its name, in a few words."""

    def __init__(self, param: str | None, length: int) -> None:
        assert param == "tools[0].format"
        assert length < 500


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_made_or_refused(
    made: Callable[[GrammarSpec], CompiledGrammar], name: str
) -> None:
    """Within the time that a worker has; `make test-constraints` asks an engine for more."""
    kind, said = HOSTILE[name]
    shape = Constraint(kind=kind, value=said, param="tools[0].format")
    tool = Tool(name="f", parameters=schema(TEXT), takes_free_text=True, input=shape)
    way = FORMATS[list(HOSTILE).index(name) % len(FORMATS)]
    with suppress(Refused):
        assert made(GrammarSpec(tools=(tool,), tool_format=way)).grammar is not None
