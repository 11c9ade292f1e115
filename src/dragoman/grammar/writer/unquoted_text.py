"""Texts that are not in quotes: what stands between tags, or between marks of a model's own.

Such a text ends where its closing mark begins, so it cannot hold that mark. A rule for it matches
up to and with the mark. Patterns and formats become part of the regular expression.

A value between tags is read by the tool's schema. Where that allows a text and something else, what
can be read as something else is: such a text must then fit the other schema, so it is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.grammar.client.grammar_text import GrammarText, write_grammar_text
from dragoman.grammar.client.text_syntax import DelimitedSyntax
from dragoman.grammar.lark_builder import ANY, LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import is_supported_pattern, to_full_match
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    AnyOf,
    Anything,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Number,
    Object,
    String,
)
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.output.arguments.cast import TYPE_ORDER
from dragoman.output.arguments.parameter_types import ANY_TYPE as ANY_KIND
from dragoman.output.arguments.parameter_types import (
    STRING,
    Types,
    json_type,
    read_parameter_schema,
)
from dragoman.output.arguments.tags import CDATA

DAY = r"(?:0[1-9]|[12][0-9]|3[01])"
MONTHS = (
    rf"(?:(?:0[13578]|1[02])-{DAY}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = rf"[0-9]{{4}}-{MONTHS}"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
ZONE = r"(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
FORMATS = {
    "date": DATE,
    "time": CLOCK + ZONE,
    "date-time": f"{DATE}T{CLOCK}{ZONE}",
    "duration": r"P(?:[0-9]{1,9}W|[0-9]{1,9}D(?:T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS]|[0-9]{1,9}[YM])",
    "email": rf"[a-zA-Z0-9._%+\-]{{1,64}}@{LABEL}(?:\.{LABEL}){{1,8}}",
    "hostname": rf"{LABEL}(?:\.{LABEL}){{0,3}}",
    "ipv4": rf"{BYTE}(?:\.{BYTE}){{3}}",
    "ipv6": r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::1",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": r"[a-z][a-z0-9+.\-]{1,15}:\/\/[a-zA-Z0-9.\-]{1,253}(?:\/[a-zA-Z0-9._~\-]{0,64}){0,16}",
}
TextualNode: TypeAlias = String | Literals | GrammarText
ALL_TYPES: Types = frozenset(TYPE_ORDER) | STRING
# texts that are read as a value of this kind where a text is allowed too, and how they begin
BLANK = r"\s\x1c-\x1f"
NUMBER_REGEX = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][\-+]?[0-9]{1,3})?"
SCALAR_PATTERNS = {
    "integer": (NUMBER_REGEX, r"\-0-9"),
    "number": (NUMBER_REGEX, r"\-0-9"),
    "boolean": ("[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]", "tTfF"),
    "null": ("null|None|NULL|nil", "nN"),
}
FIRST_CHARACTERS = {
    "object": r"\{",
    "array": r"\[(",
}  # all that begins so is taken for one of these


@dataclass(frozen=True)
class UnambiguousText(String):
    """A text that is none of those which are read as a value of these kinds."""

    excluded_types: Types = ANY_KIND


def build_text_regex(node: String) -> str:
    """The regular expression of a text that stands between marks of its own."""
    return build_bare_regex(node) + (
        exclude_types(node.excluded_types) if isinstance(node, UnambiguousText) else ""
    )


def build_bare_regex(node: String) -> str:
    """The same of any, whatever it may be read as."""
    parts = []
    if node.min_length or node.max_length is not None:
        most = "" if node.max_length is None else node.max_length
        parts.append(f"/(?s:.{{{node.min_length},{most}}})/")
    if node.pattern is not None and is_supported_pattern(node.pattern):
        parts.append(f"/{to_full_match(node.pattern)}/")
    if node.format is not None:
        parts.append(f"/{FORMATS[node.format]}/")
    return " & ".join(parts) or ANY


def exclude_types(kinds: Types, ends: str | None = None) -> str:
    """What to add to the regular expression of a text that is not read as one of these kinds.

    A lexer takes all it can get. Where values of these kinds may stand in the place of the text, up
    to a mark that begins with one of `ends`, it must be none as soon as it can be a value.
    """
    begins = "".join(FIRST_CHARACTERS[kind] for kind in sorted(kinds & FIRST_CHARACTERS.keys()))
    looks = [SCALAR_PATTERNS[kind] for kind in sorted(kinds & SCALAR_PATTERNS.keys())]
    words = "|".join(dict.fromkeys(word for word, _ in looks))
    firsts = begins + "".join(
        dict.fromkeys(first for _, first in looks) if ends is not None else ()
    )
    found = ""
    if firsts:
        own = f"[^{BLANK}{begins}](?s:.*)"
        found = f" & /(?:{own}|[{BLANK}]+(?:[^{BLANK}{firsts}](?s:.*))?)?/"
    if words and ends is not None:
        found += f" & ~/(?:{words})(?:[{BLANK}{ends}](?s:.*))?/"
    elif words:
        found += f" & ~/[{BLANK}]*(?:{words})[{BLANK}]*/"
    return found


def cannot_be_empty(node: String) -> bool:
    """Whether a text cannot be empty; what only a pattern could tell is taken for it."""
    return bool(node.min_length) or node.pattern is not None or node.format is not None


def write_text_until(
    lark: LarkBuilder,
    body: str,
    closes: Sequence[str],
    banned: Iterable[str] = (),
    *,
    some: bool = False,
) -> str:
    """A text up to the first of its closing marks, and the mark; none of `banned` is in it.

    With `some` it is not empty.
    """
    letters = [mark for mark in closes if lark.is_plain_text(mark)]
    tokens = [mark for mark in closes if not lark.is_plain_text(mark)]
    counted = body != ANY
    # a text ends at the first of its marks, even where it is too short then
    body += exclude_markers(
        (*banned, *tokens, *(letters if counted else ())), length_bounded=counted
    )
    found = []
    if letters:
        inner = lark.add_terminal(body, "TEXT")
        found.append(lark.add_text_up_to(f"/(?:{'|'.join(map(marker_to_regex, letters))})/", inner))
    if tokens:
        body += "" if counted else exclude_markers(letters, length_bounded=False)
        inner = lark.add_terminal(f"{body} & /(?s:.+)/", "TEXT")
        found.append(f"{inner}{'' if some else '?'} {lark.write_any_marker(tokens)}")
    return join_alternatives(found)


class TaggedValueWriter:
    """Values between tags, for one call."""

    def __init__(
        self, writer: JsonWriter, trim: str, banned: Sequence[str], *, cdata: bool = False
    ) -> None:
        self._writer = writer
        self._cdata = cdata
        self.lark = writer.lark
        self._trims_newlines = trim == "newline"
        self._banned_markers = (*banned, CDATA[0]) if cdata else banned

    def split_text(self, node: Node) -> tuple[list[TextualNode], list[Node]]:
        """What of a node is text, and what is not."""
        texts: list[TextualNode] = []
        others: list[Node] = []
        queue, seen = [node], set[Node]()
        while queue:
            one = self._writer.resolve(queue.pop(0))
            if one in seen:
                continue
            seen.add(one)
            match one:
                case AnyOf():
                    queue += one.options
                case GrammarText() if one.pattern is not None:
                    texts.append(String(pattern=one.pattern))
                case String() | GrammarText():
                    texts.append(one)
                case Anything():
                    texts.append(String())
                case Literals():
                    said = tuple(value for value in one.values if value.startswith('"'))
                    rest = tuple(value for value in one.values if not value.startswith('"'))
                    texts += [Literals(said)] if said else []
                    others += [Literals(rest)] if rest else []
                case LlguidanceSchema() if "string" in list_types(one):
                    texts.append(String())
                case _:
                    others.append(one)
        return texts, others

    def write_value(self, node: Node, closes: Sequence[str]) -> str:
        """A value and what closes it."""
        texts, others = self.split_text(node)
        found = [self.write_text(one, closes, others) for one in texts]
        if self._cdata:
            found += [self._write_cdata(one, closes, others) for one in texts]
        if others:
            found.append(self.write_json(others, closes))
        return join_alternatives(found)

    def write_text(
        self, node: TextualNode, closes: Sequence[str], others: Sequence[Node] = ()
    ) -> str:
        if isinstance(node, GrammarText):
            return self._write_grammar_text(node, closes)
        if isinstance(node, Literals):
            said = join_alternatives(
                self._write_literal(json.loads(value)) for value in node.values
            )
            return f"{said} {self.lark.write_any_marker(closes)}"
        body = build_bare_regex(node) + self._exclude_other_types(node, others, closes)
        if not self._trims_newlines or body == ANY:
            return write_text_until(
                self.lark, body, closes, self._banned_markers, some=cannot_be_empty(node)
            )
        body += r" & /(?:[^\n](?:(?s:.*)[^\n])?)?/"
        every = [f"\n{mark}" for mark in closes] + list(closes)
        inner = write_text_until(
            self.lark, body, every, self._banned_markers, some=cannot_be_empty(node)
        )
        return f'"\\n"? {inner}'

    def _write_literal(self, value: str) -> str:
        """A text that is known, with the lines around it: one is left out, so it must be there."""
        if not self._trims_newlines:
            return quote_literal(value)
        before = '"\\n"' if value.startswith("\n") else '"\\n"?'
        after = '"\\n"' if value.endswith("\n") else '"\\n"?'
        return f"({before} {quote_literal(value)} {after})"

    def _exclude_other_types(
        self, node: String, others: Sequence[Node], closes: Sequence[str] = ()
    ) -> str:
        """What sees to it that a text is not read as something else."""
        taken = node.excluded_types if isinstance(node, UnambiguousText) else ANY_KIND
        firsts = dict.fromkeys(
            escape_regex(one[0]) for one in closes if self.lark.is_plain_text(one)
        )
        return exclude_types(
            list_restricted_types(others) | taken, "".join(firsts) if closes else None
        )

    def _write_grammar_text(self, node: GrammarText, closes: Sequence[str]) -> str:
        """A text that keeps to a grammar."""
        marks = [mark for mark in (*closes, *self._banned_markers) if self.lark.is_plain_text(mark)]
        breaks = "\n" if self._trims_newlines else ""
        said = write_grammar_text(
            self.lark, node, DelimitedSyntax(tuple(dict.fromkeys(marks)), breaks)
        )
        return f"{said} {self.lark.write_any_marker(closes)}"

    def _write_cdata(self, node: TextualNode, closes: Sequence[str], others: Sequence[Node]) -> str:
        """A text in a section of its own, which may hold every mark but the section's end."""
        start, end = CDATA
        if isinstance(node, Literals):
            said = join_alternatives(quote_literal(json.loads(value)) for value in node.values)
            inner = f"{said} {quote_literal(end)}"
        elif isinstance(node, GrammarText):
            inner = f"{write_grammar_text(self.lark, node, DelimitedSyntax((end,)))} {quote_literal(end)}"
        else:
            body = build_bare_regex(node) + self._exclude_other_types(node, others)
            inner = write_text_until(self.lark, body, (end,), some=cannot_be_empty(node))
        line = '"\\n"?' if self._trims_newlines else ""
        return f"{line} {quote_literal(start)} {inner} {self.lark.write_any_marker(closes)}"

    def write_json(self, nodes: Sequence[Node], closes: Sequence[str]) -> str:
        """A value that is written as JSON."""
        space = self.lark.add_optional_space()
        said = join_alternatives(map(self._writer.write_value, nodes))
        return f"{space} {said} {space} {self.lark.write_any_marker(closes)}"


def list_types(node: Node) -> Types:
    """The kinds that a value may be of; of a node with options, see each."""
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
            return frozenset(json_type(json.loads(value)) for value in node.values)
        case LlguidanceSchema():
            return read_parameter_schema(json.loads(node.schema)).types or ALL_TYPES
    return ALL_TYPES


def list_restricted_types(nodes: Sequence[Node]) -> Types:
    """The kinds of which not every value will do: no text beside them may be read as one.

    Where any value of a kind is allowed, it does not matter what a text is taken for.
    """
    kinds = frozenset[str]().union(*map(list_types, nodes))
    return kinds - frozenset[str]().union(*map(_list_unrestricted_types, nodes)) - STRING


def _list_unrestricted_types(node: Node) -> Types:
    match node:
        case Number() if node == Number(integer=node.integer):
            return list_types(node) | {"integer"}
        case Object() | Array() if node in (Object(), Array()):
            return list_types(node)
        case Literals():
            whole = (NULL, BOOLEAN)
            return frozenset().union(
                *(list_types(one) for one in whole if set(one.values) <= set(node.values))
            )
    return ANY_KIND
