"""What a template in Go's language is parsed to."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Text(Struct, frozen=True):
    """Text that is written as it is."""

    text: str


class Literal(Struct, frozen=True):
    """A string, a number, true, false or nil."""

    value: str | int | float | bool | None


class Dot(Struct, frozen=True):
    """The current value: `.`"""


class Variable(Struct, frozen=True):
    """`$name`; the name is empty for `$`, the value that the template is run with."""

    name: str


class Function(Struct, frozen=True):
    """A function without its arguments."""

    name: str


class Fields(Struct, frozen=True):
    """Fields of a value: `.Function.Name`."""

    operand: Operand
    names: tuple[str, ...]


class Command(Struct, frozen=True):
    """A value, or a function with its arguments."""

    words: tuple[Operand, ...]


class Pipeline(Struct, frozen=True):
    """Commands; each is the last argument of the next. `variables` receive the result."""

    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # `:=`, not `=`


class Action(Struct, frozen=True):
    """A pipeline whose result is written, unless a variable receives it."""

    pipeline: Pipeline


class Branch(Struct, frozen=True):
    """`if`, `with` or `range`."""

    kind: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


class Jump(Struct, frozen=True):
    """`break` or `continue`."""

    kind: str


Operand: TypeAlias = Literal | Dot | Variable | Function | Fields | Pipeline
Node: TypeAlias = Text | Action | Branch | Jump


def find_fields(node: Node | Operand | Command) -> set[str]:
    """Return the names of all fields in a part of a template."""
    match node:
        case Fields(operand, names):
            return find_fields(operand) | set(names)
        case Pipeline(commands):
            return _find_in(commands)
        case Command(words):
            return _find_in(words)
        case Action(pipeline):
            return find_fields(pipeline)
        case Branch(_, pipeline, body, otherwise):
            return find_fields(pipeline) | _find_in(body) | _find_in(otherwise)
        case _:
            return set()


def _find_in(nodes: tuple[Node | Operand | Command, ...]) -> set[str]:
    return {name for node in nodes for name in find_fields(node)}
