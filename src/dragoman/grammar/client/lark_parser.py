"""Parses grammars in llguidance's variant of Lark: one definition per line, continued by `|`.

llguidance has validated the grammar before, so errors are not detected here. Constructs that the
grammar of a tool's text cannot use (tokens, schemas, options) raise `UnsupportedSyntax`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.grammar.regex.char_sets import fold_case, get_chars
from dragoman.grammar.regex.regex_builder import RegexBuilder, RegexId
from dragoman.grammar.regex.regex_parser import RegexParser, UnsupportedSyntax

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<regex>/(?:[^/\\\n]|\\.)++/[a-z]*)
    |(?P<unclosed>["/][^\n]*)
    |(?P<line>\n)
    |(?P<space>[ \t\r]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_\-]*)
    |(?P<number>\d+)
    |(?P<sign>->|\.\.|%\w+|::|.)""",
    re.VERBOSE,
)
_NUMBER = r"(?:{0})|(?:{0}\.[0-9]*|\.{0})(?:[eE][+\-]?{0})?|{0}[eE][+\-]?{0}".format("[0-9]+")
_FLOAT = r"(?:{0}\.[0-9]*|\.{0})(?:[eE][+\-]?{0})?|{0}[eE][+\-]?{0}".format("[0-9]+")
COMMON_TERMINALS = {  # of `%import common`
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
    """A literal text or a regular expression; `occurrence` distinguishes its uses in the rules."""

    value: str | RegexId
    occurrence: int = 0


@dataclass(frozen=True)
class RuleCall:
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
    """The rules of a grammar by name; `ignored` terminals may come between two others."""

    def __init__(self, source: str) -> None:
        self.regexes = RegexBuilder()
        self.rules: dict[str, Expression] = {}
        self.ignored: tuple[Terminal, ...] = ()
        self._terminals: dict[str, Tokens | Terminal] = {}
        self._occurrences = 0
        rules: dict[str, Tokens] = {}
        ignored: list[Tokens] = []
        for definition in _split_definitions(source):
            if definition[0] in (("sign", "!"), ("sign", "?")):  # only affect syntax trees
                definition = definition[1:]
            match definition:
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
                case [("name", _), (_, token), *_] | [(_, token), *_]:
                    raise UnsupportedSyntax(f"`{token}`")
        for name, body in rules.items():
            self.rules[name] = _DefinitionParser(self, body).parse_rule()
        self.ignored = tuple(map(self._parse_terminal, ignored))

    def _import(self, tokens: Tokens) -> None:
        module, *names = [text for kind, text in tokens if kind == "name"] or [""]
        if module != "common":
            raise UnsupportedSyntax("an import of anything but `common`")
        new_names = names[-1:] if ("sign", "->") in tokens else names
        for new_name, name in zip(new_names, names[: len(new_names)], strict=True):
            self._terminals[new_name] = self.parse_regex(COMMON_TERMINALS[name])

    def get_terminal(self, name: str) -> Terminal:
        terminal = self._terminals[name]
        if not isinstance(terminal, Terminal):
            terminal = self._terminals[name] = self._parse_terminal(terminal)
        return terminal

    def _parse_terminal(self, body: Tokens) -> Terminal:
        return _DefinitionParser(self, body).parse_terminal()

    def parse_regex(self, source: str, flags: str = "") -> Terminal:
        return Terminal(RegexParser(self.regexes, source, flags).parse())

    def parse_string(self, token: str) -> Terminal:
        """Parse a quoted literal; one that ignores case (`"a"i`) becomes a regular expression."""
        as_json = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", token.removesuffix("i"))
        text = json.loads(as_json)
        if not token.endswith("i"):
            return Terminal(text)
        chars = (self.regexes.add_char(fold_case(get_chars(char))) for char in text)
        return Terminal(self.regexes.concat(chars))

    def make_occurrence(self, terminal: Terminal) -> Terminal:
        self._occurrences += 1
        return Terminal(terminal.value, self._occurrences)

    def to_regex(self, terminal: Terminal) -> RegexId:
        value = terminal.value
        return self.regexes.add_literal(value) if isinstance(value, str) else value


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _split_definitions(source: str) -> Iterator[Tokens]:
    """Split a grammar into definitions and directives; lines that start with `|` continue one."""
    definition: Tokens = []
    is_new_line = False
    for match in _TOKEN.finditer(source):
        kind, text = str(match.lastgroup), match.group()
        if kind == "line":
            is_new_line = True
        elif kind not in ("space", "comment"):
            if is_new_line and definition and text != "|":
                yield definition
                definition = []
            is_new_line = False
            # what is not closed has no place in any definition
            definition.append(("sign", text[0]) if kind == "unclosed" else (kind, text))
    if definition:
        yield definition


class _DefinitionParser:
    """Parses the body of one rule or terminal.

    The body of a terminal is a regular expression that may use `&`, `~` and other terminals.
    """

    def __init__(self, grammar: LarkGrammar, tokens: Tokens) -> None:
        self._grammar = grammar
        self._regexes = grammar.regexes
        self._tokens = tokens
        self._position = 0

    def parse_rule(self) -> Expression:
        expression = self._parse_alternatives()
        self._expect_end()
        return expression

    def parse_terminal(self) -> Terminal:
        terminal = self._parse_terminal_alternatives()
        self._expect_end()
        return terminal

    def _expect_end(self) -> None:
        if self._position < len(self._tokens):
            raise UnsupportedSyntax(f"`{self._tokens[self._position][1]}`")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")

    def _accept(self, *signs: str) -> bool:
        """Consume the next token if it is one of these signs."""
        is_next = self._peek() in [("sign", sign) for sign in signs]
        self._position += is_next
        return is_next

    # rules

    def _parse_alternatives(self) -> Expression:
        parts = [self._parse_sequence()]
        while self._accept("|"):
            parts.append(self._parse_sequence())
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _parse_sequence(self) -> Expression:
        parts = []
        while self._peek()[1] not in ("|", ")", "]", "", "->"):
            parts.append(self._parse_quantifiers(self._parse_part()))
        self._skip_alias()
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _skip_alias(self) -> None:
        if self._accept("->"):
            self._position += 1

    def _parse_part(self) -> Expression:
        kind, text = self._peek()
        if kind == "name" and not _is_terminal(text):
            self._position += 1
            return RuleCall(text)
        if self._accept("("):
            expression = self._parse_alternatives()
            self._position += 1
            return expression
        if self._accept("["):
            expression = self._parse_alternatives()
            self._position += 1
            return Repetition(expression, 0, 1)
        return self._parse_occurrence()

    def _parse_quantifiers(self, expression: Expression) -> Expression:
        while (counts := self._parse_quantifier()) is not None:
            expression = Repetition(expression, *counts)
        return expression

    def _parse_quantifier(self) -> tuple[int, int | None] | None:
        """Return the least and greatest count, or None if no quantifier comes next."""
        if self._accept("*"):
            return 0, None
        if self._accept("+"):
            return 1, None
        if self._accept("?"):
            return 0, 1
        if self._peek() == ("sign", "~") and self._tokens[self._position + 1][0] == "number":
            self._position += 1
            min_count = self._parse_count()
            return min_count, self._parse_count() if self._accept("..") else min_count
        if not self._accept("{"):
            return None
        min_count = self._parse_count() if self._peek()[0] == "number" else 0
        max_count: int | None = min_count
        if self._accept(","):
            max_count = self._parse_count() if self._peek()[0] == "number" else None
        self._position += 1
        return min_count, max_count

    def _parse_count(self) -> int:
        self._position += 1
        return int(self._tokens[self._position - 1][1])

    def _parse_occurrence(self) -> Terminal:
        return self._grammar.make_occurrence(self._parse_token())

    def _parse_token(self) -> Terminal:
        kind, text = self._peek()
        self._position += 1
        match kind:
            case "text":
                first = self._grammar.parse_string(text)
                if not self._accept(".."):
                    return first
                last = self._grammar.parse_string(self._peek()[1])
                self._position += 1
                return Terminal(
                    self._regexes.add_char(((_read_code_point(first), _read_code_point(last)),))
                )
            case "regex":
                source, _, flags = text[1:].rpartition("/")
                return self._grammar.parse_regex(source, flags)
            case "name":
                return self._grammar.get_terminal(text)
        raise UnsupportedSyntax(f"`{text}`")

    # terminals

    def _parse_terminal_alternatives(self) -> Terminal:
        parts = [self._parse_terminal_intersection()]
        while self._accept("|"):
            parts.append(self._parse_terminal_intersection())
        if len(parts) == 1:
            return parts[0]
        return Terminal(self._regexes.union(map(self._grammar.to_regex, parts)))

    def _parse_terminal_intersection(self) -> Terminal:
        parts = [self._parse_terminal_sequence()]
        while self._accept("&"):
            parts.append(self._parse_terminal_sequence())
        if len(parts) == 1:
            return parts[0]
        return Terminal(self._regexes.intersect(map(self._grammar.to_regex, parts)))

    def _parse_terminal_sequence(self) -> Terminal:
        parts: list[Terminal] = []
        while self._peek()[1] not in ("|", "&", ")", "]", "", "->"):
            parts.append(self._parse_terminal_part())
        self._skip_alias()
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(part.value, str) for part in parts):
            return Terminal("".join(str(part.value) for part in parts))
        return Terminal(self._regexes.concat(map(self._grammar.to_regex, parts)))

    def _parse_terminal_part(self) -> Terminal:
        is_negated = self._accept("~")
        terminal = self._parse_terminal_atom()
        if is_negated:
            terminal = Terminal(self._regexes.complement(self._grammar.to_regex(terminal)))
        while (counts := self._parse_quantifier()) is not None:
            terminal = Terminal(self._regexes.repeat(self._grammar.to_regex(terminal), *counts))
        return terminal

    def _parse_terminal_atom(self) -> Terminal:
        is_optional = self._peek() == ("sign", "[")
        if not self._accept("(", "["):
            return self._parse_occurrence()
        terminal = self._parse_terminal_alternatives()
        self._position += 1
        if is_optional:
            return Terminal(self._regexes.repeat(self._grammar.to_regex(terminal), 0, 1))
        return terminal


def _read_code_point(terminal: Terminal) -> int:
    return ord(terminal.value) if isinstance(terminal.value, str) else 0
