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

from dragoman.grammar.regex.char_sets import fold_case
from dragoman.grammar.regex.regex_builder import RegexBuilder
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
COMMON_TERMINALS = {
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
class Terminal:
    """A text as it is, or the number of a regular expression; and which of its grammar it is."""

    value: str | int
    occurrence: int = 0


@dataclass(frozen=True)
class RuleCall:
    """What a rule says."""

    name: str


@dataclass(frozen=True)
class Concatenation:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternation:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repetition:
    part: Expression
    min_count: int
    max_count: int | None


Expression: TypeAlias = Terminal | RuleCall | Concatenation | Alternation | Repetition
Tokens: TypeAlias = list[tuple[str, str]]  # kind and text


class LarkGrammar:
    """Rules by their names; `ignored` may stand between two leaves."""

    def __init__(self, source: str) -> None:
        self.regexes = RegexBuilder()
        self.rules: dict[str, Expression] = {}
        self.ignored: tuple[Terminal, ...] = ()
        self._terminals: dict[str, Tokens | Terminal] = {}
        self._occurrences = 0
        rules: dict[str, Tokens] = {}
        ignored: list[Tokens] = []
        for line in _split_definitions(source):
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
            self.rules[name] = _DefinitionParser(self, body).parse_rule()
        self.ignored = tuple(map(self._parse_terminal, ignored))

    def _import(self, line: Tokens) -> None:
        names = [text for kind, text in line if kind == "name"]
        if not names or names[0] != "common":
            raise UnsupportedSyntax("an import of anything but `common`")
        said = names[1:]
        new = said[-1:] if ("sign", "->") in line else said
        for name, known in zip(new, said[: len(new)], strict=True):
            self._terminals[name] = self.parse_regex(COMMON_TERMINALS[known])

    def get_terminal(self, name: str) -> Terminal:
        found = self._terminals[name]
        if not isinstance(found, Terminal):
            found = self._terminals[name] = self._parse_terminal(found)
        return found

    def _parse_terminal(self, body: Tokens) -> Terminal:
        return _DefinitionParser(self, body).parse_terminal()

    def parse_regex(self, said: str, flags: str = "") -> Terminal:
        return Terminal(RegexParser(self.regexes, said, flags).parse())

    def parse_string(self, token: str) -> Terminal:
        """A text in quotes; one whose case does not matter is an expression."""
        said = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", token.removesuffix("i"))
        letters = json.loads(said)
        if not token.endswith("i"):
            return Terminal(letters)
        one = self.regexes.char
        return Terminal(
            self.regexes.concat(one(fold_case(((ord(each),) * 2,))) for each in letters)
        )

    def new_occurrence(self, leaf: Terminal) -> Terminal:
        """The same leaf in a place of its own."""
        self._occurrences += 1
        return Terminal(leaf.value, self._occurrences)

    def to_regex(self, leaf: Terminal) -> int:
        """A leaf as an expression."""
        return self.regexes.literal(leaf.value) if isinstance(leaf.value, str) else leaf.value


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _split_definitions(said: str) -> Iterator[Tokens]:
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


class _DefinitionParser:
    """Reads the body of one rule, or of a terminal."""

    def __init__(self, grammar: LarkGrammar, tokens: Tokens) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._position = 0

    def parse_rule(self) -> Expression:
        found = self._parse_alternatives()
        self._expect_end()
        return found

    def parse_terminal(self) -> Terminal:
        found = self._parse_terminal_alternatives()
        self._expect_end()
        if isinstance(found, Terminal):
            return found
        raise UnsupportedSyntax("a rule in a terminal")

    def _expect_end(self) -> None:
        if self._position < len(self._tokens):
            raise UnsupportedSyntax(f"`{self._tokens[self._position][1]}`")

    def _accept(self, *signs: str) -> bool:
        """Whether one of some signs comes next, which is then read."""
        hit = self._position < len(self._tokens) and self._tokens[self._position] in [
            ("sign", s) for s in signs
        ]
        self._position += hit
        return hit

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")

    # rules

    def _parse_alternatives(self) -> Expression:
        found = [self._parse_sequence()]
        while self._accept("|"):
            found.append(self._parse_sequence())
        return found[0] if len(found) == 1 else Alternation(tuple(found))

    def _parse_sequence(self) -> Expression:
        found = []
        while self._peek()[1] not in ("|", ")", "]", "", "->"):
            found.append(self._parse_quantifiers(self._parse_part()))
        self._skip_alias()
        return found[0] if len(found) == 1 else Concatenation(tuple(found))

    def _skip_alias(self) -> None:
        if self._accept("->"):
            self._position += 1

    def _parse_part(self) -> Expression:
        kind, text = self._peek()
        if kind == "name" and not _is_terminal(text):
            self._position += 1
            return RuleCall(text)
        if self._accept("("):
            found = self._parse_alternatives()
            self._position += 1
            return found
        if self._accept("["):
            found = self._parse_alternatives()
            self._position += 1
            return Repetition(found, 0, 1)
        return self._parse_occurrence()

    def _parse_quantifiers(self, part: Expression) -> Expression:
        while (counts := self._parse_quantifier()) is not None:
            part = Repetition(part, *counts)
        return part

    def _parse_quantifier(self) -> tuple[int, int | None] | None:
        if self._accept("*"):
            return 0, None
        if self._accept("+"):
            return 1, None
        if self._accept("?"):
            return 0, 1
        if self._peek() == ("sign", "~") and self._tokens[self._position + 1][0] == "number":
            self._position += 1
            least = self._parse_count()
            return (least, self._parse_count()) if self._accept("..") else (least, least)
        if not self._accept("{"):
            return None
        least = self._parse_count() if self._peek()[0] == "number" else 0
        most: int | None = least
        if self._accept(","):
            most = self._parse_count() if self._peek()[0] == "number" else None
        self._position += 1
        return least, most

    def _parse_count(self) -> int:
        self._position += 1
        return int(self._tokens[self._position - 1][1])

    def _parse_occurrence(self) -> Terminal:
        return self._grammar.new_occurrence(self._parse_token())

    def _parse_token(self) -> Terminal:
        kind, text = self._peek()
        self._position += 1
        match kind:
            case "text":
                first = self._grammar.parse_string(text)
                if self._accept(".."):
                    last = self._grammar.parse_string(self._peek()[1])
                    self._position += 1
                    return Terminal(
                        self._grammar.regexes.char(((_char_code(first), _char_code(last)),))
                    )
                return first
            case "regex":
                said, _, flags = text[1:].rpartition("/")
                return self._grammar.parse_regex(said, flags)
            case "name":
                return self._grammar.get_terminal(text)
        raise UnsupportedSyntax(f"`{text}`")

    # terminals

    def _parse_terminal_alternatives(self) -> Terminal:
        found = [self._parse_terminal_intersection()]
        while self._accept("|"):
            found.append(self._parse_terminal_intersection())
        if len(found) == 1:
            return found[0]
        return Terminal(self._grammar.regexes.union(map(self._grammar.to_regex, found)))

    def _parse_terminal_intersection(self) -> Terminal:
        found = [self._parse_terminal_sequence()]
        while self._accept("&"):
            found.append(self._parse_terminal_sequence())
        if len(found) == 1:
            return found[0]
        return Terminal(self._grammar.regexes.intersect(map(self._grammar.to_regex, found)))

    def _parse_terminal_sequence(self) -> Terminal:
        found: list[Terminal] = []
        while self._peek()[1] not in ("|", "&", ")", "]", "", "->"):
            found.append(self._parse_terminal_part())
        self._skip_alias()
        if len(found) == 1:
            return found[0]
        if all(isinstance(one.value, str) for one in found):
            return Terminal("".join(str(one.value) for one in found))
        return Terminal(self._grammar.regexes.concat(map(self._grammar.to_regex, found)))

    def _parse_terminal_part(self) -> Terminal:
        patterns = self._grammar.regexes
        if self._accept("~"):
            found = Terminal(
                patterns.complement(self._grammar.to_regex(self._parse_terminal_atom()))
            )
        else:
            found = self._parse_terminal_atom()
        while (counts := self._parse_quantifier()) is not None:
            found = Terminal(patterns.repeat(self._grammar.to_regex(found), *counts))
        return found

    def _parse_terminal_atom(self) -> Terminal:
        optional = self._peek() == ("sign", "[")
        if not self._accept("(", "["):
            return self._parse_occurrence()
        found = self._parse_terminal_alternatives()
        self._position += 1
        if optional:
            return Terminal(self._grammar.regexes.repeat(self._grammar.to_regex(found), 0, 1))
        return found


def _char_code(leaf: Terminal) -> int:
    return ord(leaf.value) if isinstance(leaf.value, str) else 0
