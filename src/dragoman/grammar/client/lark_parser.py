"""Reads a grammar in Lark, in the dialect of `llguidance`: one rule on a line, and its `|`s below.

It was found to be readable before, so mistakes are not looked for. What a text of a tool cannot
have (tokens, schemas, options) is `NotRewritten`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.grammar.regex.automaton import RegexBuilder
from dragoman.grammar.regex.char_sets import fold_case
from dragoman.grammar.regex.regex_parser import RegexParser, UnsupportedSyntax

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<line>\n)
    |(?P<space>[ \t\r]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_\-]*)
    |(?P<number>\d+)
    |(?P<sign>->|\.\.|%\w+|::|.)""",
    re.VERBOSE,
)
_NUMBER = r"(?:{0})|(?:{0}\.[0-9]*|\.{0})(?:[eE][+\-]?{0})?|{0}[eE][+\-]?{0}".format("[0-9]+")
_FLOAT = r"(?:{0}\.[0-9]*|\.{0})(?:[eE][+\-]?{0})?|{0}[eE][+\-]?{0}".format("[0-9]+")
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": r"[eE][+\-]?[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"[+\-]?(?:{_FLOAT})",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": rf"[+\-]?(?:{_NUMBER})",
    "ESCAPED_STRING": r"\"([^\"\\]|\\.)*\"",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+(?:[^/*][^*]*\*+)*\/",
    "SQL_COMMENT": r"--[^\n]*",
}


@dataclass(frozen=True)
class Leaf:
    """A text as it is, or the number of a regular expression; and which of its grammar it is."""

    said: str | int
    place: int = 0


@dataclass(frozen=True)
class Called:
    """What a rule says."""

    name: str


@dataclass(frozen=True)
class Row:
    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Options:
    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Times:
    part: Expr
    least: int
    most: int | None


Expr: TypeAlias = Leaf | Called | Row | Options | Times
Tokens: TypeAlias = list[tuple[str, str]]  # kind and text


class Grammar:
    """Rules by their names; `ignored` may stand between two leaves."""

    def __init__(self, said: str) -> None:
        self.patterns = RegexBuilder()
        self.rules: dict[str, Expr] = {}
        self.ignored: tuple[Leaf, ...] = ()
        self._terminals: dict[str, Tokens | Leaf] = {}
        self._places = 0
        rules: dict[str, Tokens] = {}
        ignored: list[Tokens] = []
        for line in _lines(said):
            if line[0] in (("sign", "!"), ("sign", "?")):  # what these say is of trees alone
                line = line[1:]
            match line:
                case [("sign", "%import"), *rest]:
                    self._import(rest)
                case [("sign", "%ignore"), *rest]:
                    ignored.append(rest)
                case [("sign", "%llguidance"), *_]:
                    pass
                case [("name", name), ("sign", ":"), *rest]:
                    (self._terminals if _is_terminal(name) else rules)[name] = rest
                case [("name", _), ("sign", "["), *_]:
                    raise UnsupportedSyntax("an option of a rule")
                case [("name", _), (_, what), *_] | [(_, what), *_]:
                    raise UnsupportedSyntax(f"`{what}`")
        for name, body in rules.items():
            self.rules[name] = _Body(self, body).rule()
        self.ignored = tuple(map(self._terminal, ignored))

    def _import(self, line: Tokens) -> None:
        names = [text for kind, text in line if kind == "name"]
        if not names or names[0] != "common":
            raise UnsupportedSyntax("an import of anything but `common`")
        said = names[1:]
        new = said[-1:] if ("sign", "->") in line else said
        for name, known in zip(new, said[: len(new)], strict=True):
            self._terminals[name] = self.regex(COMMON[known])

    def terminal(self, name: str) -> Leaf:
        found = self._terminals[name]
        if not isinstance(found, Leaf):
            found = self._terminals[name] = self._terminal(found)
        return found

    def _terminal(self, body: Tokens) -> Leaf:
        return _Body(self, body).terminal()

    def regex(self, said: str, flags: str = "") -> Leaf:
        return Leaf(RegexParser(self.patterns, said, flags).parse())

    def text(self, token: str) -> Leaf:
        """A text in quotes; one whose case does not matter is an expression."""
        said = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", token.removesuffix("i"))
        letters = json.loads(said)
        if not token.endswith("i"):
            return Leaf(letters)
        one = self.patterns.char
        return Leaf(self.patterns.concat(one(fold_case(((ord(each),) * 2,))) for each in letters))

    def placed(self, leaf: Leaf) -> Leaf:
        """The same leaf in a place of its own."""
        self._places += 1
        return Leaf(leaf.said, self._places)

    def number(self, leaf: Leaf) -> int:
        """A leaf as an expression."""
        return self.patterns.literal(leaf.said) if isinstance(leaf.said, str) else leaf.said


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _lines(said: str) -> Iterator[Tokens]:
    """What belongs together."""
    line: Tokens = []
    ended = False
    for found in _TOKEN.finditer(said):
        kind, text = str(found.lastgroup), found.group()
        if kind == "line":
            ended = True
        elif kind not in ("space", "comment"):
            if ended and line and text != "|":
                yield line
                line = []
            ended = False
            line.append((kind, text))
    if line:
        yield line


class _Body:
    """Reads the body of one rule, or of a terminal."""

    def __init__(self, grammar: Grammar, tokens: Tokens) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._at = 0

    def rule(self) -> Expr:
        found = self._options()
        self._done()
        return found

    def terminal(self) -> Leaf:
        found = self._meets()
        self._done()
        if isinstance(found, Leaf):
            return found
        raise UnsupportedSyntax("a rule in a terminal")

    def _done(self) -> None:
        if self._at < len(self._tokens):
            raise UnsupportedSyntax(f"`{self._tokens[self._at][1]}`")

    def _sign(self, *signs: str) -> bool:
        """Whether one of some signs comes next, which is then read."""
        hit = self._at < len(self._tokens) and self._tokens[self._at] in [
            ("sign", s) for s in signs
        ]
        self._at += hit
        return hit

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    # rules

    def _options(self) -> Expr:
        found = [self._row()]
        while self._sign("|"):
            found.append(self._row())
        return found[0] if len(found) == 1 else Options(tuple(found))

    def _row(self) -> Expr:
        found = []
        while self._peek()[1] not in ("|", ")", "]", "", "->"):
            found.append(self._repeated(self._part()))
        self._alias()
        return found[0] if len(found) == 1 else Row(tuple(found))

    def _alias(self) -> None:
        if self._sign("->"):
            self._at += 1

    def _part(self) -> Expr:
        kind, text = self._peek()
        if kind == "name" and not _is_terminal(text):
            self._at += 1
            return Called(text)
        if self._sign("("):
            found = self._options()
            self._at += 1
            return found
        if self._sign("["):
            found = self._options()
            self._at += 1
            return Times(found, 0, 1)
        return self._leaf()

    def _repeated(self, part: Expr) -> Expr:
        while (counts := self._counts()) is not None:
            part = Times(part, *counts)
        return part

    def _counts(self) -> tuple[int, int | None] | None:
        if self._sign("*"):
            return 0, None
        if self._sign("+"):
            return 1, None
        if self._sign("?"):
            return 0, 1
        if self._peek() == ("sign", "~") and self._tokens[self._at + 1][0] == "number":
            self._at += 1
            least = self._count()
            return (least, self._count()) if self._sign("..") else (least, least)
        if not self._sign("{"):
            return None
        least = self._count() if self._peek()[0] == "number" else 0
        most: int | None = least
        if self._sign(","):
            most = self._count() if self._peek()[0] == "number" else None
        self._at += 1
        return least, most

    def _count(self) -> int:
        self._at += 1
        return int(self._tokens[self._at - 1][1])

    def _leaf(self) -> Leaf:
        return self._grammar.placed(self._unplaced())

    def _unplaced(self) -> Leaf:
        kind, text = self._peek()
        self._at += 1
        match kind:
            case "text":
                first = self._grammar.text(text)
                if self._sign(".."):
                    last = self._grammar.text(self._peek()[1])
                    self._at += 1
                    return Leaf(self._grammar.patterns.char(((_code(first), _code(last)),)))
                return first
            case "regex":
                said, _, flags = text[1:].rpartition("/")
                return self._grammar.regex(said, flags)
            case "name":
                return self._grammar.terminal(text)
        raise UnsupportedSyntax(f"`{text}`")

    # terminals

    def _meets(self) -> Leaf:
        found = [self._met()]
        while self._sign("|"):
            found.append(self._met())
        if len(found) == 1:
            return found[0]
        return Leaf(self._grammar.patterns.union(map(self._grammar.number, found)))

    def _met(self) -> Leaf:
        found = [self._letters()]
        while self._sign("&"):
            found.append(self._letters())
        if len(found) == 1:
            return found[0]
        return Leaf(self._grammar.patterns.intersect(map(self._grammar.number, found)))

    def _letters(self) -> Leaf:
        found: list[Leaf] = []
        while self._peek()[1] not in ("|", "&", ")", "]", "", "->"):
            found.append(self._counted())
        self._alias()
        if len(found) == 1:
            return found[0]
        if all(isinstance(one.said, str) for one in found):
            return Leaf("".join(str(one.said) for one in found))
        return Leaf(self._grammar.patterns.concat(map(self._grammar.number, found)))

    def _counted(self) -> Leaf:
        patterns = self._grammar.patterns
        if self._sign("~"):
            found = Leaf(patterns.complement(self._grammar.number(self._atom())))
        else:
            found = self._atom()
        while (counts := self._counts()) is not None:
            found = Leaf(patterns.repeat(self._grammar.number(found), *counts))
        return found

    def _atom(self) -> Leaf:
        optional = self._peek() == ("sign", "[")
        if not self._sign("(", "["):
            return self._leaf()
        found = self._meets()
        self._at += 1
        if optional:
            return Leaf(self._grammar.patterns.repeat(self._grammar.number(found), 0, 1))
        return found


def _code(leaf: Leaf) -> int:
    return ord(leaf.said) if isinstance(leaf.said, str) else 0
