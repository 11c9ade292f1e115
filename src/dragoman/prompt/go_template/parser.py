"""Parses templates in Go's language."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.prompt.go_template.lexer import ActionText, Word, fail, split_template
from dragoman.prompt.go_template.nodes import (
    Action,
    Branch,
    Command,
    Dot,
    Fields,
    Function,
    Jump,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)

MAX_DEPTH = 50  # of blocks and parentheses
BRANCHES = ("if", "with", "range")
JUMPS = ("break", "continue")
UNSUPPORTED = ("define", "template", "block")
ESCAPES = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
MAX_CODE_POINT, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:(?:x(?={_HEX}{{2}})|u(?={_HEX}{{4}})|U(?={_HEX}{{8}}))(?P<hex>(?<=x).{{2}}|(?<=u).{{4}}"
    r"|(?<=U).{8})|(?P<octal>[0-7]{3})|.)",
    re.DOTALL,
)
CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}


def parse_template(source: str) -> tuple[Node, ...]:
    """Parse a template; one that is malformed is the client's error."""
    return TemplateParser(source).parse()


class TemplateParser:
    """Parses the blocks of a template."""

    def __init__(self, source: str) -> None:
        self._parts = split_template(source)
        self._depth = 0
        self._loops = 0

    def parse(self) -> tuple[Node, ...]:
        nodes, end = self._parse_list()
        if end is not None:
            fail(f"`{end.words[0].text}` has no block to end", end.line)
        return nodes

    def _parse_list(self) -> tuple[tuple[Node, ...], ActionText | None]:
        """Parse up to `else` or `end`, which is returned, or to the end of the template."""
        nodes: list[Node] = []
        for part in self._parts:
            if isinstance(part, str):
                nodes += [Text(part)] if part else []
                continue
            name = part.words[0].text if part.words else ""
            if name in ("else", "end"):
                return tuple(nodes), part
            nodes.append(self._parse_action(part, name))
        return tuple(nodes), None

    def _parse_action(self, part: ActionText, name: str) -> Node:
        if name in BRANCHES:
            return self._parse_branch(name, part.words[1:], part.line)
        if name in UNSUPPORTED:
            fail(f"`{name}` is not supported", part.line)
        if name in JUMPS:
            if not self._loops:
                fail(f"`{name}` is outside of `range`", part.line)
            return Jump(name)
        return Action(PipelineParser(part.words, part.line).parse())

    def _parse_branch(self, kind: str, words: list[Word], line: int) -> Branch:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail("blocks are nested too deeply", line)
        pipeline = PipelineParser(words, line).parse(is_range=kind == "range")
        self._loops += kind == "range"
        body, end = self._parse_list()
        self._loops -= kind == "range"
        if end is None:
            fail(f"`{kind}` has no `end`", line)
        otherwise: tuple[Node, ...] = ()
        rest = end.words[1:]
        if end.words[0].text == "else" and rest:
            if rest[0].text not in ("if", "with") or kind == "range":
                fail(f"`else {rest[0].text}` is not understood", end.line)
            otherwise = (self._parse_branch(rest[0].text, rest[1:], end.line),)
        elif end.words[0].text == "else":
            otherwise, last = self._parse_list()
            if last is None or last.words[0].text != "end":
                fail(f"`{kind}` has no `end`", line)
        self._depth -= 1
        return Branch(kind, pipeline, body, otherwise)


class PipelineParser:
    """Parses the words of an action."""

    def __init__(self, words: list[Word], line: int) -> None:
        self._words = words
        self._position = 0
        self._line = line
        self._depth = 0

    def parse(self, *, is_range: bool = False) -> Pipeline:
        variables, declares = self._parse_variables(is_range)
        commands = self._parse_commands()
        if self._position < len(self._words):
            fail(f"`{self._words[self._position].text}` is not expected", self._line)
        return Pipeline(commands, variables, declares)

    def _peek(self, offset: int = 0) -> Word:
        position = self._position + offset
        return self._words[position] if position < len(self._words) else Word("end", "", True)

    def _parse_variables(self, is_range: bool) -> tuple[tuple[str, ...], bool]:
        """Parse `$a :=`, `$a =` or, in a range, `$a, $b :=`."""
        names: list[str] = []
        for offset in (0, 2):
            variable, sign = self._peek(offset), self._peek(offset + 1)
            if variable.kind != "variable" or len(variable.text) == 1:
                break
            names.append(variable.text[1:])
            if sign.text in (":=", "="):
                self._position += offset + 2
                return tuple(names), sign.text == ":="
            if sign.text != "," or not is_range:
                break
        return (), False

    def _parse_commands(self) -> tuple[Command, ...]:
        commands = [self._parse_command()]
        while self._peek().text == "|":
            self._position += 1
            commands.append(self._parse_command())
        return tuple(commands)

    def _parse_command(self) -> Command:
        words = [*self._parse_operands()]
        if not words:
            fail("a value is missing", self._line)
        return Command(tuple(words))

    def _parse_operands(self) -> Iterator[Operand]:
        while self._peek().kind != "end" and self._peek().text not in ("|", ")"):
            operand = self._parse_operand(self._peek())
            names: list[str] = []
            while self._peek().kind == "field" and not self._peek().follows_space:
                names.append(self._peek().text[1:])
                self._position += 1
            if names and isinstance(operand, Fields):
                operand = Fields(operand.operand, (*operand.names, *names))
            elif names:
                operand = Fields(operand, tuple(names))
            yield operand

    def _parse_operand(self, word: Word) -> Operand:
        self._position += 1
        match word.kind:
            case "string":
                return Literal(read_string(word.text, self._line))
            case "number":
                return Literal(read_number(word.text, self._line))
            case "field":
                return Fields(Dot(), (word.text[1:],))
            case "variable":
                return Variable(word.text[1:])
            case "name" if word.text in CONSTANTS:
                return Literal(CONSTANTS[word.text])
            case "name":
                return Function(word.text)
        if word.text == ".":
            return Dot()
        if word.text != "(":
            fail(f"`{word.text}` is not expected", self._line)
        return self._parse_parentheses()

    def _parse_parentheses(self) -> Pipeline:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail("parentheses are nested too deeply", self._line)
        commands = self._parse_commands()
        if self._peek().text != ")":
            fail("`(` has no `)`", self._line)
        self._position += 1
        self._depth -= 1
        return Pipeline(commands)


def read_string(text: str, line: int) -> str | int:
    """Return the value of a string of Go; one in single quotes is a character's number."""
    if text[0] == "`":
        return text[1:-1].replace("\r", "")

    def replace(match: re.Match[str]) -> str:
        code = match["hex"] or match["octal"]
        if code is None and match[0][1:] not in ESCAPES:
            fail(f"`{match[0]}` is no escape of a string", line)
        number = int(code, 16 if match["hex"] else 8) if code else 0
        if number > MAX_CODE_POINT or SURROGATES[0] <= number <= SURROGATES[1]:
            fail(f"`{match[0]}` is no character", line)
        return chr(number) if code else ESCAPES[match[0][1:]]

    value = _ESCAPE.sub(replace, text[1:-1])
    if text[0] == "'" and len(value) != 1:
        fail(f"{text[:40]} is not one character", line)
    return ord(value) if text[0] == "'" else value


def read_number(text: str, line: int) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        fail(f"{text[:40]} is not a number", line)
