"""Grammars for the text of a tool, rewritten: they allow the same texts, as a model writes them.

The law: a text fits the client's grammar if and only if each way to write it fits the rewritten
one. What the client's grammar allows is asked of `llguidance` itself.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator

import pytest

from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax
from dragoman.grammar.lark_builder import HEADER, LarkBuilder, quote_literal
from dragoman.grammar.writer.free_text_tools import build_arguments
from dragoman.grammar.writer.python_writer import PYTHON_QUOTES
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.client_grammars import CASES, Case
from tests.support.grammars import Walk

LETTERS = "a\"'\\\n\t<>/é😀;b *+-@.,1 "


def shape(grammar: str) -> Constraint:
    return Constraint(kind="grammar", value=grammar, param="tools[0].format", language="lark")


def rewritten(
    grammar: str, spelling: QuotedSyntax | DelimitedSyntax, before: str, after: str
) -> str:
    [(_, node)] = build_arguments(shape(grammar)).properties
    assert isinstance(node, GrammarText)
    lark = LarkBuilder()
    return lark.build(
        f"{quote_literal(before)} {write_grammar_text(lark, node, spelling)} {quote_literal(after)}"
    )


def fits(grammar: str, text: str) -> bool:
    return match_grammar(f"{HEADER}\n{grammar}", text)[0]


def texts(case: Case, chance: random.Random) -> Iterator[str]:
    """Texts of a case, and others that are almost like them."""
    yield from case.right
    yield from case.wrong
    for text in case.right * 2:
        at, letter = chance.randrange(len(text) + 1), chance.choice(LETTERS)
        yield text[:at] + letter + text[at:]
        yield text[:at] + text[at + 1 :]
        yield text[:at] + letter + text[at + 1 :]


def coded(text: str) -> str:
    """JSON with as many escapes as there may be."""
    letters = ("".join(f"\\u{ord(letter):04X}" if letter < " " else letter) for letter in text)
    said = "".join(letters)
    return json.dumps(said).replace("\\\\u00", "\\u00").replace("\\ud83d", "\\uD83D")


def in_python(text: str) -> str:
    return "'" + json.dumps(text, ensure_ascii=False)[1:-1].replace("'", "\\'") + "'"


def on_lines(text: str) -> str:
    """With line feeds and tabs as they are."""
    said = json.dumps(text, ensure_ascii=False)
    return re.sub(r"(\\\\)|\\([nt])", lambda f: f[1] or {"n": "\n", "t": "\t"}[f[2]], said)


WAYS: list[tuple[QuotedSyntax, Callable[[str], str]]] = [
    (QuotedSyntax(), json.dumps),
    (QuotedSyntax(), lambda text: json.dumps(text, ensure_ascii=False)),
    (QuotedSyntax(), coded),
    (PYTHON_QUOTES[0], json.dumps),
    (PYTHON_QUOTES[0], on_lines),
    (PYTHON_QUOTES[1], in_python),
]


@pytest.mark.parametrize("name", CASES)
def test_texts_in_quotes(name: str) -> None:
    case = CASES[name]
    assert [fits(case.grammar, text) for text in case.right] == [True] * len(case.right)
    assert [fits(case.grammar, text) for text in case.wrong] == [False] * len(case.wrong)
    sources = {
        quotes: rewritten(case.grammar, quotes, quotes.quote, quotes.quote) for quotes, _ in WAYS
    }
    for text in texts(case, random.Random(name)):
        right = fits(case.grammar, text)
        for quotes, way in WAYS:
            found = match_grammar(sources[quotes], way(text))
            assert found[0] is right, f"{text!r} as {way(text)}: {found}"


MARKS: list[tuple[str, tuple[str, ...], str]] = [
    ("</parameter>", ("<parameter=", "</function>"), ""),
    ("</arg_value>", (), "\n"),
    ("<escape>", (), ""),
    ("|end|", ("<",), ""),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("close", "banned", "breaks"), MARKS)
def test_texts_between_marks(name: str, close: str, banned: tuple[str, ...], breaks: str) -> None:
    """A text that holds the beginning of a mark may be refused; one that holds a mark is."""
    case = CASES[name]
    marks = (close, *banned)
    source = rewritten(case.grammar, DelimitedSyntax(marks, breaks), "(", close)
    for text in texts(case, random.Random(name)):
        right = fits(case.grammar, text)
        found = match_grammar(source, f"({breaks}{text}{breaks}{close}")
        # tags of any name may make up a mark, so that none of them can be written
        size = 1 if name == "marks" else 2
        begun = any(mark[:size] in text or text.endswith(mark[0]) for mark in marks)
        assert found[0] is right or (begun and right), f"{text!r}: {found}"


@pytest.mark.parametrize("name", CASES)
def test_walks(name: str) -> None:
    """Whatever is allowed fits the client's grammar."""
    grammar, chance = CASES[name].grammar, random.Random(name)
    words = ("</p>", "</", '\\"', "\\n", "\\\\")
    for spelling, ends in ((QuotedSyntax(), '"'), (DelimitedSyntax(("</p>", "<q>")), "</p>")):
        opened = ends if ends == '"' else ""
        source = rewritten(grammar, spelling, opened, ends)
        for _ in range(10):
            said = Walk(source, chance, words).go()
            if said is not None:
                text = json.loads(said) if opened else said.removesuffix(ends)
                assert fits(grammar, text), f"{said!r}"
                assert opened or ("</p>" not in text and "<q>" not in text)
