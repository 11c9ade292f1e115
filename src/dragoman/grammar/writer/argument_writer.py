"""Writes arguments one by one: between tags, as elements, as keywords.

    tags      `<parameter=city>Rome</parameter>`: a key and its value, which is text unless the
              schema says otherwise; some formats also state the type of the value
    elements  `<city>Rome</city>`, nested for arrays and objects
    keywords  `city="Rome"`, as in a call of Python

The arguments come in any order (`sequences`). A tool with an argument whose name the parser would
not read back is refused.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import ANY, EMPTY, LarkBuilder, join_alternatives, quote_literal
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
from dragoman.grammar.writer.tagged_value_writer import TaggedValueWriter
from dragoman.grammar.writer.tool_names import ParsedTool, list_argument_objects, write_name
from dragoman.grammar.writer.unquoted_text import write_text_until
from dragoman.output.spec import NestedElements, TaggedArguments

IDENTIFIER = re.compile(r"[^\W\d]\w*")
ELEMENT_NAME = re.compile(r"[^<>/\s]+")
ANY_KEY = r"/[^\s\"'<>=\/{}\[\]|&]{1,64}/"
ANY_IDENTIFIER = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"


def write_unlisted_key(lark: LarkBuilder, names: Iterable[str], any_key: str) -> str:
    """Write a key that is none of these names."""
    listed = "|".join(map(escape_regex, names))
    return lark.add_terminal(any_key + (f" & ~/(?:{listed})/" if listed else ""), "KEY")


def check_keys(tool: ParsedTool, is_writable: Callable[[str], bool]) -> None:
    """Reject a tool with an argument whose name the format cannot write."""
    for node in list_argument_objects(tool):
        for key in node.names:
            if not is_writable(key):
                raise Unsupported(
                    f"An argument called `{key[:64]}` cannot be written in this model's format.",
                    param=tool.param,
                )


# Tags


def write_tagged_arguments(
    writer: JsonWriter, body: TaggedArguments, tool: ParsedTool, closing: Sequence[str]
) -> str:
    """Write arguments between tags; `closing` are the markers that close the call."""
    check_keys(tool, lambda key: _is_readable_key(body, key))
    banned = (*body.key.open, *closing)
    values = TaggedValueWriter(writer, body.trim, banned, cdata=body.cdata)
    lark = writer.lark
    space = lark.add_optional_space()
    options = []
    for node in list_argument_objects(tool):
        parameters = {
            key: _write_parameter(values, body, quote_literal(_spell_key(body, key)), value)
            for key, value in node.properties
            if is_possible(value)
        }
        other = None
        if is_possible(node.additional):
            key = write_unlisted_key(lark, node.names, ANY_KEY)
            other = _write_parameter(values, body, key, node.additional)
        inner = write_sequence(lark, parameters, node.required, other, space)
        options.append(f"{space} {inner}" if node.required else f"({space} {inner})?")
    return join_alternatives(options)


def _is_readable_key(body: TaggedArguments, key: str) -> bool:
    """Whether the parser reads the key back from its spelling."""
    spelling = body.key_spelling.replace("{text}", "true").replace("{type}", "string")
    match = re.fullmatch(body.key_pattern, spelling.replace("{key}", _spell_key(body, key)))
    return match is not None and html.unescape(match["key"]) == html.unescape(key)


def _spell_key(body: TaggedArguments, key: str) -> str:
    return html.escape(key) if body.html_entities else key


def _write_parameter(values: TaggedValueWriter, body: TaggedArguments, key: str, node: Node) -> str:
    """Write a key and its value, for each type of value if the key states the type."""
    lark, closing = values.lark, body.value.close
    spelling = body.key_spelling.replace("{key}", "{own}")

    def write_key(**words: str) -> str:
        opener = lark.write_any_marker(body.key.open)
        name = write_name(lark, spelling, "", body, own=key, **words)
        end = lark.write_any_marker(body.key.close) if body.key.close else ""
        if not body.value.open:
            return f"{opener} {name} {end}"
        start = f"{lark.add_optional_space()} {lark.write_any_marker(body.value.open)}"
        return f"{opener} {name} {end} {start}"

    if "{" not in spelling.replace("{own}", ""):
        return lark.add_rule(f"{write_key()} {values.write_value(node, closing)}", "parameter")
    texts, others = values.split_text(node)
    text_key = write_key(text=quote_literal("true"), type=quote_literal("string"))
    options = [f"{text_key} {values.write_text(text, closing)}" for text in texts]
    for other in [node] if isinstance(node, Anything) else others:
        type_name = join_alternatives(map(quote_literal, list_type_names(other)))
        other_key = write_key(text=quote_literal("false"), type=type_name)
        options.append(f"{other_key} {values.write_json([other], closing)}")
    return lark.add_rule(" | ".join(options), "parameter")


def list_type_names(node: Node) -> tuple[str, ...]:
    """Return the names that a format may use for the type of a value."""
    match node:
        case Number():
            return ("number", "integer") if node.integer else ("number",)
        case Object():
            return ("object",)
        case Array():
            return ("array",)
        case Literals():
            names = [name for value in node.values for name in _list_literal_type_names(value)]
            return tuple(dict.fromkeys(names))
    return ("number", "integer", "boolean", "object", "array", "null")


def _list_literal_type_names(value: str) -> tuple[str, ...]:
    by_first = {"{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}
    name = by_first.get(value[0], "number")
    return ("number", "integer") if name == "number" and value.lstrip("-").isdigit() else (name,)


# Elements


class _ElementWriter:
    """Writes values as elements, one rule for each name and node.

    A grammar cannot constrain the closing tag of an element whose name it does not know. Where any
    value is allowed, or any text, the model may write elements of any name. Where a schema has to
    be enforced, an object with such members is written as JSON, which the parser reads as well.
    """

    def __init__(
        self, writer: JsonWriter, body: NestedElements, closing: Sequence[str], keys: Iterable[str]
    ) -> None:
        tags = [marker.removeprefix(f"{body.prefix}</").removesuffix(">") for marker in closing]
        self._reserved_names = list(dict.fromkeys((*keys, *tags)))
        self._any_element_rules: dict[bool, str] = {}  # by whether the content is only text
        self._lark = writer.lark
        self._body = body
        self._values = TaggedValueWriter(writer, "none", (f"{body.prefix}<", *closing))
        self._element_rules: dict[tuple[str, Node], str] = {}

    def write_element(self, name: str, node: Node) -> str:
        if (name, node) not in self._element_rules:
            rule = self._element_rules[name, node] = self._lark.reserve("element")
            opening = self._lark.write_marker(f"{self._body.prefix}<{name}>")
            self._lark.define(rule, f"{opening} {self._write_content(name, node)}")
        return self._element_rules[name, node]

    def _write_content(self, name: str, node: Node) -> str:
        """Write the content of an element and its closing tag."""
        tag = f"{self._body.prefix}</{name}>"
        close = self._lark.write_marker(tag)
        texts, others = self._values.split_text(node)
        options: list[str] = []
        scalars = []
        for other in others:
            match other:
                case Object():
                    options.append(f"{self._write_object(other)} {close}")
                    if not isinstance(other.additional, Anything | Nothing):
                        options.append(self._values.write_json([other], (tag,)))
                case Array():
                    options.append(f"{self._write_items(other)} {close}")
                case _:
                    scalars.append(other)
        options += [self._values.write_text(text, (tag,), others) for text in texts]
        if isinstance(node, Anything):
            options.append(f"{self._write_any_elements()} {close}")
        if scalars:
            options.append(self._values.write_json(scalars, (tag,)))
        return join_alternatives(options)

    def _write_items(self, node: Array) -> str:
        space = self._lark.add_optional_space()
        inner = write_items(node, lambda item: self.write_element(self._body.item, item), space)
        if not inner:
            return '"[]"'  # an element without items would be read as text
        items = f"{space} {inner} {space}"
        return items if node.min_items else f'("[]" | {items})'

    def _write_object(self, node: Object) -> str:
        if node.required:
            return self.write_members(node)
        return f'("{{}}" | {self.write_members(node, at_least_one=True)})'

    def _write_any_element(self, *, text: bool = False) -> str:
        """Write an element of any name that contains anything, or only text."""
        if text not in self._any_element_rules:
            lark, prefix = self._lark, self._body.prefix
            rule = self._any_element_rules[text] = lark.reserve("any_element")
            name = write_unlisted_key(lark, self._reserved_names, ANY_KEY)
            close = f"{prefix}</"
            content = write_text_until(lark, ANY, (close,), (f"{prefix}<",))
            if not text:
                elements = f"{self._write_any_elements()} {lark.write_marker(close)}"
                content = join_alternatives([content, elements])
            opening = lark.write_marker(f"{prefix}<")
            lark.define(rule, f'{opening} {name} ">" {content} {name} ">"')
        return self._any_element_rules[text]

    def _write_any_elements(self) -> str:
        space, element = self._lark.add_optional_space(), self._write_any_element()
        return f"{element} ({space} {element})* {space}"

    def write_members(self, node: Object, *, at_least_one: bool = False) -> str:
        """Write the members of an object."""
        space = self._lark.add_optional_space()
        members = {
            key: self.write_element(key, value)
            for key, value in node.properties
            if is_possible(value)
        }
        # a closing tag with a wrong name would hide the members after it, which may be required
        allows_any = node.additional in (Anything(), String()) and not node.required
        if not members and not allows_any:
            return '"{}"' if at_least_one else space
        other = self._write_any_element(text=node.additional == String()) if allows_any else None
        inner = write_sequence(self._lark, members, node.required, other, space)
        if at_least_one or node.required:
            return f"{space} {inner} {space}"
        return f"({space} {inner})? {space}"


def write_element_arguments(
    writer: JsonWriter, body: NestedElements, tool: ParsedTool, closing: Sequence[str]
) -> str:
    """Write arguments as elements; `closing` are the markers that close the call."""
    check_keys(tool, lambda key: ELEMENT_NAME.fullmatch(key) is not None)
    objects = list_argument_objects(tool)
    keys = [key for node in objects for key in node.names]
    elements = _ElementWriter(writer, body, closing, keys)
    return join_alternatives(map(elements.write_members, objects))


# Keywords


def write_keyword_arguments(writer: JsonWriter, tool: ParsedTool) -> str:
    """Write arguments as `key=value`."""
    check_keys(tool, lambda key: IDENTIFIER.fullmatch(key) is not None)
    lark = writer.lark
    equals = lark.add_punctuation("=")
    options = []
    for node in list_argument_objects(tool):
        members = {
            key: f"{quote_literal(key)} {equals} {writer.write_value(value)}"
            for key, value in node.properties
            if is_possible(value)
        }
        other = None
        if is_possible(node.additional):
            key = write_unlisted_key(lark, node.names, ANY_IDENTIFIER)
            other = f"{key} {equals} {writer.write_value(node.additional)}"
        inner = write_sequence(lark, members, node.required, other, lark.add_punctuation(","))
        options.append(inner if node.required or inner == EMPTY else f"({inner})?")
    return join_alternatives(options)
