"""Writes pipelines of Go's templates as expressions of Jinja.

Every result is in parentheses or a single word, so it can be part of another expression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from dragoman.errors import InvalidValue
from dragoman.prompt.go_template.nodes import (
    Command,
    Dot,
    Fields,
    Function,
    Literal,
    Operand,
    Pipeline,
    Variable,
)
from dragoman.prompt.go_template.scopes import ROOT, Scopes

# what the fields of Ollama's values are called in the values of our templates
FIELD_NAMES = {
    **{name: name.lower() for name in ("System", "Prompt", "Response", "Suffix", "Messages")},
    **{name: name.lower() for name in ("Tools", "Think", "Role", "Content", "Function", "Name")},
    **{name: name.lower() for name in ("Arguments", "Index", "Type", "Description", "Enum")},
    **{name: name.lower() for name in ("Parameters", "Required", "Properties", "Items")},
    "ThinkLevel": "think_level",
    "IsThinkSet": "is_think_set",
    "Thinking": "reasoning_content",
    "ToolCalls": "tool_calls",
    "ToolName": "name",
    "ToolCallID": "tool_call_id",
    "ID": "id",
}
OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_VERB = re.compile(r"%(.)?", re.DOTALL)


def make_error(problem: str) -> InvalidValue:
    return InvalidValue(f"`template`: {problem}.", param="template")


def quote(text: str) -> str:
    """Write a text as a string of Jinja, which reads escapes as JSON has them."""
    return json.dumps(text, ensure_ascii=False)


class ExpressionWriter:
    """Writes the expressions of one template."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def write_pipeline(self, pipeline: Pipeline) -> str:
        if len(pipeline.commands) == 1 and not isinstance(pipeline.commands[0].words[0], Function):
            return self._write_value(pipeline.commands[0])
        result: list[str] = []
        for command in pipeline.commands:
            result = [self._write_command(command, result)]
        return result[0]

    def _write_value(self, command: Command) -> str:
        if len(command.words) > 1:
            raise make_error("a value that is not a function has arguments")
        return self.write_operand(command.words[0])

    def _write_command(self, command: Command, last: list[str]) -> str:
        """Write a command; `last` has the result of the one before it."""
        function, *words = command.words
        if not isinstance(function, Function):
            if last:
                raise make_error("`|` must be followed by a function")
            return self._write_value(command)
        if function.name in ("printf", "print", "println"):
            return self._write_print(function.name, words, last)
        return self._call(function.name, [*map(self.write_operand, words), *last])

    def write_operand(self, operand: Operand) -> str:
        match operand:
            case Literal(value):
                return self._write_literal(value)
            case Dot():
                return self._scopes.dot
            case Variable(name):
                return self._write_variable(name)
            case Fields(value, names):
                return self._write_fields(self.write_operand(value), names)
            case Function(name):
                return self._call(name, [])
            case Pipeline():
                return self.write_pipeline(operand)

    @staticmethod
    def _write_literal(value: str | float | bool | None) -> str:
        if isinstance(value, str):
            return quote(value)
        if value is None or isinstance(value, bool):
            return str(value).lower()
        return f"({value})"

    def _write_variable(self, name: str) -> str:
        if not name:
            return ROOT
        namespace = self._scopes.find(name)
        if namespace is None:
            raise make_error(f"the variable `${name}` is not declared")
        return f"{namespace}.value"

    @staticmethod
    def _write_fields(value: str, names: Sequence[str]) -> str:
        for name in names:
            if name not in FIELD_NAMES:
                raise make_error(f"the field `.{name}` is not supported")
            value = f"({value} or {{}}).get({quote(FIELD_NAMES[name])})"
        return f"({value})"

    def _call(self, name: str, arguments: list[str]) -> str:
        write = FUNCTIONS.get(name)
        if write is None:
            raise make_error(f"the function `{name}` is not supported")
        least, most, build = write
        if not least <= len(arguments) <= most:
            raise make_error(f"`{name}` has the wrong number of arguments")
        return build(arguments)

    def _write_print(self, name: str, words: Sequence[Operand], last: list[str]) -> str:
        values = [*map(self.write_operand, words), *last]
        if name != "printf":
            # Go writes a space between operands of `print` that are not strings; those are rare
            separator, end = (' ~ " " ~ ', ' ~ "\\n"') if name == "println" else (" ~ ", "")
            return f'("" ~ {separator.join(f"{value}|go_text" for value in values)}{end})'
        pattern = words[0] if words else None
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise make_error("the format of `printf` must be a string")
        return _write_format(pattern.value, values[1:])


def _write_format(pattern: str, values: list[str]) -> str:
    """Write `printf` as parts that are joined."""
    parts, position, number = ['""'], 0, 0
    for match in _VERB.finditer(pattern):
        parts.append(quote(pattern[position : match.start()]))
        position = match.end()
        if match[1] == "%":
            parts.append(quote("%"))
            continue
        if match[1] not in ("s", "d", "v", "q"):
            raise make_error(f"`{match[0]}` is not supported in the format of `printf`")
        if number >= len(values):
            raise make_error("`printf` has too few arguments")
        parts.append(f"({values[number]})|{'go_json' if match[1] == 'q' else 'go_text'}")
        number += 1
    if number < len(values):
        raise make_error("`printf` has too many arguments")
    return f"({' ~ '.join([*parts, quote(pattern[position:])])})"


def _make_joiner(operator: str) -> Callable[[list[str]], str]:
    return lambda arguments: f"({f' {operator} '.join(arguments)})"


def _make_comparison(operator: str) -> Callable[[list[str]], str]:
    def write(arguments: list[str]) -> str:
        first, *others = arguments
        return f"({' or '.join(f'{first} {operator} {other}' for other in others)})"

    return write


def _write_index(arguments: list[str]) -> str:
    value, *keys = arguments
    return f"({value}{''.join(f'[{key}]' for key in keys)})"


def _write_slice(arguments: list[str]) -> str:
    value, *bounds = arguments
    start, end = [*bounds, "", ""][:2]
    return f"({value}[{start}:{end}])"


MANY = 100
# of each function: the fewest and the most arguments, and how it is written
FUNCTIONS: dict[str, tuple[int, int, Callable[[list[str]], str]]] = {
    "and": (1, MANY, _make_joiner("and")),
    "or": (1, MANY, _make_joiner("or")),
    "not": (1, 1, lambda arguments: f"(not {arguments[0]})"),
    "eq": (2, MANY, _make_comparison("==")),
    **{name: (2, 2, _make_comparison(sign)) for name, sign in OPERATORS.items() if name != "eq"},
    "len": (1, 1, lambda arguments: f'(({arguments[0]} or "")|length)'),
    "index": (1, MANY, _write_index),
    "slice": (1, 3, _write_slice),
    "json": (1, 1, lambda arguments: f"({arguments[0]}|go_json)"),
    "currentDate": (0, 0, lambda _: 'strftime_now("%Y-%m-%d")'),
}
