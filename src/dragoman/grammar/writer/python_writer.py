"""Values in other ways than JSON: as Python writes them, and with bare keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax
from dragoman.grammar.lark_builder import (
    LarkBuilder,
    format_repeat,
    join_alternatives,
    quote_literal,
)
from dragoman.grammar.schema.nodes import KeyPattern, LlguidanceSchema, Node, String
from dragoman.grammar.writer.json_writer import ANY_KEYS, CHARACTER, JsonWriter, restrict_keys
from dragoman.grammar.writer.marker_free_json import find_marker
from dragoman.grammar.writer.unquoted_text import (
    build_text_regex,
    cannot_be_empty,
    write_text_until,
)

LINE_CHARACTERS = ((9, 10), (13, 13))  # may stand in Python's texts as they are
PYTHON_QUOTES = (
    QuotedSyntax('"', LINE_CHARACTERS),
    QuotedSyntax("'", LINE_CHARACTERS, surrogate_pairs=False, optional_escapes='"'),
)


class PythonWriter(JsonWriter):
    """Values as Python writes them; JSON's words and strings do as well."""

    DOUBLE_QUOTED = CHARACTER.replace(r"\x00-\x1f", r"\x00-\x08\x0b\x0c\x0e-\x1f")
    SINGLE_QUOTED = (
        r"(?:[^'\\\x00-\x08\x0b\x0c\x0e-\x1f]|\\(?:['\"\\\/bfnrt]|u[0-9a-cA-CefEF][0-9a-fA-F]{3}))"
    )

    def write_text(self, node: String) -> str:
        if node.pattern is not None or node.format is not None:
            return super().write_text(node)
        count = format_repeat(node.min_length, node.max_length)
        body = rf"/\"{self.DOUBLE_QUOTED}{count}\"|'{self.SINGLE_QUOTED}{count}'/"
        return self._add_string_terminal(body, "STRING", counted=node != String())

    def write_grammar_text(self, node: GrammarText) -> str:
        return join_alternatives(self._write_quoted_text(node, quotes) for quotes in PYTHON_QUOTES)

    def write_literals(self, values: Sequence[str]) -> str:
        return self.write_one_of([way for value in values for way in list_spellings(value)])

    def write_key(self, name: str) -> str:
        return join_alternatives(
            map(quote_literal, self._escape_markers(list_spellings(json.dumps(name))))
        )

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEYS) -> str:
        count = keys.length_quantifier
        body = rf"/\"[^\"\\\x00-\x1f]{count}\"|'[^'\\\x00-\x1f]{count}'/"
        return self._add_string_terminal(
            body + restrict_keys(names, keys, r"[\"']"), "KEY", counted=count != "+"
        )


def list_spellings(value: str) -> list[str]:
    """A value of JSON as JSON and as Python write it."""
    read = json.loads(value)
    return list(dict.fromkeys((value, json.dumps(read, ensure_ascii=False), repr(read))))


BARE_KEY = re.compile(r"[^\s,:;=\[\]{}()\"'<>|]+")  # a key that is read as it is
ANY_BARE_KEY = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"


class BareKeyWriter(JsonWriter):
    """Values with bare keys, and strings between marks of their own."""

    def __init__(
        self, lark: LarkBuilder, definitions: Mapping[str, Node], quotes: Sequence[str], at: str
    ) -> None:
        super().__init__(lark, definitions, banned=quotes, param=at)
        self._quotes = quotes

    def write_text(self, node: String) -> str:
        return join_alternatives(self._write_between(mark, node) for mark in self._quotes)

    def _write_between(self, mark: str, node: String) -> str:
        inner = write_text_until(
            self.lark, build_text_regex(node), (mark,), some=cannot_be_empty(node)
        )
        return f"{self.lark.write_marker(mark)} {inner}"

    def write_grammar_text(self, node: GrammarText) -> str:
        if node.pattern is not None:
            return self.write_text(String(pattern=node.pattern))
        found = []
        for mark in self._quotes:
            letters = (mark,) if self.lark.is_plain_text(mark) else ()
            said = self.lark.write_marker(mark)
            found.append(f"{said} {write_grammar_text(self.lark, node, DelimitedSyntax(letters))} {said}")
        return join_alternatives(found)

    def write_literals(self, values: Sequence[str]) -> str:
        texts = [read for value in values if isinstance(read := json.loads(value), str)]
        plain = [way for value in values if value[0] != '"' for way in list_spellings(value)]
        # a text that holds a mark of its own is written with quotation marks and escapes
        plain += [json.dumps(text) for text in texts if find_marker(text, self._quotes)]
        texts = [text for text in texts if not find_marker(text, self._quotes)]
        found = [self.write_one_of(plain)] if plain else []
        for mark in self._quotes if texts else ():
            written = self.lark.write_marker(mark)
            found.append(f"{written} {join_alternatives(map(quote_literal, texts))} {written}")
        return join_alternatives(found)

    def write_key(self, name: str) -> str:
        return quote_literal(name) if BARE_KEY.fullmatch(name) else super().write_key(name)

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEYS) -> str:
        return self.lark.add_terminal(rf"/{ANY_BARE_KEY}/" + restrict_keys(names, keys, ""), "KEY")

    def write_delegated(self, node: LlguidanceSchema) -> str:
        return self.write_anything()
