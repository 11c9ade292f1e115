"""Grammars, patterns and choices that clients send, alone and after a model's reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.grammars import compile_spec

GBNF = """
# a list of sums
root ::= sum (";" ws sum)* # and no more
sum  ::= term ([-+*/] term)*
term ::= [0-9]+ | "(" ws sum ")" | "\\"" [^"\\n]* "\\""
ws   ::= [ \\t]*
"""
LARK = r"""
%import common.INT
start: line ("," " "? line)*
line: word | "#" INT | path
word[stop=";"]: /[a-z\/]+/  // up to a semicolon
path: "/" /[^\/ ,]+/ "/"i
"""
CLASHING = r"""
start: free | value_1 | FREE_2 | own_start | json_4
free: "free" TEXT_3
value_1: "value"
FREE_2: /FREE[0-9]/
own_start: "own" up_to_5
up_to_5[lazy]: /(?s:.*)!/
TEXT_3: "text" | "think"
json_4: %json {"type": "object", "properties": {"start": {"const": "}"}}, "required": ["start"]}
"""
MAXIMAL = 'start: a b? c{2,3}\na: "a"\nb: ("b" | "B")+\nc: /c/ | "C"'

CASES: dict[str, tuple[Constraint, list[str], list[str]]] = {}


def case(name: str, matching: list[str], other: list[str], **constraint: Any) -> None:
    CASES[name] = (Constraint(param="grammar", **constraint), matching, other)


case(
    "gbnf",
    ["1", "1+2*3", "(1-2)/3; 4", '"a;b"+1', "( 1)"],
    ["", "1+", "1 + 2", "a", '"a\n"'],
    kind="grammar",
    value=GBNF,
)
case("gbnf by name", ["ab"], ["a"], kind="grammar", value='root ::= "a" "b"', language="gbnf")
case(
    "lark",
    ["a/b;", "abc;, #12", "/X/, #1", "#1,#2"],
    ["A;", "#", "/x", "abc"],
    kind="grammar",
    value=LARK,
)
case(
    "names that the larger grammar uses too",
    ["freetext", "freethink", "value", "FREE7", "own anything!", '{"start": "}"}'],
    ["free", "FREE", "value_1", "own", '{"start": "{"}', "own a!b!"],
    kind="grammar",
    value=CLASHING,
)
case(
    "repetitions",
    ["acc", "abBbccc", "aCcC"],
    ["ac", "acccc", "abb", "bcc"],
    kind="grammar",
    value=MAXIMAL,
    language="lark",
)
case("a pattern", ["a1", "b22"], ["a", "c1", "xa1", "a1\n"], kind="regex", value="[ab][0-9]+")
case("anchors", ["a1"], ["xa1", "a1x"], kind="regex", value="^a[0-9]$")
case("a choice of patterns", ["ab", "c/d"], ["abd", "ac/d", "c"], kind="regex", value="^ab|c/d$")
case("bars in brackets", ["a|b", "ab", "ac"], ["a", "bc"], kind="regex", value=r"a[|]b|a(?:b|c)")
case("slashes", ["/a/b", "//"], ["a", "/a"], kind="regex", value=r"/[a-z/]*/[a-z]?")
case("a price", ["$1", "^1"], ["1", "$$1"], kind="regex", value=r"[$^]1$")
case("an escaped end", ["1$"], ["1"], kind="regex", value=r"1\$")
case(
    "a choice",
    ["yes", "no", "perhaps, not", "ja\nnein", 'a "b" /c/'],
    ["", "maybe", "yes no", "YES"],
    kind="choice",
    value=["yes", "no", "perhaps, not", "ja\nnein", 'a "b" /c/', "yes!"],
)
PARAMS = [pytest.param(*values, id=name) for name, values in CASES.items()]


@pytest.mark.parametrize(("constraint", "matching", "other"), PARAMS)
def test_content_matches_the_constraint(
    constraint: Constraint, matching: list[str], other: list[str]
) -> None:
    source = compile_spec(constraint=constraint)
    assert [text for text in matching if not match_grammar(source, text)[0]] == []
    assert [text for text in other if match_grammar(source, text)[0]] == []


@pytest.mark.parametrize(("constraint", "matching", "other"), PARAMS)
@pytest.mark.parametrize(
    ("reasoning_format", "starts_in_reasoning", "reasoning"),
    [
        ("think", False, "<think>I say yes.</think>\n\n"),
        ("think", True, "I say yes, or \"1\" and 'a'.</think>"),
        ("mistral_think", False, "[THINK]I say <think>.[/THINK]"),
        ("gemma4_channel", False, "<|channel>thought\nI say yes.<channel|>"),
        ("harmony", True, "I say.<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("granite33_tags", False, "<think>Yes.</think><response>"),
    ],
)
def test_reasoning_before_the_content_is_unconstrained(
    constraint: Constraint,
    matching: list[str],
    other: list[str],
    reasoning_format: str,
    starts_in_reasoning: bool,
    reasoning: str,
) -> None:
    source = compile_spec(
        constraint=constraint,
        reasoning_format=reasoning_format,
        starts_in_reasoning=starts_in_reasoning,
    )
    assert [text for text in matching if not match_grammar(source, reasoning + text)[0]] == []
    # white space before the content is not part of it
    other = [text for text in other if text.strip()]
    assert [text for text in other if match_grammar(source, reasoning + text)[0]] == []
    for text in ("", "I say yes."):
        assert not match_grammar(source, text)[0]
        assert not match_grammar(source, f"{reasoning}{text}".removesuffix("<|message|>"))[0]
