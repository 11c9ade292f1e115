"""Rewritten grammars for the text of a tool: they allow the same texts, in the form a model writes.

The invariant: a text matches the client's grammar if and only if every written form of it matches
the rewritten grammar. llguidance itself decides what the client's grammar allows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator

import pytest

from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax, TextSyntax
from dragoman.grammar.lark_builder import HEADER, LarkBuilder, quote_literal
from dragoman.grammar.writer.free_text_tools import build_arguments
from dragoman.grammar.writer.python_writer import PYTHON_QUOTES
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.client_grammars import CASES, Case
from tests.support.grammars import GrammarWalk

pytestmark = pytest.mark.slow

CHARS = "a\"'\\\n\t<>/é😀;b *+-@.,1 "


def build_constraint(grammar: str) -> Constraint:
    return Constraint(kind="grammar", value=grammar, param="tools[0].format", language="lark")


def rewrite(grammar: str, syntax: TextSyntax, before: str, after: str) -> str:
    [(_, node)] = build_arguments(build_constraint(grammar)).properties
    assert isinstance(node, GrammarText)
    lark = LarkBuilder()
    text = write_grammar_text(lark, node, syntax)
    return lark.build(f"{quote_literal(before)} {text} {quote_literal(after)}")


def matches(grammar: str, text: str) -> bool:
    return match_grammar(f"{HEADER}\n{grammar}", text)[0]


def generate_texts(case: Case, rng: random.Random) -> Iterator[str]:
    """Yield the texts of a case, and some that differ from them by one character."""
    yield from case.matching
    yield from case.other
    for text in case.matching * 2:
        at, char = rng.randrange(len(text) + 1), rng.choice(CHARS)
        yield text[:at] + char + text[at:]
        yield text[:at] + text[at + 1 :]
        yield text[:at] + char + text[at + 1 :]


def write_json_with_escapes(text: str) -> str:
    """Write JSON with as many escapes as possible."""
    escaped = "".join(f"\\u{ord(char):04X}" if char < " " else char for char in text)
    return json.dumps(escaped).replace("\\\\u00", "\\u00").replace("\\ud83d", "\\uD83D")


def write_single_quoted(text: str) -> str:
    return "'" + json.dumps(text, ensure_ascii=False)[1:-1].replace("'", "\\'") + "'"


def write_multiline(text: str) -> str:
    """Write newlines and tabs without escapes."""
    encoded = json.dumps(text, ensure_ascii=False)
    return re.sub(
        r"(\\\\)|\\([nt])", lambda match: match[1] or {"n": "\n", "t": "\t"}[match[2]], encoded
    )


WRITERS: list[tuple[QuotedSyntax, Callable[[str], str]]] = [
    (QuotedSyntax(), json.dumps),
    (QuotedSyntax(), lambda text: json.dumps(text, ensure_ascii=False)),
    (QuotedSyntax(), write_json_with_escapes),
    (PYTHON_QUOTES[0], json.dumps),
    (PYTHON_QUOTES[0], write_multiline),
    (PYTHON_QUOTES[1], write_single_quoted),
]


@pytest.mark.parametrize("name", CASES)
def test_quoted_texts(name: str) -> None:
    case = CASES[name]
    assert [matches(case.grammar, text) for text in case.matching] == [True] * len(case.matching)
    assert [matches(case.grammar, text) for text in case.other] == [False] * len(case.other)
    sources = {
        syntax: rewrite(case.grammar, syntax, syntax.quote, syntax.quote) for syntax, _ in WRITERS
    }
    for text in generate_texts(case, random.Random(name)):
        expected = matches(case.grammar, text)
        for syntax, write in WRITERS:
            result = match_grammar(sources[syntax], write(text))
            assert result[0] is expected, f"{text!r} as {write(text)}: {result}"


MARKERS: list[tuple[str, tuple[str, ...], str]] = [
    ("</parameter>", ("<parameter=", "</function>"), ""),
    ("</arg_value>", (), "\n"),
    ("<escape>", (), ""),
    ("|end|", ("<",), ""),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("close", "banned", "padding"), MARKERS)
def test_delimited_texts(name: str, close: str, banned: tuple[str, ...], padding: str) -> None:
    """A text with a prefix of a marker may be rejected; one with a whole marker always is."""
    case = CASES[name]
    markers = (close, *banned)
    source = rewrite(case.grammar, DelimitedSyntax(markers, padding), "(", close)
    for text in generate_texts(case, random.Random(name)):
        expected = matches(case.grammar, text)
        result = match_grammar(source, f"({padding}{text}{padding}{close}")
        # tags of any name could form a marker, so that none of them can be written
        length = 1 if name == "tags" else 2
        has_prefix = any(marker[:length] in text or text.endswith(marker[0]) for marker in markers)
        assert result[0] is expected or (has_prefix and expected), f"{text!r}: {result}"


@pytest.mark.parametrize("name", CASES)
def test_random_walks(name: str) -> None:
    """Every text that the rewritten grammar allows matches the client's grammar."""
    grammar, rng = CASES[name].grammar, random.Random(name)
    words = ("</p>", "</", '\\"', "\\n", "\\\\")
    for syntax, close in ((QuotedSyntax(), '"'), (DelimitedSyntax(("</p>", "<q>")), "</p>")):
        is_quoted = isinstance(syntax, QuotedSyntax)
        source = rewrite(grammar, syntax, close if is_quoted else "", close)
        for _ in range(10):
            written = GrammarWalk(source, rng, words).run()
            if written is not None:
                text = json.loads(written) if is_quoted else written.removesuffix(close)
                assert matches(grammar, text), f"{written!r}"
                assert is_quoted or ("</p>" not in text and "<q>" not in text)
