"""Writes the values of a schema as JSON.

A writer serves one schema. White space is allowed wherever JSON allows it, but only a bounded
amount of it, and numbers have a bounded number of digits: even a small model that has lost track
comes to an end. The members of an object come in any order, and each comes once. Schemas that only
llguidance's own compiler supports are delegated to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dragoman.errors import Unsupported
from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import QuotedSyntax
from dragoman.grammar.lark_builder import (
    EMPTY,
    LarkBuilder,
    format_repeat,
    join_alternatives,
    quote_literal,
)
from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.rewrite import rewrite_regex
from dragoman.grammar.regex.schema_pattern import is_weakened_by_llguidance
from dragoman.grammar.schema.llguidance_check import node_to_schema
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
from dragoman.grammar.schema.simplify import literal_to_node
from dragoman.grammar.writer.json.marker_free import (
    build_pattern_terminal,
    escape_markers,
    may_contain_marker,
)
from dragoman.grammar.writer.json.marker_free_schema import exclude_markers_from_schema
from dragoman.grammar.writer.json.scalars import (
    CHARACTER,
    INTEGER,
    NUMBER,
    SHORT_CHARACTER,
    build_integer_regex,
    build_number_schema,
    is_whole,
    list_json_spellings,
    list_other_number_regexes,
    spell_chars,
)
from dragoman.grammar.writer.sequences import (
    Counts,
    write_items,
    write_items_with_one,
    write_sequence,
)
from dragoman.types import Json

ANY_KEY_PATTERN = KeyPattern(())
PLAIN_CHARACTER = r"[^\"\\\x00-\x1f]"


class JsonWriter:
    """Writes values as JSON; no string contains one of the `banned` markers."""

    def __init__(
        self,
        lark: LarkBuilder,
        definitions: Mapping[str, Node],
        *,
        banned: Sequence[str] = (),
        param: str | None = None,
    ) -> None:
        self.lark = lark
        self.comma, self.colon = lark.add_punctuation(","), lark.add_punctuation(":")
        self._definitions = definitions
        self._banned_markers = banned
        self._param = param  # the request field that holds the schema
        self._reference_rules: dict[str, str] = {}
        self._written: dict[Node, str] = {}

    def write_value(self, node: Node) -> str:
        """Write a value; callers leave out nodes that allow none."""
        if node not in self._written:
            if isinstance(node, Object | Array | Anything):
                # the rule has a name before it is written, because its body may refer to it
                self._written[node] = name = self.lark.reserve("value")
                self.lark.define(name, self._write(node))
            else:
                self._written[node] = self._write(node)
        return self._written[node]

    def resolve(self, node: Node) -> Node:
        """Follow references to the node they refer to."""
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
                return self.write_string(node)
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
                    self.write_value(option) for option in node.options if is_possible(option)
                )
            case SchemaReference():
                return self._write_reference(node.name)
            case LlguidanceSchema():
                return self.write_delegated(node)
            case Anything():
                return self.write_anything()
        raise ValueError("no value satisfies this node")

    def _write_reference(self, name: str) -> str:
        if name not in self._reference_rules:
            self._reference_rules[name] = self.lark.reserve("named")
            self.lark.define(self._reference_rules[name], self.write_value(self._definitions[name]))
        return self._reference_rules[name]

    # Scalars

    def write_literals(self, values: Sequence[str]) -> str:
        """Write one of several values, in any of their spellings."""
        scalars = [value for value in values if value[0] not in "[{"]
        spellings = [spelling for value in scalars for spelling in list_json_spellings(value)]
        options = [self.write_one_of(spellings)] if spellings else []
        containers = [literal_to_node(value) for value in values if value[0] in "[{"]
        return join_alternatives([*options, *map(self.write_value, containers)])

    def write_one_of(self, spellings: Sequence[str]) -> str:
        literals = map(quote_literal, self._escape_markers(spellings))
        return self.lark.add_terminal(" | ".join(literals), "ONE_OF")

    def _escape_markers(self, spellings: Sequence[str]) -> list[str]:
        """Escape the markers in literals, and leave out those where that is impossible."""
        escaped = [
            escape_markers(spelling, self._banned_markers) for spelling in dict.fromkeys(spellings)
        ]
        possible = [spelling for spelling in escaped if spelling is not None]
        if not possible:
            raise self._make_unwritable_error(spellings[0])
        return possible

    def _make_unwritable_error(self, value: str) -> Unsupported:
        return Unsupported(
            f"`{value[:64]}` cannot be enforced: it allows text that is a marker of this model's "
            f"format.",
            param=self._param,
        )

    def write_string(self, node: String) -> str:
        if node.excluded_patterns:
            return self._write_excluding_string(node)
        if node.pattern is not None or node.format is not None:
            return self._write_pattern_string(node)
        body = rf"/\"{CHARACTER}{format_repeat(node.min_length, node.max_length)}\"/"
        return self._add_string_terminal(body, "STRING", length_bounded=node != String())

    def _write_excluding_string(self, node: String) -> str:
        """Write a string with excluded patterns, in its shortest escapes."""
        terminal = build_pattern_terminal(node, self._banned_markers, SHORT_CHARACTER)
        if terminal is None:
            raise self._make_unwritable_error(node.excluded_patterns[0])
        return self.lark.add_terminal(terminal, "STRING")

    def _write_pattern_string(self, node: String) -> str:
        schema = node_to_schema(node)
        is_weakened = node.pattern is not None and is_weakened_by_llguidance(node.pattern)
        if not is_weakened and not may_contain_marker(schema, self._banned_markers):
            return self.lark.add_json_schema(schema)
        terminal = build_pattern_terminal(node, self._banned_markers, CHARACTER)
        if terminal is None:
            return self._write_delegated_schema(schema)
        return self.lark.add_terminal(terminal, "STRING")

    def _write_delegated_schema(self, schema: dict[str, Json]) -> str:
        """Delegate a schema to llguidance, restricted to values without markers."""
        restricted: dict[str, Json] | None = schema
        if self._banned_markers:
            restricted = exclude_markers_from_schema(schema, self._banned_markers)
        if restricted is None:
            raise self._make_unwritable_error(json.dumps(schema))
        return self.lark.add_json_schema(restricted)

    def _add_string_terminal(self, body: str, hint: str, *, length_bounded: bool) -> str:
        """Add a terminal for strings without markers."""
        excluded = exclude_markers(self._banned_markers, length_bounded=length_bounded)
        return self.lark.add_terminal(body + excluded, hint)

    def write_grammar_text(self, node: GrammarText) -> str:
        """Write a string whose text follows a client's grammar."""
        return self._write_quoted_text(node, QuotedSyntax())

    def _write_quoted_text(self, node: GrammarText, quotes: QuotedSyntax) -> str:
        quote = quote_literal(quotes.quote)
        return f"{quote} {write_grammar_text(self.lark, node, quotes)} {quote}"

    def write_number(self, node: Number) -> str:
        if node == Number(integer=node.integer):
            return self.lark.add_terminal(INTEGER if node.integer else NUMBER, "NUMBER")
        if node.integer and node.multiple_of is None:
            return self.lark.add_terminal(f"/{build_integer_regex(node)}/", "NUMBER")
        number = self.lark.add_json_schema(build_number_schema(node))
        if node.integer:
            return number
        others = list_other_number_regexes(node)
        options = [f'{number} ".0"?' if is_whole(node) else number]
        options += [self.lark.add_terminal(f"/{'|'.join(others)}/", "NUMBER")] if others else []
        return join_alternatives(options)

    def write_delegated(self, node: LlguidanceSchema) -> str:
        if node.json_node is not None:
            return self.write_value(node.json_node)
        return self._write_delegated_schema(json.loads(node.schema))

    def write_constants(self) -> str:
        return self.write_literals(("true", "false", "null"))

    def write_anything(self) -> str:
        scalars = [self.write_string(String()), self.write_number(Number()), self.write_constants()]
        return join_alternatives([*scalars, self.write_value(Object()), self.write_value(Array())])

    # Arrays and objects

    def write_array(self, node: Array) -> str:
        counts = Counts(node.min_items, node.max_items)
        if node.unique and isinstance(node.items, Literals):
            values = {value: self.write_literals((value,)) for value in node.items.values}
            inner = write_sequence(self.lark, values, frozenset(), None, self.comma, counts)
        elif not isinstance(node.contains, Anything):
            item, special = self.write_value(node.items), self.write_value(node.contains)
            inner = write_items_with_one(self.lark, item, special, self.comma, counts)
        else:
            inner = write_items(node, self.write_value, self.comma)
        return self._write_brackets("[]", inner, may_be_empty=not node.min_items)

    def write_object(self, node: Object) -> str:
        return self._write_brackets(
            "{}", self._write_some_members(node), may_be_empty=can_be_empty(node)
        )

    def _write_brackets(self, brackets: str, inner: str, *, may_be_empty: bool) -> str:
        """Write brackets around what is not empty, or, if that is allowed, around nothing."""
        opening, closing = brackets[0], brackets[1]
        lark, options = self.lark, []
        if inner not in ("", EMPTY):
            whole = (
                f"{lark.add_opening_bracket(opening)} {inner} {lark.add_closing_bracket(closing)}"
            )
            options.append(whole)
        if may_be_empty or not options:
            regex = f"/{escape_regex(opening)} ?{escape_regex(closing)}/"
            options.append(lark.add_terminal(regex, "EMPTY"))
        return join_alternatives(options) if len(options) > 1 else options[0]

    def write_object_rest(self, node: Object) -> str:
        """Write an object after its opening brace."""
        return f"{self.write_members(node)} {self.lark.add_closing_bracket('}')}"

    def write_members(self, node: Object) -> str:
        """Write the members of an object, without its braces."""
        inner = self._write_some_members(node)
        return f"({inner})?" if can_be_empty(node) else inner

    def _write_some_members(self, node: Object) -> str:
        """Write at least one member, if there can be one."""
        members = {
            name: self.write_member(name, value)
            for name, value in node.properties
            if is_possible(value)
        }
        by_pattern = [(KeyPattern((), node.patterns), node.additional), *node.pattern_properties]
        others = [
            self.write_key_value(self.write_other_key(node.names, keys), value)
            for keys, value in by_pattern
            if is_possible(value)
        ]
        other = join_alternatives(others) if others else None
        counts = Counts(node.min_properties, node.max_properties)
        return write_sequence(self.lark, members, node.required, other, self.comma, counts)

    def write_member(self, name: str, node: Node) -> str:
        return self.write_key_value(self.write_key(name), node)

    def write_key_value(self, key: str, node: Node) -> str:
        return f"{key} {self.colon} {self.write_value(node)}"

    def write_key(self, name: str) -> str:
        spellings = (json.dumps(name), json.dumps(name, ensure_ascii=False))
        return join_alternatives(map(quote_literal, self._escape_markers(spellings)))

    def write_other_key(self, names: Sequence[str], keys: KeyPattern = ANY_KEY_PATTERN) -> str:
        """Write a key that is none of these names; it has one spelling, so it cannot be one."""
        spellings = [json.dumps(name, ensure_ascii=False)[1:-1] for name in names]
        rewritten = [
            [rewrite_regex(to_full_match(regex), spell_chars) for regex in regexes]
            for regexes in (keys.matches, keys.excludes)
        ]
        matches, excludes = ([regex for regex in regexes if regex] for regexes in rewritten)
        character = SHORT_CHARACTER
        if None in (*rewritten[0], *rewritten[1]):
            character = PLAIN_CHARACTER
            matches, excludes = list_key_regexes(keys)
        body = rf"/\"{character}*\"/" + restrict_keys(spellings, matches, excludes, r"\"")
        return self._add_string_terminal(body, "KEY", length_bounded=False)


def restrict_keys(
    names: Sequence[str], matches: Sequence[str], excludes: Sequence[str], quote: str
) -> str:
    """Restrict the terminal of a key to keys that are none of these names and match these."""
    listed = "|".join(map(escape_regex, names))
    terms = [rf" & ~/{quote}(?:{listed}){quote}/"] if listed or names else []
    terms += [rf" & /{quote}(?:{regex}){quote}/" for regex in matches]
    terms += [rf" & ~/{quote}(?:{regex}){quote}/" for regex in excludes]
    return "".join(terms)


def list_key_regexes(keys: KeyPattern) -> tuple[list[str], list[str]]:
    """Return the expressions that a whole key matches, and those that it does not match."""
    return [to_full_match(regex) for regex in keys.matches], [
        to_full_match(regex) for regex in keys.excludes
    ]


def can_be_empty(node: Object) -> bool:
    return not node.required and not node.min_properties


def is_possible(node: Node) -> bool:
    return not isinstance(node, Nothing)
