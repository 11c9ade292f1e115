"""Builds a grammar in llguidance's dialect of Lark.

Rules are written as expressions. Adding the same expression again returns the same name, so
repeated expressions are written once. Every engine has its own version of llguidance, some older
than ours, and all must read the grammar alike. So only basic features are used: of the JSON schema
options only the separators, no nested grammars, no lookaround.

Text in a grammar never matches a special token. So a marker that is one, or contains one, is
written with the token's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from dragoman.grammar.regex.escape import escape_regex
from dragoman.output.spec import GAP
from dragoman.types import Json

# no forcing: finding the text that must come next costs time proportional to it, at every token
HEADER = '%llguidance {"no_forcing": true}'
ANY = r"/(?s:.*)/"
# White space as models write it, and no more: a small model tends to write it without end.
JSON_SPACE = r"(?: |\r?\n(?: {0,16}|\t{0,8}))?"  # one space, or a line break and an indentation
MARKER_SPACE = r"/[ \t\r\n]{1,8}/"
UP_TO_THREE = "{0,3}"  # markers without meaning: a model may repeat them, but not for ever
EMPTY = '""'
JSON_STYLE: dict[str, Json] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


def quote_literal(text: str) -> str:
    return json.dumps(text)


def join_alternatives(options: Iterable[str]) -> str:
    """Return an expression for any of these; repeated ones are written once."""
    distinct = list(dict.fromkeys(options))
    if len(distinct) == 1 and " " not in distinct[0]:
        return distinct[0]
    return f"({' | '.join(distinct)})"


def format_repeat(least: int, most: int | None) -> str:
    """Return the suffix that repeats an expression; `most` of None is unbounded."""
    if (least, most) == (0, None):
        return "*"
    return f"{{{least},}}" if most is None else f"{{{least},{most}}}"


def repeat_more(expression: str, most: int | None) -> str:
    """Repeat an expression at most `most` - 1 times, after a first one; None is any number."""
    if most == 1:
        return ""
    return f"({expression}){format_repeat(0, None if most is None else most - 1)}"


class LarkBuilder:
    """Collects rules and terminals. Markers may contain `special_tokens`, given with their ids."""

    def __init__(self, special_tokens: Mapping[str, int] | None = None) -> None:
        self.special_tokens = dict(special_tokens or {})
        self._lines: dict[str, str] = {}  # name and options -> body
        self._names: dict[tuple[bool, str, str], str] = {}
        self._count = 0
        self._included: list[str] = []
        self._special_token_regex: re.Pattern[str] | None = None
        if self.special_tokens:
            longest_first = sorted(self.special_tokens, key=len, reverse=True)
            self._special_token_regex = re.compile("|".join(map(re.escape, longest_first)))

    def reserve(self, hint: str = "r") -> str:
        """Return a new name, for a rule that is defined later."""
        self._count += 1
        return f"{hint}_{self._count}"

    def define(self, name: str, body: str) -> str:
        self._lines[name] = body
        return name

    def add_rule(self, body: str, hint: str = "r") -> str:
        """Add a rule; return its name."""
        return self._add_definition(hint, "", body)

    def add_terminal(self, body: str, hint: str = "T") -> str:
        """Add a terminal: one regular expression, whose parts `&` and `~` may combine."""
        return self._add_definition(hint.upper(), "", body)

    def add_text_up_to(self, suffix: str, body: str = ANY, hint: str = "up_to") -> str:
        """Add a rule for text that matches `body`, and the first match of the terminal `suffix`."""
        return self._add_definition(hint, f"[suffix={suffix}]", body)

    def add_shortest_match(self, body: str, hint: str = "shortest") -> str:
        """Add a rule for text that matches `body` and has no shorter prefix that does."""
        return self._add_definition(hint, "[lazy]", body)

    def add_json_schema(self, schema: Json) -> str:
        """Add a rule for the values of a schema, which llguidance itself compiles."""
        if not isinstance(schema, dict):
            schema = {"anyOf": [schema]}
        return self.add_rule("%json " + json.dumps(schema | {"x-guidance": JSON_STYLE}), "json")

    def add_punctuation(self, text: str) -> str:
        """Add a sign with optional white space around it; one terminal is cheaper than three.

        A line may end after a comma or a bracket.
        """
        after = JSON_SPACE if text in ",;(" else " ?"
        return self.add_terminal(f"/ ?{escape_regex(text)}{after}/", "SIGN")

    def add_opening_bracket(self, bracket: str) -> str:
        """Add a bracket that optional white space follows."""
        return self.add_terminal(f"/{escape_regex(bracket)}{JSON_SPACE}/", "OPEN")

    def add_closing_bracket(self, bracket: str) -> str:
        """Add a bracket with optional white space before it."""
        return self.add_terminal(f"/{JSON_SPACE}{escape_regex(bracket)}/", "CLOSE")

    def add_optional_space(self) -> str:
        """Return the optional white space around markers."""
        return self.add_terminal(MARKER_SPACE, "SPACE") + "?"

    def write_marker(self, marker: str) -> str:
        """Return a marker as the model writes it: special tokens by id, the rest as literals."""
        parts: list[str] = []
        for part in marker.split(GAP):
            parts += [self.add_optional_space()] if parts else []
            parts += self._split_special_tokens(part)
        return " ".join(parts)

    def write_any_marker(self, markers: Iterable[str]) -> str:
        return join_alternatives(self.write_marker(marker) for marker in markers)

    def _split_special_tokens(self, text: str) -> list[str]:
        if self._special_token_regex is None:
            return [quote_literal(text)] if text else []
        parts, start = [], 0
        for match in self._special_token_regex.finditer(text):
            parts += [quote_literal(text[start : match.start()])] if match.start() > start else []
            parts.append(f"<[{self.special_tokens[match.group()]}]>")
            start = match.end()
        return parts + ([quote_literal(text[start:])] if start < len(text) else [])

    def is_plain_text(self, marker: str) -> bool:
        """Whether a marker contains no special token."""
        return self._special_token_regex is None or self._special_token_regex.search(marker) is None

    def add_text_without(
        self, patterns: Iterable[str], hint: str = "FREE", not_at_start: str | None = None
    ) -> str:
        """Add a terminal for text, not empty, in which none of these regular expressions matches.

        At its start, `not_at_start` does not match either.
        """
        excluded = "|".join(dict.fromkeys(patterns))
        body = r"/(?s:.+)/" if not excluded else rf"/(?s:.+)/ & ~/(?s:.*)(?:{excluded})(?s:.*)/"
        if not_at_start is not None:
            body += rf" & ~/(?:{not_at_start})(?s:.*)/"
        return self.add_terminal(body, hint)

    def include(self, rules: str) -> None:
        """Add rules that a client wrote."""
        self._included.append(rules)

    def build(self, start: str) -> str:
        """Return the text of the whole grammar, given the expression of its start rule."""
        lines = [HEADER, f"start: {start}"]
        lines += [f"{name}: {body}" for name, body in self._lines.items()]
        return "\n".join([*lines, *self._included]) + "\n"

    def _add_definition(self, hint: str, options: str, body: str) -> str:
        key = (hint.isupper(), options, body)
        if key not in self._names:
            name = self.reserve(hint)
            self._names[key] = name
            self._lines[name + options] = body
        return self._names[key]
