"""Grammars that clients bring, as part of ours: what they mean, and what they may not hold."""

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


def made(grammar: str, language: Any = None) -> CompiledGrammar:
    shape = Constraint(kind="grammar", value=grammar, param="grammar", language=language)
    return compile_grammar(GrammarSpec(constraint=shape))


def refused(grammar: str, language: Any = None) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        made(grammar, language)
    assert error.value.param == "grammar"
    return error.value


MEANING: list[tuple[str, list[str], list[str]]] = [
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


@pytest.mark.parametrize(("grammar", "right", "wrong"), MEANING, ids=lambda value: repr(value)[:40])
def test_what_a_grammar_means(grammar: str, right: list[str], wrong: list[str]) -> None:
    found = made(grammar).grammar
    assert found is not None
    assert [match_grammar(found, text)[0] for text in right] == [True] * len(right)
    assert [match_grammar(found, text)[0] for text in wrong] == [False] * len(wrong)


REFUSED: list[tuple[str, str]] = [
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
    ('start: %json {"$ref": "http://localhost/"}', "must lead to a place in this schema"),
    ("start: start", "matches nothing"),
    ("start: /[^\\s\\S]/", "matches nothing"),
    ("root ::= nothing", "cannot be read"),
    ('start: "' + "a" * MAX_GRAMMAR_LENGTH + '"', "longer than"),
    ("start: " + "(" * 300 + '"a"' + ")" * 300, "nested too deeply"),
    ("start: " + "[" * 300 + '"a"' + "]" * 300, "nested too deeply"),
    ("root ::= " + '"a"? ' * 3_000, "too complex"),
]


@pytest.mark.parametrize(("grammar", "why"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_a_grammar_may_not_hold(grammar: str, why: str) -> None:
    assert why in refused(grammar).message


def test_a_schema_in_a_grammar_tells_what_it_does_not_enforce() -> None:
    found = made('start: %json {"type": "array", "uniqueItems": true}')
    assert found.warnings == ("`grammar`: `/uniqueItems` is not enforced.",)


@pytest.mark.parametrize("language", ["gbnf", "lark"])
@pytest.mark.parametrize("piece", ["[", "(", '"', "/[", "//[", "#[", "\\[", "<", "::a(", "%json {"])
def test_what_is_not_closed_is_read_once(language: str, piece: str) -> None:
    """If it were read again for each of its pieces, this would take minutes."""
    times = MAX_GRAMMAR_LENGTH // len(piece) - 10
    with suppress(BadRequest):  # in a comment it means nothing
        made(f'start: "a" {piece * times}', language)


def crossed(count: int) -> dict[str, Any]:
    return {"type": "string", "allOf": [{"pattern": f"a.{{{n}}}$"} for n in range(count)]}


@pytest.mark.parametrize(
    "schema",
    [
        crossed(30),
        {"properties": {"a": crossed(30)}, "required": ["a"]},
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
def test_many_patterns_of_one_text_are_not_enforced(schema: dict[str, Any]) -> None:
    def order(strict: bool) -> GrammarSpec:
        return GrammarSpec(
            constraint=Constraint(kind="json", value=schema, param="schema", strict=strict)
        )

    found = compile_grammar(order(strict=False))
    assert any("not enforced" in said for said in found.warnings)
    with pytest.raises(BadRequest) as error:
        compile_grammar(order(strict=True))
    assert error.value.code == "unsupported_keyword"


def test_two_patterns_of_one_text_are_enforced() -> None:
    both = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}
    found = compile_grammar(
        GrammarSpec(constraint=Constraint(kind="json", value=both, param="schema", strict=True))
    )
    assert found.grammar is not None
    assert match_grammar(found.grammar, '"ab"')[0]
    assert not match_grammar(found.grammar, '"b"')[0]


VERDICTS = {
    'start: "a"': "ok",
    'start: ""': "ok",
    'start: <[49000]> "a"': "ok",
    "start: <[0-49000]>": "ok",  # here there are fewer, but not in a model
    "start: <|im_end|>": "ok",
    "start: nothing": "invalid",
    "start: start": "empty",
    "start: /[0-9]/ T\nT: /[0-9]/ & /[a-z]/": "ok",  # found to lead nowhere only later
    'start: "a"? ' + '"a"? ' * 3_000: "too_complex",
    "start: /[a-z]+/ | " + " | ".join(f'"{n}x"' for n in range(3_000)): "too_complex",
}


@pytest.mark.parametrize("grammar", VERDICTS, ids=lambda grammar: grammar[:40])
def test_a_grammar_is_followed_before_engines_see_it(grammar: str) -> None:
    assert verify(grammar) == VERDICTS[grammar]
