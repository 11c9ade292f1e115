"""Grammars that clients send, as part of a larger grammar: what they allow, which are rejected."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.grammar.client.constraint import MAX_GRAMMAR_LENGTH
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.compiler.verify import verify
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint

pytestmark = pytest.mark.slow


def compile_source(grammar: str, language: Any = None) -> CompiledGrammar:
    constraint = Constraint(kind="grammar", value=grammar, param="grammar", language=language)
    return compile_grammar(GrammarSpec(constraint=constraint))


def compile_error(grammar: str, language: Any = None) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        compile_source(grammar, language)
    assert error.value.param == "grammar"
    return error.value


ACCEPTED: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a" [0-9]+', ["a1", "a22"], ["a", "b"]),
    ('start: "a" b\nb: /[0-9]+/', ["a1"], ["a"]),
    ('// it\'s a "comment\nstart: "a" # [and "another', ["a"], [""]),
    ('start: "%json {" "// no" /\\/\\/&/', ["%json {// no//&"], ["%json {"]),
    ("ID: /[a-z]+/ & ~/if|else/\nstart: ID", ["iff", "x"], ["if", "else"]),
    ('ID: /[a-z]+/ & ~"if" & ~ "else"\nstart: ID', ["iff"], ["if", "else"]),
    ('%llguidance {"no_forcing": false, "a": {"b": "}"}}\nstart: "a"', ["a"], ["b"]),
    ("%import common.INT\nstart: INT", ["12"], ["x"]),
    ('start: %json {"type": "object",\n"required": ["a"]} "!"', ['{"a": 1}!'], ['{"a": 1}', "{}!"]),
    ('start: a a\na: %json {"enum": [1, "two"]} ";"', ['1;"two";'], ["1;2;"]),
    (
        'start: a::0\na::_: "x" a::set_bit(0) %if bit_clear(0)\n  | "y" %if bit_set(0)',
        ["xy"],
        ["y", "xxy"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("grammar", "matching", "other"), ACCEPTED, ids=lambda value: repr(value)[:40]
)
def test_grammar_allows_what_the_client_means(
    grammar: str, matching: list[str], other: list[str]
) -> None:
    source = compile_source(grammar).grammar
    assert source is not None
    assert [match_grammar(source, text)[0] for text in matching] == [True] * len(matching)
    assert [match_grammar(source, text)[0] for text in other] == [False] * len(other)


REJECTED: list[tuple[str, str]] = [
    ("start: A\nA: /a*/ & /b*/", "`&` must be followed by"),
    ("start: A\nA: /a*/ & B\nB: /b/", "`&` must be followed by"),
    ("start: A\nA: /a*/ & ~B\nB: ~/b/", "`&` must be followed by"),
    ("start: A\nA: /a*/ & ~(~/b/)", "`&` must be followed by"),
    ("start: A\nA: /a*/ & ~/b/ /c*/", "`&` must be followed by"),
    ("start: A\nA: /a*/ & ~/b/{3}", "`&` must be followed by"),
    ('start: A\nA: /a*/ & ~"b" & ~"c" B\nB: "d"', "`&` must be followed by"),
    ('start: "a"\n%llguidance {"no_forcing": false}', "`%llguidance` is not supported"),
    ("start: %json {", "not valid JSON"),
    ('start: %json {"type": 5}', "`/type` must be"),
    ('start: %json {"$ref": "http://localhost/"}', "must point into this schema"),
    ("start: start", "matches nothing"),
    ("start: /[^\\s\\S]/", "matches nothing"),
    ("root ::= nothing", "is invalid"),
    ('start: "' + "a" * MAX_GRAMMAR_LENGTH + '"', "longer than"),
    ("start: " + "(" * 300 + '"a"' + ")" * 300, "nested too deeply"),
    ("start: " + "[" * 300 + '"a"' + "]" * 300, "nested too deeply"),
    ("root ::= " + '"a"? ' * 3_000, "too complex"),
]


@pytest.mark.parametrize(("grammar", "reason"), REJECTED, ids=lambda value: repr(value)[:40])
def test_unsupported_grammars_are_rejected(grammar: str, reason: str) -> None:
    assert reason in compile_error(grammar).message


def test_a_schema_in_a_grammar_warns_about_unenforced_keywords() -> None:
    compiled = compile_source('start: %json {"type": "array", "uniqueItems": true}')
    assert compiled.warnings == ("`grammar`: `/uniqueItems` is not enforced.",)


@pytest.mark.parametrize("language", ["gbnf", "lark"])
@pytest.mark.parametrize("piece", ["[", "(", '"', "/[", "//[", "#[", "\\[", "<", "::a(", "%json {"])
def test_unclosed_tokens_are_scanned_once(language: str, piece: str) -> None:
    """Scanning the rest again from each piece would take minutes."""
    count = MAX_GRAMMAR_LENGTH // len(piece) - 10
    with suppress(BadRequest):  # in a comment, it is valid
        compile_source(f'start: "a" {piece * count}', language)


def intersecting_patterns(count: int) -> dict[str, Any]:
    return {"type": "string", "allOf": [{"pattern": f"a.{{{n}}}$"} for n in range(count)]}


@pytest.mark.parametrize(
    "schema",
    [
        intersecting_patterns(30),
        {"properties": {"a": intersecting_patterns(30)}, "required": ["a"]},
        {"allOf": [{"properties": {"a": {"pattern": f"a.{{{n}}}$"}}} for n in range(30)]},
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{n}": {"pattern": f"a.{{{n}}}$", "allOf": [{"$ref": f"#/$defs/d{n + 1}"}]}
                for n in range(30)
            }
            | {"d30": {"type": "string"}},
        },
        {"patternProperties": {f"a.{{{n}}}$": {"pattern": f"b.{{{n}}}$"} for n in range(30)}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_many_patterns_on_one_string_are_not_enforced(schema: dict[str, Any]) -> None:
    def build_spec(strict: bool) -> GrammarSpec:
        return GrammarSpec(
            constraint=Constraint(kind="json", value=schema, param="schema", strict=strict)
        )

    compiled = compile_grammar(build_spec(strict=False))
    assert any("not enforced" in warning for warning in compiled.warnings)
    with pytest.raises(BadRequest) as error:
        compile_grammar(build_spec(strict=True))
    assert error.value.code == "unsupported_keyword"


def test_two_patterns_on_one_string_are_enforced() -> None:
    schema = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}
    compiled = compile_grammar(
        GrammarSpec(constraint=Constraint(kind="json", value=schema, param="schema", strict=True))
    )
    assert compiled.grammar is not None
    assert match_grammar(compiled.grammar, '"ab"')[0]
    assert not match_grammar(compiled.grammar, '"b"')[0]


VERDICTS = {
    'start: "a"': "ok",
    'start: ""': "ok",
    'start: <[49000]> "a"': "ok",
    "start: <[0-49000]>": "ok",  # a model has more tokens than the test vocabulary
    "start: <|im_end|>": "ok",
    "start: nothing": "invalid",
    "start: start": "empty",
    "start: /[0-9]/ T\nT: /[0-9]/ & /[a-z]/": "ok",  # the contradiction is detected later
    'start: "a"? ' + '"a"? ' * 3_000: "too_complex",
    "start: /[a-z]+/ | " + " | ".join(f'"{n}x"' for n in range(3_000)): "too_complex",
}


@pytest.mark.parametrize("grammar", VERDICTS, ids=lambda grammar: grammar[:40])
def test_verify_simulates_a_grammar_before_engines_get_it(grammar: str) -> None:
    assert verify(grammar) == VERDICTS[grammar]
