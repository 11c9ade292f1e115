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

from dragoman.output.spec import GAP

# nothing is forced: working out what must come next costs as much as there is of it, at each token
HEADER = '%llguidance {"no_forcing": true}'
ANY = r"/(?s:.*)/"
# bounded: a model that likes white space shall not go on for ever
SPACES = r"[ \t]{0,4}(?:\r?\n){0,2}[ \t]{0,48}"  # as in JSON over many lines
GAPS = r"/[ \t\r\n]{1,16}/"
FEW = "{0,3}"  # of marks that mean nothing; there is no end to what a model may repeat
EMPTY = '""'
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", "\v": r"\v"}


def quoted(text: str) -> str:
    """A literal."""
    return json.dumps(text)


def escaped(text: str) -> str:
    """A text as it stands inside a regular expression."""
    return "".join(_letter(letter) for letter in text)


def _letter(letter: str) -> str:
    if letter in _NAMED:
        return _NAMED[letter]
    if ord(letter) < 32 or ord(letter) == 127:
        return f"\\x{ord(letter):02x}"
    return _SPECIAL.sub(r"\\\g<0>", letter)


def beginnings(text: str) -> str:
    """A regular expression of what a text may begin with, but for nothing at all."""
    found = ""
    for letter in reversed(text):
        found = escaped(letter) + (f"(?:{found})?" if found else "")
    return found


def either(options: Iterable[str]) -> str:
    """One of several expressions, each of them once."""
    every = list(dict.fromkeys(options))
    return every[0] if len(every) == 1 and " " not in every[0] else f"({' | '.join(every)})"


def times(least: int, most: int | None) -> str:
    """How often something may come."""
    if (least, most) == (0, None):
        return "*"
    return f"{{{least},}}" if most is None else f"{{{least},{most}}}"


class Lark:
    """Collects rules and terminals. `control` are the control tokens that marks may hold."""

    def __init__(self, control: Mapping[str, int] | None = None) -> None:
        self.control = dict(control or {})
        self._lines: dict[str, str] = {}  # name and options -> body
        self._known: dict[tuple[bool, str, str], str] = {}
        self._count = 0
        self._included: list[str] = []
        self._parts = (
            re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))
            if self.control
            else None
        )

    def reserve(self, hint: str = "r") -> str:
        """A name for a rule that is defined later."""
        self._count += 1
        return f"{hint}_{self._count}"

    def define(self, name: str, body: str) -> str:
        self._lines[name] = body
        return name

    def rule(self, body: str, hint: str = "r") -> str:
        """The name of a rule with this body."""
        return self._name(hint, "", body)

    def terminal(self, body: str, hint: str = "T") -> str:
        """The name of a terminal: one regular expression, with `&` and `~` between its parts."""
        return self._name(hint.upper(), "", body)

    def lazy(self, suffix: str, body: str = ANY, hint: str = "up_to") -> str:
        """What matches `body` up to the first place where `suffix`, a terminal, ends it."""
        return self._name(hint, f"[suffix={suffix}]", body)

    def shortest(self, body: str, hint: str = "least") -> str:
        """What matches `body` and has no beginning that does."""
        return self._name(hint, "[lazy]", body)

    def json(self, schema: Any) -> str:
        """A value that a schema allows, as the engine's own reader of schemas has it."""
        if not isinstance(schema, dict):
            schema = {"anyOf": [schema]}
        return self.rule("%json " + json.dumps(schema | {"x-guidance": JSON_STYLE}), "json")

    def sign(self, letters: str) -> str:
        """A sign with white space that may stand on both sides: one terminal costs little."""
        return self.terminal(f"/{SPACES}{escaped(letters)}{SPACES}/", "SIGN")

    def opened(self, letters: str) -> str:
        """A bracket that opens, with white space that may follow."""
        return self.terminal(f"/{escaped(letters)}{SPACES}/", "OPEN")

    def closed(self, letters: str) -> str:
        """A bracket that closes, with white space that may stand before it."""
        return self.terminal(f"/{SPACES}{escaped(letters)}/", "CLOSE")

    def gap(self) -> str:
        """White space that may be there, around marks."""
        return self.terminal(GAPS, "GAP") + "?"

    def mark(self, text: str) -> str:
        """A mark as it is written: control tokens by number, the rest in letters."""
        found: list[str] = []
        for part in text.split(GAP):
            found += [self.gap()] if found else []
            found += self._sequence(part)
        return " ".join(found)

    def marks(self, texts: Iterable[str]) -> str:
        """One of several spellings of a mark."""
        return either(self.mark(text) for text in texts)

    def _sequence(self, text: str) -> list[str]:
        if self._parts is None:
            return [quoted(text)] if text else []
        found, at = [], 0
        for match in self._parts.finditer(text):
            found += [quoted(text[at : match.start()])] if match.start() > at else []
            found.append(f"<[{self.control[match.group()]}]>")
            at = match.end()
        return found + ([quoted(text[at:])] if at < len(text) else [])

    def in_letters(self, text: str) -> bool:
        """Whether a mark holds no control token."""
        return self._parts is None or self._parts.search(text) is None

    def without(
        self, patterns: Iterable[str], hint: str = "FREE", begins: str | None = None
    ) -> str:
        """Text, not empty, in which none of these regular expressions matches.

        Nor does it begin with `begins`.
        """
        found = "|".join(dict.fromkeys(patterns))
        body = r"/(?s:.+)/" if not found else rf"/(?s:.+)/ & ~/(?s:.*)(?:{found})(?s:.*)/"
        if begins is not None:
            body += rf" & ~/(?:{begins})(?s:.*)/"
        return self.terminal(body, hint)

    def include(self, rules: str) -> None:
        """Rules that somebody else wrote."""
        self._included.append(rules)

    def source(self, start: str) -> str:
        """The whole grammar."""
        lines = [HEADER, f"start: {start}"]
        lines += [f"{name}: {body}" for name, body in self._lines.items()]
        return "\n".join([*lines, *self._included]) + "\n"

    def _name(self, hint: str, options: str, body: str) -> str:
        key = (hint.isupper(), options, body)
        if key not in self._known:
            name = self.reserve(hint)
            self._known[key] = name
            self._lines[name + options] = body
        return self._known[key]


def pattern(mark: str) -> str:
    """A mark as a regular expression; white space may stand at its gaps."""
    return r"[ \t\r\n]*".join(escaped(part) for part in mark.split(GAP))
