"""Values as rules of a grammar: in JSON, in Python, and with bare keys.

A writer is made for one schema. White space may stand where JSON lets it stand, but only so much of
it, and numbers have only so many digits: a small model that has lost its way shall come to an end.
Members come in the order of the schema, or in any order where that is left to the model; each comes
once. What only the engine's own reader of schemas can put together is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.constraint.avoiding import avoiding
from dragoman.constraint.inputs.spelling import Between, Quotes
from dragoman.constraint.inputs.worded import Worded, written
from dragoman.constraint.lark import Lark, either, escaped, quoted, times
from dragoman.constraint.schemas.nodes import (
    Anything,
    Array,
    Either,
    Exactly,
    Foreign,
    Named,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.constraint.sequences import sequence

ESCAPE = (
    r"\\(?:[\"\\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
CHARACTER = rf"(?:[^\"\\\x00-\x1f]|{ESCAPE})"
INTEGER = r"/-?(?:0|[1-9][0-9]{0,29})/"
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
    ) -> None:
        self.lark = lark
        self.comma, self.colon = lark.sign(","), lark.sign(":")
        self._definitions = definitions
        self._ordered = ordered
        self._banned = banned
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
        return self.lark.terminal(" | ".join(map(quoted, dict.fromkeys(ways))), "ONE_OF")

    def text(self, node: Text) -> str:
        if node.pattern is not None or node.format is not None:
            return self.lark.json(text_schema(node))
        body = rf"/\"{CHARACTER}{times(node.least, node.most)}\"/"
        return self._string(body, "STRING", counted=node != Text())

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
        return self.lark.json(json.loads(node.schema))

    def words(self) -> str:
        return self.literals(("true", "false", "null"))

    def anything(self) -> str:
        simple = [self.text(Text()), self.number(Number()), self.words()]
        return either([*simple, self.value(Object()), self.value(Array())])

    # lists and objects

    def array(self, node: Array) -> str:
        most = node.most
        if most is None and isinstance(node.rest, Nothing):
            most = len(node.first)
        inner = self._items(node, most)
        if inner:
            inner = inner if node.least else f"({inner})?"
        return f"{self.lark.opened('[')} {inner} {self.lark.closed(']')}"

    def _items(self, node: Array, most: int | None) -> str:
        """The items of a list that has one at least; empty if it can have none."""
        first = node.first if most is None else node.first[:most]
        if not first:
            return "" if most == 0 else self._listed(node.rest, max(1, node.least), most)
        left = None if most is None else most - len(first)
        tail = ""
        if left != 0 and not isinstance(node.rest, Nothing):
            least = max(0, node.least - len(first))
            tail = f"({self._next(node.rest)}){times(least, left)}"
        for at in range(len(first) - 1, 0, -1):
            tail = f"{self.comma} {self.value(first[at])} {tail}"
            if at >= max(1, node.least):
                tail = f"({tail})?"
        return f"{self.value(first[0])} {tail}"

    def _listed(self, item: Node, least: int, most: int | None) -> str:
        if most == 1:
            return self.value(item)
        more = None if most is None else most - 1
        return f"{self.value(item)} ({self._next(item)}){times(least - 1, more)}"

    def _next(self, item: Node) -> str:
        return f"{self.comma} {self.value(item)}"

    def object(self, node: Object) -> str:
        return f"{self.lark.opened('{')} {self.rest_of(node)}"

    def rest_of(self, node: Object) -> str:
        """An object whose first brace was written."""
        return f"{self.members(node)} {self.lark.closed('}')}"

    def members(self, node: Object) -> str:
        """All that stands between the braces."""
        parts = {name: self.member(name, one) for name, one in node.members if allows(one)}
        other = None
        if allows(node.others):
            other = self.member_of(self.other_key(node.names), node.others)
        ordered = self._ordered
        inner = sequence(self.lark, parts, node.required, other, self.comma, ordered=ordered)
        return inner if node.required else f"({inner})?"

    def member(self, name: str, node: Node) -> str:
        return self.member_of(self.key(name), node)

    def member_of(self, key: str, node: Node) -> str:
        return f"{key} {self.colon} {self.value(node)}"

    def key(self, name: str) -> str:
        written = (json.dumps(name), json.dumps(name, ensure_ascii=False))
        return either(map(quoted, dict.fromkeys(written)))

    def other_key(self, names: Sequence[str]) -> str:
        """A key that is none of these. It has no escapes, so it cannot be one in disguise."""
        taken = "|".join(map(escaped, names))
        body = r"/\"[^\"\\\x00-\x1f]{1,64}\"/" + (rf" & ~/\"(?:{taken})\"/" if taken else "")
        return self._string(body, "KEY", counted=True)


def allows(node: Node) -> bool:
    return not isinstance(node, Nothing)


# Other ways to write

LINES = ((9, 10), (13, 13))  # may stand in Python's texts as they are
PYTHON = (Quotes('"', LINES), Quotes("'", LINES, pairs=False, either='"'))


class PythonWriter(Writer):
    """Values as Python writes them; JSON's words and strings do as well."""

    DOUBLE = CHARACTER.replace(r"\x00-\x1f", r"\x00-\x08\x0b\x0c\x0e-\x1f")
    SINGLE = (
        r"(?:[^'\\\x00-\x08\x0b\x0c\x0e-\x1f]|\\(?:['\"\\\/bfnrt]|u[0-9a-cA-CefEF][0-9a-fA-F]{3}))"
    )

    def text(self, node: Text) -> str:
        if node.pattern is not None or node.format is not None:
            return super().text(node)
        count = times(node.least, node.most)
        body = rf"/\"{self.DOUBLE}{count}\"|'{self.SINGLE}{count}'/"
        return self._string(body, "STRING", counted=node != Text())

    def worded(self, node: Worded) -> str:
        return either(self._quoted(node, quotes) for quotes in PYTHON)

    def literals(self, values: Sequence[str]) -> str:
        return self.one_of([way for value in values for way in python_ways(value)])

    def key(self, name: str) -> str:
        return either(map(quoted, dict.fromkeys(python_ways(json.dumps(name)))))

    def other_key(self, names: Sequence[str]) -> str:
        taken = "|".join(map(escaped, names))
        body = r"/\"[^\"\\\x00-\x1f]{1,64}\"|'[^'\\\x00-\x1f]{1,64}'/"
        body += rf" & ~/[\"'](?:{taken})[\"']/" if taken else ""
        return self._string(body, "KEY", counted=True)


def python_ways(value: str) -> list[str]:
    """A value of JSON as JSON and as Python write it."""
    read = json.loads(value)
    return list(dict.fromkeys((value, json.dumps(read, ensure_ascii=False), repr(read))))


class BareWriter(Writer):
    """Values with bare keys, and strings between marks of their own."""

    def __init__(self, lark: Lark, definitions: Mapping[str, Node], quotes: Sequence[str]) -> None:
        super().__init__(lark, definitions)
        self._quotes = quotes

    def text(self, node: Text) -> str:
        return either(self._between(mark, node) for mark in self._quotes)

    def _between(self, mark: str, node: Text) -> str:
        from dragoman.constraint.texts import body_of, ended_by, filled

        inner = ended_by(self.lark, body_of(node), (mark,), some=filled(node))
        return f"{self.lark.mark(mark)} {inner}"

    def worded(self, node: Worded) -> str:
        if node.pattern is not None:
            return self.text(Text(pattern=node.pattern))
        found = []
        for mark in self._quotes:
            letters = (mark,) if self.lark.in_letters(mark) else ()
            said = self.lark.mark(mark)
            found.append(f"{said} {written(self.lark, node, Between(letters))} {said}")
        return either(found)

    def literals(self, values: Sequence[str]) -> str:
        texts = [read for value in values if isinstance(read := json.loads(value), str)]
        plain = [way for value in values if value[0] != '"' for way in python_ways(value)]
        found = [self.one_of(plain)] if plain else []
        for mark in self._quotes if texts else ():
            written = self.lark.mark(mark)
            found.append(f"{written} {either(map(quoted, texts))} {written}")
        return either(found)

    def key(self, name: str) -> str:
        return quoted(name)

    def other_key(self, names: Sequence[str]) -> str:
        taken = "|".join(map(escaped, names))
        body = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/" + (f" & ~/(?:{taken})/" if taken else "")
        return self.lark.terminal(body, "KEY")

    def foreign(self, node: Foreign) -> str:
        return self.anything()


WriterOf = Callable[[Lark, Mapping[str, Node]], Writer]
