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
from dragoman.grammar.client.grammar_text import Worded, written
from dragoman.grammar.client.text_syntax import Quotes
from dragoman.grammar.lark_builder import Lark, either, escaped, quoted, times
from dragoman.grammar.regex.exclude_markers import avoiding
from dragoman.grammar.regex.full_match import searched
from dragoman.grammar.schema.nodes import (
    Anything,
    Array,
    Either,
    Exactly,
    Foreign,
    Keys,
    Named,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.grammar.writer.marker_free_json import may_hold, patterned, unmarked
from dragoman.grammar.writer.marker_free_schema import guarded
from dragoman.grammar.writer.sequences import items, sequence

ESCAPE = (
    r"\\(?:[\"\\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
CHARACTER = rf"(?:[^\"\\\x00-\x1f]|{ESCAPE})"
INTEGER = r"/-?(?:0|[1-9][0-9]{0,29})/"
ANY_KEYS = Keys(())
NUMBER = r"/-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,2})?/"


def number_schema(node: Number) -> dict[str, Any]:
    """The schema of a number that has bounds."""
    said = {
        "minimum": node.minimum,
        "maximum": node.maximum,
        "exclusiveMinimum": node.above,
        "exclusiveMaximum": node.below,
        "multipleOf": node.multiple,
    }
    bounds = {word: json.loads(value) for word, value in said.items() if value is not None}
    return {"type": "integer" if node.integer else "number"} | bounds


def text_schema(node: Text) -> dict[str, Any]:
    """The schema of a text that has a pattern or a format."""
    said = {
        "minLength": node.least or None,
        "maxLength": node.most,
        "pattern": node.pattern,
        "format": node.format,
    }
    return {"type": "string"} | {word: value for word, value in said.items() if value is not None}


class Writer:
    """Writes values as JSON. `banned` are marks that no text may hold."""

    def __init__(
        self,
        lark: Lark,
        definitions: Mapping[str, Node],
        *,
        ordered: bool = False,
        banned: Sequence[str] = (),
        at: str | None = None,
    ) -> None:
        self.lark = lark
        self.comma, self.colon = lark.sign(","), lark.sign(":")
        self._definitions = definitions
        self._ordered = ordered
        self._banned = banned
        self._at = at  # what the client calls the schema
        self._names: dict[str, str] = {}
        self._done: dict[Node, str] = {}

    def value(self, node: Node) -> str:
        """An expression for a value; nodes that allow nothing are their holder's affair."""
        if node not in self._done:
            if isinstance(node, Object | Array | Anything):
                # a rule of its own, known before it is written: what is in it may refer to it
                self._done[node] = name = self.lark.reserve("value")
                self.lark.define(name, self._written(node))
            else:
                self._done[node] = self._written(node)
        return self._done[node]

    def resolved(self, node: Node) -> Node:
        """The node itself, or what it is a name of."""
        for _ in range(len(self._definitions) + 1):
            if not isinstance(node, Named):
                break
            node = self._definitions[node.name]
        return node

    def _written(self, node: Node) -> str:
        match node:
            case Exactly():
                return self.literals(node.values)
            case Text():
                return self.text(node)
            case Worded():
                return self.worded(node)
            case Number():
                return self.number(node)
            case Array():
                return self.array(node)
            case Object():
                return self.object(node)
            case Either():
                return either(self.value(one) for one in node.options if allows(one))
            case Named():
                return self._named(node.name)
            case Foreign():
                return self.foreign(node)
            case Anything():
                return self.anything()
        raise ValueError("nothing can be written as a value")

    def _named(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = self.lark.reserve("named")
            self.lark.define(self._names[name], self.value(self._definitions[name]))
        return self._names[name]

    # simple values

    def literals(self, values: Sequence[str]) -> str:
        """One of several values, with letters beyond ASCII escaped or as they are."""
        plain = [json.dumps(json.loads(one), ensure_ascii=False) for one in values if "\\u" in one]
        return self.one_of((*values, *plain))

    def one_of(self, ways: Sequence[str]) -> str:
        every = self._unmarked(ways)
        return self.lark.terminal(" | ".join(map(quoted, every)), "ONE_OF")

    def _unmarked(self, ways: Sequence[str]) -> list[str]:
        """Literals as they can be written without a mark in them."""
        found = [unmarked(way, self._banned) for way in dict.fromkeys(ways)]
        every = [way for way in found if way is not None]
        if not every:
            raise self._unwritten(ways[0])
        return every

    def _unwritten(self, what: str) -> Unsupported:
        return Unsupported(
            f"`{what[:64]}` cannot be enforced here: it allows what this model's format takes for "
            f"a mark of its own.",
            param=self._at,
        )

    def text(self, node: Text) -> str:
        if node.pattern is not None or node.format is not None:
            return self._patterned(node)
        body = rf"/\"{CHARACTER}{times(node.least, node.most)}\"/"
        return self._string(body, "STRING", counted=node != Text())

    def _patterned(self, node: Text) -> str:
        schema = text_schema(node)
        if not may_hold(schema, self._banned):
            return self.lark.json(schema)
        found = patterned(node, self._banned, CHARACTER)
        return self._guarded(schema) if found is None else self.lark.terminal(found, "STRING")

    def _guarded(self, schema: dict[str, Any]) -> str:
        """What the engine's own reader makes of a schema, without marks."""
        found = guarded(schema, self._banned) if self._banned else schema
        if found is None:
            raise self._unwritten(json.dumps(schema))
        return self.lark.json(found)

    def _string(self, body: str, hint: str, *, counted: bool) -> str:
        """A terminal for texts that hold no mark."""
        return self.lark.terminal(body + avoiding(self._banned, counted=counted), hint)

    def worded(self, node: Worded) -> str:
        """A text that keeps to a grammar."""
        return self._quoted(node, Quotes())

    def _quoted(self, node: Worded, quotes: Quotes) -> str:
        mark = quoted(quotes.mark)
        return f"{mark} {written(self.lark, node, quotes)} {mark}"

    def number(self, node: Number) -> str:
        if node == Number(integer=node.integer):
            return self.lark.terminal(INTEGER if node.integer else NUMBER, "NUMBER")
        return self.lark.json(number_schema(node))

    def foreign(self, node: Foreign) -> str:
        if node.own is not None:
            return self.value(node.own)
        return self._guarded(json.loads(node.schema))

    def words(self) -> str:
        return self.literals(("true", "false", "null"))

    def anything(self) -> str:
        simple = [self.text(Text()), self.number(Number()), self.words()]
        return either([*simple, self.value(Object()), self.value(Array())])

    # lists and objects

    def array(self, node: Array) -> str:
        inner = items(node, self.value, self.comma)
        if inner:
            inner = inner if node.least else f"({inner})?"
        return f"{self.lark.opened('[')} {inner} {self.lark.closed(']')}"

    def object(self, node: Object) -> str:
        return f"{self.lark.opened('{')} {self.rest_of(node)}"

    def rest_of(self, node: Object) -> str:
        """An object whose first brace was written."""
        return f"{self.members(node)} {self.lark.closed('}')}"

    def members(self, node: Object) -> str:
        """All that stands between the braces."""
        parts = {name: self.member(name, one) for name, one in node.members if allows(one)}
        others = [(Keys((), node.patterns), node.others), *node.keyed]
        free = [
            self.member_of(self.other_key(node.names, keys), one)
            for keys, one in others
            if allows(one)
        ]
        other = either(free) if free else None
        ordered = self._ordered
        inner = sequence(self.lark, parts, node.required, other, self.comma, ordered=ordered)
        return inner if node.required else f"({inner})?"

    def member(self, name: str, node: Node) -> str:
        return self.member_of(self.key(name), node)

    def member_of(self, key: str, node: Node) -> str:
        return f"{key} {self.colon} {self.value(node)}"

    def key(self, name: str) -> str:
        written = (json.dumps(name), json.dumps(name, ensure_ascii=False))
        return either(map(quoted, self._unmarked(written)))

    def other_key(self, names: Sequence[str], keys: Keys = ANY_KEYS) -> str:
        """A key that is none of these. It has no escapes, so it cannot be one in disguise."""
        count = keys.count
        body = rf"/\"[^\"\\\x00-\x1f]{count}\"/" + told(names, keys, r"\"")
        return self._string(body, "KEY", counted=count != "+")


def told(names: Sequence[str], keys: Keys, quote: str) -> str:
    """What to add to the expression of a key so that it is none of these, and of these kinds."""
    taken = "|".join(map(escaped, names))
    found = rf" & ~/{quote}(?:{taken}){quote}/" if taken else ""
    found += "".join(rf" & /{quote}(?:{searched(one)}){quote}/" for one in keys.has)
    return found + "".join(rf" & ~/{quote}(?:{searched(one)}){quote}/" for one in keys.lacks)


def allows(node: Node) -> bool:
    return not isinstance(node, Nothing)
