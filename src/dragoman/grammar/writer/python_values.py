"""Values in other ways than JSON: as Python writes them, and with bare keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from dragoman.grammar.client.grammar_text import Worded, written
from dragoman.grammar.client.text_syntax import Between, Quotes
from dragoman.grammar.lark_builder import Lark, either, quoted, times
from dragoman.grammar.schema.nodes import Foreign, Keys, Node, Text
from dragoman.grammar.writer.json_values import ANY_KEYS, CHARACTER, Writer, told
from dragoman.grammar.writer.marker_free_json import held
from dragoman.grammar.writer.raw_text import body_of, ended_by, filled

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
        return either(map(quoted, self._unmarked(python_ways(json.dumps(name)))))

    def other_key(self, names: Sequence[str], keys: Keys = ANY_KEYS) -> str:
        count = keys.count
        body = rf"/\"[^\"\\\x00-\x1f]{count}\"|'[^'\\\x00-\x1f]{count}'/"
        return self._string(body + told(names, keys, r"[\"']"), "KEY", counted=count != "+")


def python_ways(value: str) -> list[str]:
    """A value of JSON as JSON and as Python write it."""
    read = json.loads(value)
    return list(dict.fromkeys((value, json.dumps(read, ensure_ascii=False), repr(read))))


BARE = re.compile(r"[^\s,:;=\[\]{}()\"'<>|]+")  # a key that is read as it is
ANY_BARE = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"


class BareWriter(Writer):
    """Values with bare keys, and strings between marks of their own."""

    def __init__(
        self, lark: Lark, definitions: Mapping[str, Node], quotes: Sequence[str], at: str
    ) -> None:
        super().__init__(lark, definitions, banned=quotes, at=at)
        self._quotes = quotes

    def text(self, node: Text) -> str:
        return either(self._between(mark, node) for mark in self._quotes)

    def _between(self, mark: str, node: Text) -> str:
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
        # a text that holds a mark of its own is written with quotation marks and escapes
        plain += [json.dumps(text) for text in texts if held(text, self._quotes)]
        texts = [text for text in texts if not held(text, self._quotes)]
        found = [self.one_of(plain)] if plain else []
        for mark in self._quotes if texts else ():
            written = self.lark.mark(mark)
            found.append(f"{written} {either(map(quoted, texts))} {written}")
        return either(found)

    def key(self, name: str) -> str:
        return quoted(name) if BARE.fullmatch(name) else super().key(name)

    def other_key(self, names: Sequence[str], keys: Keys = ANY_KEYS) -> str:
        return self.lark.terminal(rf"/{ANY_BARE}/" + told(names, keys, ""), "KEY")

    def foreign(self, node: Foreign) -> str:
        return self.anything()
