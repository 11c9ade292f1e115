"""Writes values in other syntaxes than JSON: as Python literals, and with bare keys."""

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
from dragoman.grammar.writer.json.marker_free import find_marker
from dragoman.grammar.writer.json.scalars import CHARACTER
from dragoman.grammar.writer.json_writer import (
    ANY_KEY_PATTERN,
    JsonWriter,
    list_key_regexes,
    restrict_keys,
)
from dragoman.grammar.writer.unquoted_text import (
    build_text_regex,
    cannot_be_empty,
    write_text_until,
)

LINE_CHARACTERS = ((9, 10), (13, 13))  # need no escape in Python strings
PYTHON_QUOTES = (
    QuotedSyntax('"', LINE_CHARACTERS),
    QuotedSyntax("'", LINE_CHARACTERS, surrogate_pairs=False, optional_escapes='"'),
)


class PythonWriter(JsonWriter):
    """Writes Python literals; the constants and strings of JSON are allowed as well."""

    DOUBLE_QUOTED = CHARACTER.replace(r"\x00-\x1f", r"\x00-\x08\x0b\x0c\x0e-\x1f")
    SINGLE_QUOTED = (
        r"(?:[^'\\\x00-\x08\x0b\x0c\x0e-\x1f]|\\(?:['\"\\\/bfnrt]|u[0-9a-cA-CefEF][0-9a-fA-F]{3}))"
    )

    def write_string(self, node: String) -> str:
        if node.pattern is not None or node.format is not None:
            return super().write_string(node)
        count = format_repeat(node.min_length, node.max_length)
        body = rf"/\"{self.DOUBLE_QUOTED}{count}\"|'{self.SINGLE_QUOTED}{count}'/"
        return self._add_string_terminal(body, "STRING", length_bounded=node != String())

    def write_grammar_text(self, node: GrammarText) -> str:
        return join_alternatives(self._write_quoted_text(node, quotes) for quotes in PYTHON_QUOTES)

    def write_literals(self, values: Sequence[str]) -> str:
        return self.write_one_of(
            [spelling for value in values for spelling in list_spellings(value)]
        )

    def write_key(self, name: str) -> str:
        spellings = self._escape_markers(list_spellings(json.dumps(name)))
        return join_alternatives(map(quote_literal, spellings))

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEY_PATTERN) -> str:
        count = keys.length_quantifier
        body = rf"/\"[^\"\\\x00-\x1f]{count}\"|'[^'\\\x00-\x1f]{count}'/"
        body += restrict_keys(names, *list_key_regexes(keys), r"[\"']")
        return self._add_string_terminal(body, "KEY", length_bounded=count != "+")


def list_spellings(value: str) -> list[str]:
    """Return the ways to write a JSON value in JSON and in Python."""
    parsed = json.loads(value)
    return list(dict.fromkeys((value, json.dumps(parsed, ensure_ascii=False), repr(parsed))))


BARE_KEY = re.compile(r"[^\s,:;=\[\]{}()\"'<>|]+")  # keys that the parser reads without quotes
ANY_BARE_KEY = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"


class BareKeyWriter(JsonWriter):
    """Writes objects with bare keys, and strings between markers."""

    def __init__(
        self,
        lark: LarkBuilder,
        definitions: Mapping[str, Node],
        string_markers: Sequence[str],
        param: str,
    ) -> None:
        super().__init__(lark, definitions, banned=string_markers, param=param)
        self._string_markers = string_markers

    def write_string(self, node: String) -> str:
        return join_alternatives(
            self._write_between(marker, node) for marker in self._string_markers
        )

    def _write_between(self, marker: str, node: String) -> str:
        text = write_text_until(
            self.lark, build_text_regex(node), (marker,), some=cannot_be_empty(node)
        )
        return f"{self.lark.write_marker(marker)} {text}"

    def write_grammar_text(self, node: GrammarText) -> str:
        if node.pattern is not None:
            return self.write_string(String(pattern=node.pattern))
        options = []
        for marker in self._string_markers:
            excluded = (marker,) if self.lark.is_plain_text(marker) else ()
            quote = self.lark.write_marker(marker)
            text = write_grammar_text(self.lark, node, DelimitedSyntax(excluded))
            options.append(f"{quote} {text} {quote}")
        return join_alternatives(options)

    def write_literals(self, values: Sequence[str]) -> str:
        texts = [text for value in values if isinstance(text := json.loads(value), str)]
        others = [
            spelling for value in values if value[0] != '"' for spelling in list_spellings(value)
        ]
        # a text that contains a marker is written with quotation marks and escapes
        others += [json.dumps(text) for text in texts if find_marker(text, self._string_markers)]
        texts = [text for text in texts if not find_marker(text, self._string_markers)]
        options = [self.write_one_of(others)] if others else []
        for marker in self._string_markers if texts else ():
            quote = self.lark.write_marker(marker)
            options.append(f"{quote} {join_alternatives(map(quote_literal, texts))} {quote}")
        return join_alternatives(options)

    def write_key(self, name: str) -> str:
        return quote_literal(name) if BARE_KEY.fullmatch(name) else super().write_key(name)

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEY_PATTERN) -> str:
        return self.lark.add_terminal(
            rf"/{ANY_BARE_KEY}/" + restrict_keys(names, *list_key_regexes(keys), ""), "KEY"
        )

    def write_delegated(self, node: LlguidanceSchema) -> str:
        return self.write_anything()
