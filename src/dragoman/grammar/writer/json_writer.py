"""Values as rules of a grammar, written as JSON.

A writer is made for one schema. White space may stand where JSON lets it stand, but only so much of
it, and numbers have only so many digits: a small model that has lost its way shall come to an end.
Members come in the order of the schema, or in any order where that is left to the model; each comes
once. What only the engine's own reader of schemas can put together is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import Unsupported
from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import QuotedSyntax
from dragoman.grammar.lark_builder import (
    LarkBuilder,
    format_repeat,
    join_alternatives,
    quote_literal,
)
from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.schema.nodes import (
    AnyOf,
    Anything,
    Array,
    KeyPattern,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Number,
    Object,
    SchemaReference,
    String,
)
from dragoman.grammar.writer.marker_free_json import (
    build_pattern_terminal,
    escape_markers,
    may_contain_marker,
)
from dragoman.grammar.writer.marker_free_schema import guarded
from dragoman.grammar.writer.sequences import write_items, write_sequence

ESCAPE = (
    r"\\(?:[\"\\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
CHARACTER = rf"(?:[^\"\\\x00-\x1f]|{ESCAPE})"
INTEGER = r"/-?(?:0|[1-9][0-9]{0,29})/"
ANY_KEYS = KeyPattern(())
NUMBER = r"/-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,2})?/"


def build_number_schema(node: Number) -> dict[str, Any]:
    """The schema of a number that has bounds."""
    said = {
        "minimum": node.minimum,
        "maximum": node.maximum,
        "exclusiveMinimum": node.exclusive_minimum,
        "exclusiveMaximum": node.exclusive_maximum,
        "multipleOf": node.multiple_of,
    }
    bounds = {word: json.loads(value) for word, value in said.items() if value is not None}
    return {"type": "integer" if node.integer else "number"} | bounds


def build_text_schema(node: String) -> dict[str, Any]:
    """The schema of a text that has a pattern or a format."""
    said = {
        "minLength": node.min_length or None,
        "maxLength": node.max_length,
        "pattern": node.pattern,
        "format": node.format,
    }
    return {"type": "string"} | {word: value for word, value in said.items() if value is not None}


class JsonWriter:
    """Writes values as JSON. `banned` are marks that no text may hold."""

    def __init__(
        self,
        lark: LarkBuilder,
        definitions: Mapping[str, Node],
        *,
        ordered: bool = False,
        banned: Sequence[str] = (),
        param: str | None = None,
    ) -> None:
        self.lark = lark
        self.comma, self.colon = lark.add_punctuation(","), lark.add_punctuation(":")
        self._definitions = definitions
        self._ordered = ordered
        self._banned_markers = banned
        self._param = param  # what the client calls the schema
        self._reference_rules: dict[str, str] = {}
        self._written: dict[Node, str] = {}

    def write_value(self, node: Node) -> str:
        """An expression for a value; nodes that allow nothing are their holder's affair."""
        if node not in self._written:
            if isinstance(node, Object | Array | Anything):
                # a rule of its own, known before it is written: what is in it may refer to it
                self._written[node] = name = self.lark.reserve("value")
                self.lark.define(name, self._write(node))
            else:
                self._written[node] = self._write(node)
        return self._written[node]

    def resolve(self, node: Node) -> Node:
        """The node itself, or what it is a name of."""
        for _ in range(len(self._definitions) + 1):
            if not isinstance(node, SchemaReference):
                break
            node = self._definitions[node.name]
        return node

    def _write(self, node: Node) -> str:
        match node:
            case Literals():
                return self.write_literals(node.values)
            case String():
                return self.write_text(node)
            case GrammarText():
                return self.write_grammar_text(node)
            case Number():
                return self.write_number(node)
            case Array():
                return self.write_array(node)
            case Object():
                return self.write_object(node)
            case AnyOf():
                return join_alternatives(
                    self.write_value(one) for one in node.options if is_possible(one)
                )
            case SchemaReference():
                return self._write_reference(node.name)
            case LlguidanceSchema():
                return self.write_delegated(node)
            case Anything():
                return self.write_anything()
        raise ValueError("nothing can be written as a value")

    def _write_reference(self, name: str) -> str:
        if name not in self._reference_rules:
            self._reference_rules[name] = self.lark.reserve("named")
            self.lark.define(self._reference_rules[name], self.write_value(self._definitions[name]))
        return self._reference_rules[name]

    # simple values

    def write_literals(self, values: Sequence[str]) -> str:
        """One of several values, with letters beyond ASCII escaped or as they are."""
        plain = [json.dumps(json.loads(one), ensure_ascii=False) for one in values if "\\u" in one]
        return self.write_one_of((*values, *plain))

    def write_one_of(self, ways: Sequence[str]) -> str:
        every = self._escape_markers(ways)
        return self.lark.add_terminal(" | ".join(map(quote_literal, every)), "ONE_OF")

    def _escape_markers(self, ways: Sequence[str]) -> list[str]:
        """Literals as they can be written without a mark in them."""
        found = [escape_markers(way, self._banned_markers) for way in dict.fromkeys(ways)]
        every = [way for way in found if way is not None]
        if not every:
            raise self._unwritable_error(ways[0])
        return every

    def _unwritable_error(self, what: str) -> Unsupported:
        return Unsupported(
            f"`{what[:64]}` cannot be enforced here: it allows what this model's format takes for "
            f"a mark of its own.",
            param=self._param,
        )

    def write_text(self, node: String) -> str:
        if node.pattern is not None or node.format is not None:
            return self._write_pattern_text(node)
        body = rf"/\"{CHARACTER}{format_repeat(node.min_length, node.max_length)}\"/"
        return self._add_string_terminal(body, "STRING", counted=node != String())

    def _write_pattern_text(self, node: String) -> str:
        schema = build_text_schema(node)
        if not may_contain_marker(schema, self._banned_markers):
            return self.lark.add_json_schema(schema)
        found = build_pattern_terminal(node, self._banned_markers, CHARACTER)
        return (
            self._write_delegated_schema(schema)
            if found is None
            else self.lark.add_terminal(found, "STRING")
        )

    def _write_delegated_schema(self, schema: dict[str, Any]) -> str:
        """What the engine's own reader makes of a schema, without marks."""
        found = guarded(schema, self._banned_markers) if self._banned_markers else schema
        if found is None:
            raise self._unwritable_error(json.dumps(schema))
        return self.lark.add_json_schema(found)

    def _add_string_terminal(self, body: str, hint: str, *, counted: bool) -> str:
        """A terminal for texts that hold no mark."""
        return self.lark.add_terminal(body + exclude_markers(self._banned_markers, length_bounded=counted), hint)

    def write_grammar_text(self, node: GrammarText) -> str:
        """A text that keeps to a grammar."""
        return self._write_quoted_text(node, QuotedSyntax())

    def _write_quoted_text(self, node: GrammarText, quotes: QuotedSyntax) -> str:
        mark = quote_literal(quotes.quote)
        return f"{mark} {write_grammar_text(self.lark, node, quotes)} {mark}"

    def write_number(self, node: Number) -> str:
        if node == Number(integer=node.integer):
            return self.lark.add_terminal(INTEGER if node.integer else NUMBER, "NUMBER")
        return self.lark.add_json_schema(build_number_schema(node))

    def write_delegated(self, node: LlguidanceSchema) -> str:
        if node.object_node is not None:
            return self.write_value(node.object_node)
        return self._write_delegated_schema(json.loads(node.schema))

    def write_constants(self) -> str:
        return self.write_literals(("true", "false", "null"))

    def write_anything(self) -> str:
        simple = [self.write_text(String()), self.write_number(Number()), self.write_constants()]
        return join_alternatives([*simple, self.write_value(Object()), self.write_value(Array())])

    # lists and objects

    def write_array(self, node: Array) -> str:
        inner = write_items(node, self.write_value, self.comma)
        if inner:
            inner = inner if node.min_items else f"({inner})?"
        return f"{self.lark.add_opening_bracket('[')} {inner} {self.lark.add_closing_bracket(']')}"

    def write_object(self, node: Object) -> str:
        return f"{self.lark.add_opening_bracket('{')} {self.write_object_rest(node)}"

    def write_object_rest(self, node: Object) -> str:
        """An object whose first brace was written."""
        return f"{self.write_members(node)} {self.lark.add_closing_bracket('}')}"

    def write_members(self, node: Object) -> str:
        """All that stands between the braces."""
        parts = {
            name: self.write_member(name, one) for name, one in node.properties if is_possible(one)
        }
        others = [(KeyPattern((), node.patterns), node.additional), *node.pattern_properties]
        free = [
            self.write_key_value(self.write_other_key(node.names, keys), one)
            for keys, one in others
            if is_possible(one)
        ]
        other = join_alternatives(free) if free else None
        ordered = self._ordered
        inner = write_sequence(self.lark, parts, node.required, other, self.comma, ordered=ordered)
        return inner if node.required else f"({inner})?"

    def write_member(self, name: str, node: Node) -> str:
        return self.write_key_value(self.write_key(name), node)

    def write_key_value(self, key: str, node: Node) -> str:
        return f"{key} {self.colon} {self.write_value(node)}"

    def write_key(self, name: str) -> str:
        written = (json.dumps(name), json.dumps(name, ensure_ascii=False))
        return join_alternatives(map(quote_literal, self._escape_markers(written)))

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEYS) -> str:
        """A key that is none of these. It has no escapes, so it cannot be one in disguise."""
        count = keys.length_quantifier
        body = rf"/\"[^\"\\\x00-\x1f]{count}\"/" + restrict_keys(names, keys, r"\"")
        return self._add_string_terminal(body, "KEY", counted=count != "+")


def restrict_keys(names: Sequence[str], keys: KeyPattern, quote: str) -> str:
    """What to add to the expression of a key so that it is none of these, and of these kinds."""
    taken = "|".join(map(escape_regex, names))
    found = rf" & ~/{quote}(?:{taken}){quote}/" if taken else ""
    found += "".join(rf" & /{quote}(?:{to_full_match(one)}){quote}/" for one in keys.matches)
    return found + "".join(rf" & ~/{quote}(?:{to_full_match(one)}){quote}/" for one in keys.excludes)


def is_possible(node: Node) -> bool:
    return not isinstance(node, Nothing)
