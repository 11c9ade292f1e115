"""Tools that take free text, in every format: the text matches its grammar, however it is written.

The text is written as the format writes an argument called `input`, and parsed by the format's own
parser. llguidance decides with the client's own grammar which texts are allowed.
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
from dragoman.formats import get_tool_formats
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
from tests.support.grammars import FormatPair, GrammarWalk
from tests.support.hostile_grammars import GRAMMARS, PATTERNS
from tests.support.serving import serve_scripted

pytestmark = pytest.mark.slow

NAMES = list(get_tool_formats())
TRIMMED = {
    name
    for name, tool_format in get_tool_formats().items()
    for body in tool_format.bodies
    if isinstance(body, TaggedArguments) and body.trim == "newline"
}
CALL_COUNT = 4  # written forms of one call that are tested
TEXT = {"type": "string"}


def input_schema(text: Any) -> dict[str, Any]:
    """The parameters of a tool that takes free text, as the model sees them."""
    return {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }


def lark_constraint(grammar: str) -> Constraint:
    return Constraint(
        kind="grammar", value=grammar, language="lark", param="tools[0].format.definition"
    )


def compile_source(tool_format: str, text: Constraint | None, **spec: Any) -> str:
    """The grammar of an answer that may call the tool."""
    tool = Tool(name="f", parameters=input_schema(TEXT), takes_free_text=True, input=text)
    compiled = compile_grammar(
        GrammarSpec(tools=(tool,), tool_format=tool_format, reasoning_format="none", **spec)
    )
    assert compiled.grammar is not None
    return compiled.grammar


def write_calls(tool_format: str, text: str) -> list[str]:
    """Several written forms of a call with this text."""
    pair = FormatPair(tool_format, {"f": input_schema({"const": text})}, "none")
    forced = pair.compile(tool_choice="required", max_calls=1)
    return list(pair.iter_walks(forced, random.Random(tool_format), [""] * CALL_COUNT))


def parse_inputs(tool_format: str, answer: str) -> list[str]:
    """The texts of all calls in an answer."""
    parsed = FormatPair(tool_format, {"f": input_schema(TEXT)}, "none").parse(answer)
    return [json.loads(arguments)["input"] for _, arguments in parsed.raw_calls]


@pytest.mark.parametrize("name", NAMES)
def test_only_matching_texts_can_be_written(name: str) -> None:
    forced = compile_source(name, lark_constraint(PATCH), tool_choice="required")
    free = compile_source(name, lark_constraint(PATCH))
    matching = [text for text in PATCHES if not text.endswith("\n")]
    for text in matching:
        accepted = [call for call in write_calls(name, text) if match_grammar(forced, call)[0]]
        # where newlines are trimmed, some forms stand for another text
        assert accepted if name in TRIMMED else len(accepted) == CALL_COUNT, text
        assert [parse_inputs(name, call) for call in accepted] == [[text]] * len(accepted)
        assert name in UNMARKED or match_grammar(free, accepted[0])[0]
    for text in ("x", INVALID_PATCHES[2], *INVALID_PATCHES[6:]):
        call = write_calls(name, text)[0]
        assert not match_grammar(forced, call)[0], text
        assert not match_grammar(free, call)[0] or not parse_inputs(name, call), text


WALKS = {
    "patch": (lark_constraint(PATCH), PATCH),
    "query": (lark_constraint(QUERY), QUERY),
    "lines": (lark_constraint(CASES["lines"].grammar), CASES["lines"].grammar),
    "quotes": (lark_constraint(CASES["quotes"].grammar), CASES["quotes"].grammar),
    "pattern": (
        Constraint(kind="regex", value=r'^[^\n<]{2,9}("|\\|\n)x?$', param="tools[0].format"),
        r'start: /[^\n<]{2,9}("|\\|\n)x?/',
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("walk", WALKS)
def test_every_written_text_matches(name: str, walk: str) -> None:
    constraint, grammar = WALKS[walk]
    rng, words = random.Random(name + walk), ("</", "<", '\\"', "\\n", "\n", "a", '"')
    forced = compile_source(name, constraint, tool_choice="required", max_calls=1)
    for _ in range(3):
        text = GrammarWalk(forced, rng, words).run(steps=200)
        for value in [] if text is None else parse_inputs(name, text):
            assert match_grammar(f"{HEADER}\n{grammar}", value)[0], f"{value!r} in {text!r}"


@pytest.mark.parametrize("name", NAMES)
def test_patterns_are_enforced(name: str) -> None:
    constraint = Constraint(kind="regex", value=r'a"[0-9]\n<?|é+', param="tools[0].format")
    forced = compile_source(name, constraint, tool_choice="required")
    for text in ('a"1\n<', "éé"):
        assert any(match_grammar(forced, call)[0] for call in write_calls(name, text)), text
    for text in ('a"1', ' a"1\n<'):
        assert not any(match_grammar(forced, call)[0] for call in write_calls(name, text)), text


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_allowed_without_a_grammar(name: str) -> None:
    forced = compile_source(name, None, tool_choice="required")
    for text in ("x", 'a "b" \\ c\nd\té', "1", "null", "{}"):
        call = write_calls(name, text)[0]
        assert match_grammar(forced, call)[0], call
        assert parse_inputs(name, call) == [text]
    rng = random.Random(name)
    for _ in range(4):
        text = GrammarWalk(forced, rng).run() or ""
        assert all(isinstance(value, str) for value in parse_inputs(name, text))


# over HTTP

PATCH_TOOL = {
    "type": "custom",
    "name": "f",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}


def post_response(text: str, **fields: Any) -> httpx.Response:
    """Send a request whose scripted answer calls the tool with a text."""
    call = {"name": "f", "arguments": {"input": text}}
    engine = ScriptedEngine(f"<tool_call>\n{json.dumps(call)}\n</tool_call>", check_grammars=True)
    body = {"model": "scripted", "input": "Go.", "tools": [PATCH_TOOL]} | fields
    with serve_scripted(engine, chat_template=THINKER) as server:
        return httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_clients_get_matching_texts(choice: str) -> None:
    response = post_response(PATCHES[1], tool_choice=choice)
    [item] = response.json()["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", PATCHES[1])
    # the scripted engine fails if the text leaves the grammar
    assert post_response(INVALID_PATCHES[1], tool_choice=choice).status_code == 500


def test_a_grammar_must_be_enforceable_unless_tools_are_disabled() -> None:
    body = {"model": "scripted", "input": "Go.", "tools": [PATCH_TOOL]}
    with serve_scripted(ScriptedEngine("Hello."), chat_template=THINKER) as server:
        rejected = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)
        without_tools = httpx.post(
            f"{server.url}/v1/responses", json=body | {"tool_choice": "none"}
        )
    error = rejected.json()["error"]
    assert (rejected.status_code, error["param"]) == (400, "tools[0].format.definition")
    assert without_tools.status_code == 200


GBNF = 'root ::= "say \\"" [^"\\n]+ "\\"\\n"?'


def test_gbnf_grammars_are_enforced() -> None:
    constraint = Constraint(kind="grammar", value=GBNF, language="gbnf", param="tools[0].format")
    forced = compile_source("hermes_json", constraint, tool_choice="required")
    assert all(match_grammar(forced, call)[0] for call in write_calls("hermes_json", 'say "é\\"\n'))
    assert not any(
        match_grammar(forced, call)[0] for call in write_calls("hermes_json", 'say "a\nb"')
    )


REJECTED = [
    ('start: "a" <[5]>', "`<`"),
    ('start: %json {"type": "object"}', "`%json`"),
    ('start: a::0\na::_: "x" a::set_bit(0) %if bit_clear(0)\n  | "y"', "`::`"),
    ("start: a\na[lazy]: /.*;/", "option"),
    ("start: /[a-z&&[^b]]/", "nested character class"),
    ("start: /(?x: a b)/", "flag"),
]


@pytest.mark.parametrize(("grammar", "construct"), REJECTED)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_unsupported_constructs_are_rejected_by_name(
    grammar: str, construct: str, choice: str
) -> None:
    with pytest.raises(BadRequest) as error:
        compile_source("hermes_json", lark_constraint(grammar), tool_choice=choice)
    assert error.value.param == "tools[0].format.definition"
    assert construct in error.value.message


# hostile grammars


def decode_texts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values that are valid strings; the decoder rejects the others."""
    for name, value in values.items():
        try:
            text = json.loads(value() if callable(value) else value)
            text.encode()
        except ValueError:
            continue
        yield name, text


HOSTILE: dict[str, tuple[Literal["grammar", "regex"], str]] = {
    **{f"grammar, {name}": ("grammar", value) for name, value in decode_texts(GRAMMARS)},
    **{f"pattern, {name}": ("regex", value) for name, value in decode_texts(PATTERNS)},
}
# each writes strings in a different syntax
FORMATS = ("hermes_json", "qwen3_coder", "gemma4", "pythonic")


@pytest.fixture(scope="module")
def compile_in_worker() -> Iterator[Callable[[GrammarSpec], CompiledGrammar]]:
    """Compile grammars in a worker process, as a server does."""
    pool = CompilerPool(workers=1)
    with asyncio.Runner() as runner:

        def compile_spec(spec: GrammarSpec) -> CompiledGrammar:
            try:
                return runner.run(pool.compile(spec))
            except BadRequest as error:
                raise Rejected(error.param, len(error.message)) from error

        yield compile_spec
        runner.run(pool.aclose())


class Rejected(Exception):
    """A grammar was rejected, with a short message that names the field."""

    def __init__(self, param: str | None, length: int) -> None:
        assert param == "tools[0].format"
        assert length < 500


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_compiled_or_rejected(
    compile_in_worker: Callable[[GrammarSpec], CompiledGrammar], name: str
) -> None:
    """Within the time limit of a worker; `make test-constraints` tests them with an engine."""
    kind, source = HOSTILE[name]
    constraint = Constraint(kind=kind, value=source, param="tools[0].format")
    tool = Tool(name="f", parameters=input_schema(TEXT), takes_free_text=True, input=constraint)
    tool_format = FORMATS[list(HOSTILE).index(name) % len(FORMATS)]
    with suppress(Rejected):
        spec = GrammarSpec(tools=(tool,), tool_format=tool_format)
        assert compile_in_worker(spec).grammar is not None
