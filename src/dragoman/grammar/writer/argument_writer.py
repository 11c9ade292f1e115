"""Arguments that are written one by one: between tags, as elements, as keywords."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import ANY, EMPTY, join_alternatives, quote_literal
from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.schema.nodes import (
    Anything,
    Array,
    Literals,
    Node,
    Nothing,
    Number,
    Object,
    String,
)
from dragoman.grammar.writer.json_writer import JsonWriter, is_possible
from dragoman.grammar.writer.sequences import write_items, write_sequence
from dragoman.grammar.writer.tool_names import ParsedTool, list_argument_objects, write_name
from dragoman.grammar.writer.unquoted_text import TaggedValueWriter, write_text_until
from dragoman.output.spec import NestedElements, TaggedArguments

IDENTIFIER = re.compile(r"[^\W\d]\w*")
ANY_KEY = r"/[^\s\"'<>=\/{}\[\]|&]{1,64}/"
ANY_IDENTIFIER = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"


def write_other_key(writer: JsonWriter, node: Object, any_key: str) -> str:
    """A key that the object does not know."""
    taken = "|".join(map(escape_regex, node.names))
    return writer.lark.add_terminal(any_key + (f" & ~/(?:{taken})/" if taken else ""), "KEY")


def reject_key(key: str, offer: ParsedTool) -> None:
    raise Unsupported(
        f"An argument called `{key[:64]}` cannot be written in this model's format.",
        param=offer.param,
    )


# Tags


def write_tagged_arguments(
    writer: JsonWriter, body: TaggedArguments, offer: ParsedTool, after: Sequence[str]
) -> str:
    """Arguments between tags."""
    banned = (*body.key.open, *after) if body.implicit_end else ()
    tags = TaggedValueWriter(writer, body.trim, banned, cdata=body.cdata)
    space = writer.lark.add_optional_space()
    found = []
    for node in list_argument_objects(offer):
        for key in node.names:
            if not _is_readable_key(body, key):
                reject_key(key, offer)
        parts = {
            key: _write_parameter(tags, body, quote_literal(_spell_key(body, key)), one, writer)
            for key, one in node.properties
            if is_possible(one)
        }
        other = None
        if is_possible(node.additional):
            other = _write_parameter(
                tags, body, write_other_key(writer, node, ANY_KEY), node.additional, writer
            )
        inner = write_sequence(writer.lark, parts, node.required, other, space)
        found.append(f"{space} {inner}" if node.required else f"({space} {inner})?")
    return join_alternatives(found)


def _is_readable_key(body: TaggedArguments, key: str) -> bool:
    """Whether the format's reader finds the key in what is written of it."""
    way = body.key_spelling.replace("{text}", "true").replace("{type}", "string")
    found = re.fullmatch(body.key_pattern, way.replace("{key}", _spell_key(body, key)))
    return found is not None and html.unescape(found["key"]) == html.unescape(key)


def _spell_key(body: TaggedArguments, key: str) -> str:
    return html.escape(key) if body.html_entities else key


def _write_parameter(
    tags: TaggedValueWriter, body: TaggedArguments, key: str, node: Node, writer: JsonWriter
) -> str:
    """A key and its value; where the key says what the value is, a rule for each kind."""
    lark = writer.lark
    opens, closes = body.value.open, body.value.close
    lead = f"{lark.add_optional_space()} {lark.write_any_marker(opens)}" if opens else ""

    def told(**words: str) -> str:
        before = lark.write_any_marker(body.key.open)
        written = write_name(
            lark, body.key_spelling.replace("{key}", "{own}"), "", body, own=key, **words
        )
        ends = lark.write_any_marker(body.key.close) if body.key.close else ""
        return f"{before} {written} {ends} {lead}"

    if "{" not in body.key_spelling.replace("{key}", ""):
        return lark.add_rule(f"{told()} {tags.write_value(node, closes)}", "parameter")
    texts, others = tags.split_text(node)
    found = [
        f"{told(text=quote_literal('true'), type=quote_literal('string'))} {tags.write_text(one, closes)}"
        for one in texts
    ]
    if isinstance(node, Anything):
        others = [node]
    for one in others:
        kind = join_alternatives(map(quote_literal, list_type_names(one)))
        found.append(
            f"{told(text=quote_literal('false'), type=kind)} {tags.write_json([one], closes)}"
        )
    return lark.add_rule(" | ".join(found), "parameter")


def list_type_names(node: Node) -> tuple[str, ...]:
    """What a value's type may be called."""
    match node:
        case Number():
            return ("number", "integer") if node.integer else ("number",)
        case Object():
            return ("object",)
        case Array():
            return ("array",)
        case Literals():
            return tuple(
                dict.fromkeys(word for one in node.values for word in _list_value_type_names(one))
            )
    return ("number", "integer", "boolean", "object", "array", "null")


def _list_value_type_names(value: str) -> tuple[str, ...]:
    """The same for one value, by its first letter."""
    words = {"{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}
    word = words.get(value[0], "number")
    return ("number", "integer") if word == "number" and value.lstrip("-").isdigit() else (word,)


# Elements


class _ElementWriter:
    """Values as elements; an element is written once for each place and kind of value.

    A grammar cannot hold the closing tag of an element to a name that it does not know. Where any
    value will do, or any text, elements of any name are left to the model; where a schema is to be
    kept to, an object with such members is written as JSON, which the reader takes as well.
    """

    def __init__(
        self, writer: JsonWriter, body: NestedElements, after: Sequence[str], taken: Iterable[str]
    ) -> None:
        tags = [mark.removeprefix(f"{body.prefix}</").removesuffix(">") for mark in after]
        self._excluded_names = list(
            dict.fromkeys((*taken, *tags))
        )  # what an element of any name is not
        self._any_element_rules: dict[
            bool, str
        ] = {}  # rules for elements of any name, by whether they are text
        self._writer = writer
        self._lark = writer.lark
        self._body = body
        self._tags = TaggedValueWriter(
            writer, "none", (body.prefix + "<" if body.prefix else "<", *after)
        )
        self._element_rules: dict[tuple[str, Node], str] = {}

    def write_element(self, name: str, node: Node) -> str:
        if (name, node) not in self._element_rules:
            rule = self._element_rules[name, node] = self._lark.reserve("element")
            before = self._lark.write_marker(f"{self._body.prefix}<{name}>")
            self._lark.define(rule, f"{before} {self._write_content(name, node)}")
        return self._element_rules[name, node]

    def _write_content(self, name: str, node: Node) -> str:
        """What stands in an element, and its end."""
        close = f"{self._body.prefix}</{name}>"
        texts, others = self._tags.split_text(node)
        found = []
        plain = []
        for one in others:
            match one:
                case Object():
                    found.append(f"{self._write_object(one)} {self._lark.write_marker(close)}")
                    if not isinstance(one.additional, Anything | Nothing):
                        found.append(self._tags.write_json([one], (close,)))
                case Array():
                    found.append(f"{self._write_items(one)} {self._lark.write_marker(close)}")
                case _:
                    plain.append(one)
        found += [self._tags.write_text(one, (close,), others) for one in texts]
        if isinstance(node, Anything):
            found.append(f"{self._write_any_elements()} {self._lark.write_marker(close)}")
        if plain:
            found.append(self._tags.write_json(plain, (close,)))
        return join_alternatives(found)

    def _write_items(self, node: Array) -> str:
        space = self._lark.add_optional_space()
        inner = write_items(node, lambda one: self.write_element(self._body.item, one), space)
        if not inner:
            return '"[]"'  # no elements at all would be a text
        some = f"{space} {inner} {space}"
        return some if node.min_items else f'("[]" | {some})'

    def _write_object(self, node: Object) -> str:
        if node.required:
            return self.write_members(node)
        return f'("{{}}" | {self.write_members(node, some=True)})'

    def _write_any_element(self, *, text: bool = False) -> str:
        """An element of any name, with anything in it, or with text."""
        if text not in self._any_element_rules:
            lark, prefix = self._lark, self._body.prefix
            name = self._any_element_rules[text] = lark.reserve("loose")
            taken = "|".join(map(escape_regex, self._excluded_names))
            key = lark.add_terminal(ANY_KEY + (f" & ~/(?:{taken})/" if taken else ""), "KEY")
            close = f"{prefix}</"
            inner = write_text_until(lark, ANY, (close,), (f"{prefix}<",))
            if not text:
                inner = join_alternatives(
                    [inner, f"{self._write_any_elements()} {lark.write_marker(close)}"]
                )
            lark.define(name, f'{lark.write_marker(f"{prefix}<")} {key} ">" {inner} {key} ">"')
        return self._any_element_rules[text]

    def _write_any_elements(self) -> str:
        gap = self._lark.add_optional_space()
        return f"{self._write_any_element()} ({gap} {self._write_any_element()})* {gap}"

    def write_members(self, node: Object, *, some: bool = False) -> str:
        """The members of an object; `some`: at least one."""
        space = self._lark.add_optional_space()
        parts = {key: self.write_element(key, one) for key, one in node.properties if is_possible(one)}
        # a closing tag with another name would hide what follows it, and that may be required
        free = node.additional in (Anything(), String()) and not node.required
        if not parts and not free:
            return '"{}"' if some else space
        other = self._write_any_element(text=node.additional == String()) if free else None
        inner = write_sequence(self._lark, parts, node.required, other, space)
        surely = some or node.required
        return f"{space} {inner} {space}" if surely else f"({space} {inner})? {space}"


def write_element_arguments(
    writer: JsonWriter, body: NestedElements, offer: ParsedTool, after: Sequence[str]
) -> str:
    """Arguments as elements."""
    taken = [key for node in list_argument_objects(offer) for key in node.names]
    found = _ElementWriter(writer, body, after, taken)
    for node in list_argument_objects(offer):
        for key in node.names:
            if re.fullmatch(r"[^<>/\s]+", key) is None:
                reject_key(key, offer)
    return join_alternatives(found.write_members(node) for node in list_argument_objects(offer))


# Keywords


def write_keyword_arguments(writer: JsonWriter, offer: ParsedTool) -> str:
    """Arguments as `key=value`."""
    lark = writer.lark
    equals = lark.add_punctuation("=")
    found = []
    for node in list_argument_objects(offer):
        for key in node.names:
            if IDENTIFIER.fullmatch(key) is None:
                reject_key(key, offer)
        parts = {
            key: f"{quote_literal(key)} {equals} {writer.write_value(one)}"
            for key, one in node.properties
            if is_possible(one)
        }
        other = None
        if is_possible(node.additional):
            key = write_other_key(writer, node, ANY_IDENTIFIER)
            other = f"{key} {equals} {writer.write_value(node.additional)}"
        inner = write_sequence(lark, parts, node.required, other, lark.add_punctuation(","))
        found.append(inner if node.required or inner == EMPTY else f"({inner})?")
    return join_alternatives(found)
