"""Arguments that are written one by one: between tags, as elements, as keywords."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import ANY, EMPTY, either, escaped, quoted
from dragoman.grammar.schema.nodes import (
    Anything,
    Array,
    Exactly,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.grammar.writer.json_values import Writer, allows
from dragoman.grammar.writer.raw_text import Tags, ended_by
from dragoman.grammar.writer.sequences import items, sequence
from dragoman.grammar.writer.tool_names import Offer, objects_of, worded
from dragoman.output.spec import NestedElements, TaggedArguments

WORD = re.compile(r"[^\W\d]\w*")
ANY_KEY = r"/[^\s\"'<>=\/{}\[\]|&]{1,64}/"
ANY_WORD = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"


def other_key(writer: Writer, node: Object, any_key: str) -> str:
    """A key that the object does not know."""
    taken = "|".join(map(escaped, node.names))
    return writer.lark.terminal(any_key + (f" & ~/(?:{taken})/" if taken else ""), "KEY")


def refuse_key(key: str, offer: Offer) -> None:
    raise Unsupported(
        f"An argument called `{key[:64]}` cannot be written in this model's format.",
        param=offer.at,
    )


# Tags


def parameters(writer: Writer, body: TaggedArguments, offer: Offer, after: Sequence[str]) -> str:
    """Arguments between tags."""
    banned = (*body.key.open, *after) if body.implicit_end else ()
    tags = Tags(writer, body.trim, banned, cdata=body.cdata)
    space = writer.lark.gap()
    found = []
    for node in objects_of(offer):
        for key in node.names:
            if not _reads_back(body, key):
                refuse_key(key, offer)
        parts = {
            key: _parameter(tags, body, quoted(_spelled(body, key)), one, writer)
            for key, one in node.members
            if allows(one)
        }
        other = None
        if allows(node.others):
            other = _parameter(tags, body, other_key(writer, node, ANY_KEY), node.others, writer)
        inner = sequence(writer.lark, parts, node.required, other, space)
        found.append(f"{space} {inner}" if node.required else f"({space} {inner})?")
    return either(found)


def _reads_back(body: TaggedArguments, key: str) -> bool:
    """Whether the format's reader finds the key in what is written of it."""
    way = body.key_spelling.replace("{text}", "true").replace("{type}", "string")
    found = re.fullmatch(body.key_pattern, way.replace("{key}", _spelled(body, key)))
    return found is not None and html.unescape(found["key"]) == html.unescape(key)


def _spelled(body: TaggedArguments, key: str) -> str:
    return html.escape(key) if body.html_entities else key


def _parameter(tags: Tags, body: TaggedArguments, key: str, node: Node, writer: Writer) -> str:
    """A key and its value; where the key says what the value is, a rule for each kind."""
    lark = writer.lark
    opens, closes = body.value.open, body.value.close
    lead = f"{lark.gap()} {lark.marks(opens)}" if opens else ""

    def told(**words: str) -> str:
        before = lark.marks(body.key.open)
        written = worded(
            lark, body.key_spelling.replace("{key}", "{own}"), "", body, own=key, **words
        )
        ends = lark.marks(body.key.close) if body.key.close else ""
        return f"{before} {written} {ends} {lead}"

    if "{" not in body.key_spelling.replace("{key}", ""):
        return lark.rule(f"{told()} {tags.value(node, closes)}", "parameter")
    texts, others = tags.split(node)
    found = [
        f"{told(text=quoted('true'), type=quoted('string'))} {tags.text(one, closes)}"
        for one in texts
    ]
    if isinstance(node, Anything):
        others = [node]
    for one in others:
        kind = either(map(quoted, type_words(one)))
        found.append(f"{told(text=quoted('false'), type=kind)} {tags.other([one], closes)}")
    return lark.rule(" | ".join(found), "parameter")


def type_words(node: Node) -> tuple[str, ...]:
    """What a value's type may be called."""
    match node:
        case Number():
            return ("number", "integer") if node.integer else ("number",)
        case Object():
            return ("object",)
        case Array():
            return ("array",)
        case Exactly():
            return tuple(dict.fromkeys(word for one in node.values for word in _words_of(one)))
    return ("number", "integer", "boolean", "object", "array", "null")


def _words_of(value: str) -> tuple[str, ...]:
    """The same for one value, by its first letter."""
    words = {"{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}
    word = words.get(value[0], "number")
    return ("number", "integer") if word == "number" and value.lstrip("-").isdigit() else (word,)


# Elements


class _Elements:
    """Values as elements; an element is written once for each place and kind of value.

    A grammar cannot hold the closing tag of an element to a name that it does not know. Where any
    value will do, or any text, elements of any name are left to the model; where a schema is to be
    kept to, an object with such members is written as JSON, which the reader takes as well.
    """

    def __init__(
        self, writer: Writer, body: NestedElements, after: Sequence[str], taken: Iterable[str]
    ) -> None:
        tags = [mark.removeprefix(f"{body.prefix}</").removesuffix(">") for mark in after]
        self._taken = list(dict.fromkeys((*taken, *tags)))  # what an element of any name is not
        self._any: dict[bool, str] = {}  # rules for elements of any name, by whether they are text
        self._writer = writer
        self._lark = writer.lark
        self._body = body
        self._tags = Tags(writer, "none", (body.prefix + "<" if body.prefix else "<", *after))
        self._known: dict[tuple[str, Node], str] = {}

    def element(self, name: str, node: Node) -> str:
        if (name, node) not in self._known:
            rule = self._known[name, node] = self._lark.reserve("element")
            before = self._lark.mark(f"{self._body.prefix}<{name}>")
            self._lark.define(rule, f"{before} {self._inner(name, node)}")
        return self._known[name, node]

    def _inner(self, name: str, node: Node) -> str:
        """What stands in an element, and its end."""
        close = f"{self._body.prefix}</{name}>"
        texts, others = self._tags.split(node)
        found = []
        plain = []
        for one in others:
            match one:
                case Object():
                    found.append(f"{self._inner_object(one)} {self._lark.mark(close)}")
                    if not isinstance(one.others, Anything | Nothing):
                        found.append(self._tags.other([one], (close,)))
                case Array():
                    found.append(f"{self._items(one)} {self._lark.mark(close)}")
                case _:
                    plain.append(one)
        found += [self._tags.text(one, (close,), others) for one in texts]
        if isinstance(node, Anything):
            found.append(f"{self._some_loose()} {self._lark.mark(close)}")
        if plain:
            found.append(self._tags.other(plain, (close,)))
        return either(found)

    def _items(self, node: Array) -> str:
        space = self._lark.gap()
        inner = items(node, lambda one: self.element(self._body.item, one), space)
        if not inner:
            return '"[]"'  # no elements at all would be a text
        some = f"{space} {inner} {space}"
        return some if node.least else f'("[]" | {some})'

    def _inner_object(self, node: Object) -> str:
        if node.required:
            return self.members(node)
        return f'("{{}}" | {self.members(node, some=True)})'

    def _loose(self, *, text: bool = False) -> str:
        """An element of any name, with anything in it, or with text."""
        if text not in self._any:
            lark, prefix = self._lark, self._body.prefix
            name = self._any[text] = lark.reserve("loose")
            taken = "|".join(map(escaped, self._taken))
            key = lark.terminal(ANY_KEY + (f" & ~/(?:{taken})/" if taken else ""), "KEY")
            close = f"{prefix}</"
            inner = ended_by(lark, ANY, (close,), (f"{prefix}<",))
            if not text:
                inner = either([inner, f"{self._some_loose()} {lark.mark(close)}"])
            lark.define(name, f'{lark.mark(f"{prefix}<")} {key} ">" {inner} {key} ">"')
        return self._any[text]

    def _some_loose(self) -> str:
        gap = self._lark.gap()
        return f"{self._loose()} ({gap} {self._loose()})* {gap}"

    def members(self, node: Object, *, some: bool = False) -> str:
        """The members of an object; `some`: at least one."""
        space = self._lark.gap()
        parts = {key: self.element(key, one) for key, one in node.members if allows(one)}
        # a closing tag with another name would hide what follows it, and that may be required
        free = node.others in (Anything(), Text()) and not node.required
        if not parts and not free:
            return '"{}"' if some else space
        other = self._loose(text=node.others == Text()) if free else None
        inner = sequence(self._lark, parts, node.required, other, space)
        surely = some or node.required
        return f"{space} {inner} {space}" if surely else f"({space} {inner})? {space}"


def elements(writer: Writer, body: NestedElements, offer: Offer, after: Sequence[str]) -> str:
    """Arguments as elements."""
    taken = [key for node in objects_of(offer) for key in node.names]
    found = _Elements(writer, body, after, taken)
    for node in objects_of(offer):
        for key in node.names:
            if re.fullmatch(r"[^<>/\s]+", key) is None:
                refuse_key(key, offer)
    return either(found.members(node) for node in objects_of(offer))


# Keywords


def keywords(writer: Writer, offer: Offer) -> str:
    """Arguments as `key=value`."""
    lark = writer.lark
    equals = lark.sign("=")
    found = []
    for node in objects_of(offer):
        for key in node.names:
            if WORD.fullmatch(key) is None:
                refuse_key(key, offer)
        parts = {
            key: f"{quoted(key)} {equals} {writer.value(one)}"
            for key, one in node.members
            if allows(one)
        }
        other = None
        if allows(node.others):
            key = other_key(writer, node, ANY_WORD)
            other = f"{key} {equals} {writer.value(node.others)}"
        inner = sequence(lark, parts, node.required, other, lark.sign(","))
        found.append(inner if node.required or inner == EMPTY else f"({inner})?")
    return either(found)
