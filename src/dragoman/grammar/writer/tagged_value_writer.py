"""Writes values between tags: text without quotes, and JSON for all other values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import DelimitedSyntax
from dragoman.grammar.lark_builder import ANY, join_alternatives, quote_literal
from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.schema.nodes import (
    AnyOf,
    Anything,
    Literals,
    LlguidanceSchema,
    Node,
    String,
)
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.grammar.writer.unquoted_text import (
    UnambiguousText,
    build_string_regex,
    cannot_be_empty,
    exclude_types,
    list_restricted_types,
    list_types,
    write_text_until,
)
from dragoman.output.arguments.schemas.parameter_types import ANY_TYPE
from dragoman.output.arguments.tags import CDATA

TextualNode: TypeAlias = String | Literals | GrammarText


class TaggedValueWriter:
    """Writes the values of one call; text contains none of the `banned` markers."""

    def __init__(
        self, writer: JsonWriter, trim: str, banned: Sequence[str], *, cdata: bool = False
    ) -> None:
        self.lark = writer.lark
        self._writer = writer
        self._allows_cdata = cdata
        self._trims_newlines = trim == "newline"
        self._banned_markers = (*banned, CDATA[0]) if cdata else banned

    def split_text(self, node: Node) -> tuple[list[TextualNode], list[Node]]:
        """Split a node into its strings and its other values."""
        texts: list[TextualNode] = []
        others: list[Node] = []
        queue, seen = [node], set[Node]()
        while queue:
            option = self._writer.resolve(queue.pop(0))
            if option in seen:
                continue
            seen.add(option)
            match option:
                case AnyOf():
                    queue += option.options
                case GrammarText() if option.pattern is not None:
                    texts.append(String(pattern=option.pattern))
                case String() | GrammarText():
                    texts.append(option)
                case Anything():
                    texts.append(String())
                case Literals():
                    strings = tuple(value for value in option.values if value.startswith('"'))
                    rest = tuple(value for value in option.values if not value.startswith('"'))
                    texts += [Literals(strings)] if strings else []
                    others += [Literals(rest)] if rest else []
                case LlguidanceSchema() if "string" in list_types(option):
                    texts.append(String())
                case _:
                    others.append(option)
        return texts, others

    def write_value(self, node: Node, closing: Sequence[str]) -> str:
        """Write a value and one of its closing markers."""
        texts, others = self.split_text(node)
        options = [self.write_text(text, closing, others) for text in texts]
        if self._allows_cdata:
            options += [self._write_cdata(text, closing, others) for text in texts]
        if others:
            options.append(self.write_json(others, closing))
        return join_alternatives(options)

    def write_text(
        self, node: TextualNode, closing: Sequence[str], others: Sequence[Node] = ()
    ) -> str:
        """Write a string and a closing marker; `others` are values that may come instead."""
        close = self.lark.write_any_marker(closing)
        if isinstance(node, GrammarText):
            return f"{self._write_grammar_text(node, closing)} {close}"
        if isinstance(node, Literals):
            literals = [self._write_literal(json.loads(value)) for value in node.values]
            return f"{join_alternatives(literals)} {close}"
        body = build_string_regex(node) + self._exclude_other_types(node, others, closing)
        banned, some = self._banned_markers, cannot_be_empty(node)
        if not self._trims_newlines or body == ANY:
            return write_text_until(self.lark, body, closing, banned, some=some)
        body += r" & /(?:[^\n](?:(?s:.*)[^\n])?)?/"
        ends = [f"\n{marker}" for marker in closing] + list(closing)
        return f'"\\n"? {write_text_until(self.lark, body, ends, banned, some=some)}'

    def _write_literal(self, value: str) -> str:
        """Write a known text; the parser drops a newline around it, so its own needs another."""
        if not self._trims_newlines:
            return quote_literal(value)
        before = '"\\n"' if value.startswith("\n") else '"\\n"?'
        after = '"\\n"' if value.endswith("\n") else '"\\n"?'
        return f"({before} {quote_literal(value)} {after})"

    def _exclude_other_types(
        self, node: String, others: Sequence[Node], closing: Sequence[str] = ()
    ) -> str:
        """Build the terms that keep the parser from reading a text as another type."""
        excluded = node.excluded_types if isinstance(node, UnambiguousText) else ANY_TYPE
        ends = dict.fromkeys(
            escape_regex(marker[0]) for marker in closing if self.lark.is_plain_text(marker)
        )
        return exclude_types(
            list_restricted_types(others) | excluded, "".join(ends) if closing else None
        )

    def _write_grammar_text(self, node: GrammarText, closing: Sequence[str]) -> str:
        """Write a text that follows a client's grammar."""
        markers = dict.fromkeys(
            marker
            for marker in (*closing, *self._banned_markers)
            if self.lark.is_plain_text(marker)
        )
        padding = "\n" if self._trims_newlines else ""
        return write_grammar_text(self.lark, node, DelimitedSyntax(tuple(markers), padding))

    def _write_cdata(
        self, node: TextualNode, closing: Sequence[str], others: Sequence[Node]
    ) -> str:
        """Write a string in a CDATA section, which may contain all markers but its own end."""
        start, end = CDATA
        if isinstance(node, Literals):
            literals = [quote_literal(json.loads(value)) for value in node.values]
            text = f"{join_alternatives(literals)} {quote_literal(end)}"
        elif isinstance(node, GrammarText):
            grammar = write_grammar_text(self.lark, node, DelimitedSyntax((end,)))
            text = f"{grammar} {quote_literal(end)}"
        else:
            body = build_string_regex(node) + self._exclude_other_types(node, others)
            text = write_text_until(self.lark, body, (end,), some=cannot_be_empty(node))
        newline = '"\\n"?' if self._trims_newlines else ""
        return f"{newline} {quote_literal(start)} {text} {self.lark.write_any_marker(closing)}"

    def write_json(self, nodes: Sequence[Node], closing: Sequence[str]) -> str:
        """Write a value that is not a string, and a closing marker."""
        space = self.lark.add_optional_space()
        value = join_alternatives(map(self._writer.write_value, nodes))
        return f"{space} {value} {space} {self.lark.write_any_marker(closing)}"
