"""A grammar in the making, in the language of `llguidance`.

Rules are written as expressions; the same expression gives the same name, so that what repeats is
written once. Every engine's `llguidance` must read what comes out alike, and the oldest of them is
older than ours, so only plain things are used: no options of its JSON reader but the separators, no
nested grammars, no lookaround.

Letters never match a control token. So a mark that is one, or holds one, is written by its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.grammar.regex.escape import escape_regex
from dragoman.output.spec import GAP

# nothing is forced: working out what must come next costs as much as there is of it, at each token
HEADER = '%llguidance {"no_forcing": true}'
ANY = r"/(?s:.*)/"
# bounded: a model that likes white space shall not go on for ever
JSON_SPACE = r"[ \t]{0,4}(?:\r?\n){0,2}[ \t]{0,48}"  # as in JSON over many lines
MARKER_SPACE = r"/[ \t\r\n]{1,16}/"
UP_TO_THREE = "{0,3}"  # of marks that mean nothing; there is no end to what a model may repeat
EMPTY = '""'
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def quote_literal(text: str) -> str:
    """A literal."""
    return json.dumps(text)


def join_alternatives(options: Iterable[str]) -> str:
    """One of several expressions, each of them once."""
    every = list(dict.fromkeys(options))
    return every[0] if len(every) == 1 and " " not in every[0] else f"({' | '.join(every)})"


def format_repeat(least: int, most: int | None) -> str:
    """How often something may come."""
    if (least, most) == (0, None):
        return "*"
    return f"{{{least},}}" if most is None else f"{{{least},{most}}}"


class LarkBuilder:
    """Collects rules and terminals. `control` are the control tokens that marks may hold."""

    def __init__(self, special_tokens: Mapping[str, int] | None = None) -> None:
        self.special_tokens = dict(special_tokens or {})
        self._lines: dict[str, str] = {}  # name and options -> body
        self._names: dict[tuple[bool, str, str], str] = {}
        self._count = 0
        self._included: list[str] = []
        self._special_token_regex = (
            re.compile("|".join(map(re.escape, sorted(self.special_tokens, key=len, reverse=True))))
            if self.special_tokens
            else None
        )

    def reserve(self, hint: str = "r") -> str:
        """A name for a rule that is defined later."""
        self._count += 1
        return f"{hint}_{self._count}"

    def define(self, name: str, body: str) -> str:
        self._lines[name] = body
        return name

    def add_rule(self, body: str, hint: str = "r") -> str:
        """The name of a rule with this body."""
        return self._add_definition(hint, "", body)

    def add_terminal(self, body: str, hint: str = "T") -> str:
        """The name of a terminal: one regular expression, with `&` and `~` between its parts."""
        return self._add_definition(hint.upper(), "", body)

    def add_text_up_to(self, suffix: str, body: str = ANY, hint: str = "up_to") -> str:
        """What matches `body` up to the first place where `suffix`, a terminal, ends it."""
        return self._add_definition(hint, f"[suffix={suffix}]", body)

    def add_shortest_match(self, body: str, hint: str = "least") -> str:
        """What matches `body` and has no beginning that does."""
        return self._add_definition(hint, "[lazy]", body)

    def add_json_schema(self, schema: Any) -> str:
        """A value that a schema allows, as the engine's own reader of schemas has it."""
        if not isinstance(schema, dict):
            schema = {"anyOf": [schema]}
        return self.add_rule("%json " + json.dumps(schema | {"x-guidance": JSON_STYLE}), "json")

    def add_punctuation(self, letters: str) -> str:
        """A sign with white space that may stand on both sides: one terminal costs little."""
        return self.add_terminal(f"/{JSON_SPACE}{escape_regex(letters)}{JSON_SPACE}/", "SIGN")

    def add_opening_bracket(self, letters: str) -> str:
        """A bracket that opens, with white space that may follow."""
        return self.add_terminal(f"/{escape_regex(letters)}{JSON_SPACE}/", "OPEN")

    def add_closing_bracket(self, letters: str) -> str:
        """A bracket that closes, with white space that may stand before it."""
        return self.add_terminal(f"/{JSON_SPACE}{escape_regex(letters)}/", "CLOSE")

    def add_optional_space(self) -> str:
        """White space that may be there, around marks."""
        return self.add_terminal(MARKER_SPACE, "GAP") + "?"

    def write_marker(self, text: str) -> str:
        """A mark as it is written: control tokens by number, the rest in letters."""
        found: list[str] = []
        for part in text.split(GAP):
            found += [self.add_optional_space()] if found else []
            found += self._split_special_tokens(part)
        return " ".join(found)

    def write_any_marker(self, texts: Iterable[str]) -> str:
        """One of several spellings of a mark."""
        return join_alternatives(self.write_marker(text) for text in texts)

    def _split_special_tokens(self, text: str) -> list[str]:
        if self._special_token_regex is None:
            return [quote_literal(text)] if text else []
        found, at = [], 0
        for match in self._special_token_regex.finditer(text):
            found += [quote_literal(text[at : match.start()])] if match.start() > at else []
            found.append(f"<[{self.special_tokens[match.group()]}]>")
            at = match.end()
        return found + ([quote_literal(text[at:])] if at < len(text) else [])

    def is_plain_text(self, text: str) -> bool:
        """Whether a mark holds no control token."""
        return self._special_token_regex is None or self._special_token_regex.search(text) is None

    def add_text_without(
        self, patterns: Iterable[str], hint: str = "FREE", begins: str | None = None
    ) -> str:
        """Text, not empty, in which none of these regular expressions matches.

        Nor does it begin with `begins`.
        """
        found = "|".join(dict.fromkeys(patterns))
        body = r"/(?s:.+)/" if not found else rf"/(?s:.+)/ & ~/(?s:.*)(?:{found})(?s:.*)/"
        if begins is not None:
            body += rf" & ~/(?:{begins})(?s:.*)/"
        return self.add_terminal(body, hint)

    def include(self, rules: str) -> None:
        """Rules that somebody else wrote."""
        self._included.append(rules)

    def build(self, start: str) -> str:
        """The whole grammar."""
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
