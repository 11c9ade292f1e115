"""Writes text without quotes: between tags, or between the string markers of a format.

Such a text ends where its closing marker begins, so it cannot contain that marker. Its rule matches
the text and the marker. Patterns and formats become part of its regular expression.

The parser reads unquoted text by the schema of the tool: where the schema allows a string and
another type, text that looks like the other type is read as that. So the text of a string must not
look like a type whose values the schema restricts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.grammar.client.grammar_text import GrammarText
from dragoman.grammar.lark_builder import ANY, LarkBuilder, join_alternatives
from dragoman.grammar.regex.escape import marker_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import is_supported_pattern, to_full_match
from dragoman.grammar.regex.string_formats import FORMATS
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Number,
    Object,
    String,
)
from dragoman.output.arguments.cast import TYPE_ORDER
from dragoman.output.arguments.schemas.parameter_types import (
    ANY_TYPE,
    STRING,
    Types,
    get_json_type,
    read_parameter_schema,
)

ALL_TYPES: Types = frozenset(TYPE_ORDER) | STRING
BLANK = r"\s\x1c-\x1f"
NUMBER_REGEX = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][\-+]?[0-9]{1,3})?"
# the text that the parser reads as a scalar of a type, and its first characters
SCALAR_REGEXES = {
    "integer": (NUMBER_REGEX, r"\-0-9"),
    "number": (NUMBER_REGEX, r"\-0-9"),
    "boolean": ("[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]", "tTfF"),
    "null": ("null|None|NULL|nil", "nN"),
}
# the parser reads all text that begins with these as a container of the type
CONTAINER_STARTS = {"object": r"\{", "array": r"\[("}


@dataclass(frozen=True)
class UnambiguousText(String):
    """A string whose text the parser reads as none of `excluded_types`."""

    excluded_types: Types = ANY_TYPE


def build_text_regex(node: String) -> str:
    """Build the terminal body of a text between string markers."""
    body = build_string_regex(node)
    return body + (exclude_types(node.excluded_types) if isinstance(node, UnambiguousText) else "")


def build_string_regex(node: String) -> str:
    """Build the terminal body of a string's text, whatever types it can be read as."""
    parts = []
    if node.min_length or node.max_length is not None:
        most = "" if node.max_length is None else node.max_length
        parts.append(f"/(?s:.{{{node.min_length},{most}}})/")
    if node.pattern is not None and is_supported_pattern(node.pattern):
        parts.append(f"/{to_full_match(node.pattern)}/")
    if node.format is not None:
        parts.append(f"/{FORMATS[node.format]}/")
    return " & ".join(parts) or ANY


def exclude_types(types: Types, ends: str | None = None) -> str:
    """Build the terms that restrict text to what the parser reads as none of these types.

    A lexer matches as much as it can. If values of these types may also come in the same place,
    before a marker that begins with one of `ends`, text stops matching where it can be a value.
    """
    brackets = "".join(CONTAINER_STARTS[name] for name in sorted(types & CONTAINER_STARTS.keys()))
    scalars = [SCALAR_REGEXES[name] for name in sorted(types & SCALAR_REGEXES.keys())]
    words = "|".join(dict.fromkeys(regex for regex, _ in scalars))
    starts = brackets
    if ends is not None:
        starts += "".join(dict.fromkeys(first for _, first in scalars))
    terms = ""
    if starts:
        text = f"[^{BLANK}{brackets}](?s:.*)"
        terms = f" & /(?:{text}|[{BLANK}]+(?:[^{BLANK}{starts}](?s:.*))?)?/"
    if words and ends is not None:
        terms += f" & ~/(?:{words})(?:[{BLANK}{ends}](?s:.*))?/"
    elif words:
        terms += f" & ~/[{BLANK}]*(?:{words})[{BLANK}]*/"
    return terms


def cannot_be_empty(node: String) -> bool:
    """Whether a string cannot be empty; one with a pattern is assumed to be such."""
    return bool(node.min_length) or node.pattern is not None or node.format is not None


def write_text_until(
    lark: LarkBuilder,
    body: str,
    closing: Sequence[str],
    banned: Iterable[str] = (),
    *,
    some: bool = False,
) -> str:
    """Write text up to the first closing marker, and that marker.

    The text contains none of the `banned` markers, and with `some` it is not empty.
    """
    plain = [marker for marker in closing if lark.is_plain_text(marker)]
    special = [marker for marker in closing if not lark.is_plain_text(marker)]
    bounded = body != ANY
    # text ends at its first closing marker, even if it is too short by then
    excluded = (*banned, *special, *(plain if bounded else ()))
    body += exclude_markers(excluded, length_bounded=bounded)
    options = []
    if plain:
        text = lark.add_terminal(body, "TEXT")
        options.append(lark.add_text_up_to(f"/(?:{'|'.join(map(marker_to_regex, plain))})/", text))
    if special:
        body += "" if bounded else exclude_markers(plain, length_bounded=False)
        text = lark.add_terminal(f"{body} & /(?s:.+)/", "TEXT")
        options.append(f"{text}{'' if some else '?'} {lark.write_any_marker(special)}")
    return join_alternatives(options)


def list_types(node: Node) -> Types:
    """Return the types that the values of a node have; all types for a node with options."""
    match node:
        case String() | GrammarText():
            return STRING
        case Number():
            return frozenset({"integer" if node.integer else "number"})
        case Object():
            return frozenset({"object"})
        case Array():
            return frozenset({"array"})
        case Literals():
            return frozenset(get_json_type(json.loads(value)) for value in node.values)
        case LlguidanceSchema():
            return read_parameter_schema(json.loads(node.schema)).types or ALL_TYPES
    return ALL_TYPES


def list_restricted_types(nodes: Sequence[Node]) -> Types:
    """Return the types of which only some values are allowed, so that no text may be read as them.

    If all values of a type are allowed, text that is read as one does no harm.
    """
    types = frozenset[str]().union(*map(list_types, nodes))
    return types - frozenset[str]().union(*map(_list_unrestricted_types, nodes)) - STRING


def _list_unrestricted_types(node: Node) -> Types:
    match node:
        case Number() if node == Number(integer=node.integer):
            return list_types(node) | {"integer"}
        case Object() | Array() if node in (Object(), Array()):
            return list_types(node)
        case Literals():
            complete = [whole for whole in (NULL, BOOLEAN) if set(whole.values) <= set(node.values)]
            return frozenset[str]().union(*map(list_types, complete))
    return ANY_TYPE
