"""What a JSON schema allows, in a few plain shapes.

A schema can say one thing in many ways. `schema` turns it into these nodes once, and everything
that writes a grammar, in JSON or in a model's own way of writing arguments, walks the nodes only.
Nodes are equal when they allow the same, as far as one can see, and can be keys of a dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.grammar.client.grammar_text import Worded


@dataclass(frozen=True)
class Anything:
    """Any value at all."""


@dataclass(frozen=True)
class Nothing:
    """No value: what a schema says that is `false`."""


@dataclass(frozen=True)
class Exactly:
    """One of these values; each is the JSON text of one, as `json.dumps` writes it."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """A string."""

    least: int = 0  # characters
    most: int | None = None
    pattern: str | None = None  # found anywhere in it, as JSON schema has it
    format: str | None = None  # one of those that are enforced


@dataclass(frozen=True)
class Number:
    """A number; bounds are the JSON texts of numbers."""

    integer: bool = False
    minimum: str | None = None
    maximum: str | None = None
    above: str | None = None  # exclusiveMinimum
    below: str | None = None
    multiple: str | None = None


@dataclass(frozen=True)
class Array:
    """A list: nodes for its first items, one for all that follow."""

    first: tuple[Node, ...] = ()
    rest: Node = Anything()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Keys:
    """Names of members by patterns that are found in them, and others that are not."""

    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    @property
    def count(self) -> str:
        """How many letters: engines cannot both count them and look for patterns."""
        return "+" if self.has or self.lacks else "{1,64}"


@dataclass(frozen=True)
class Object:
    """An object: its known members in order, those that must be there, and what others may be.

    Names that one of `patterns` is found in are no others: what those may be is in `keyed`.
    """

    members: tuple[tuple[str, Node], ...] = ()
    required: frozenset[str] = frozenset()
    others: Node = Anything()  # `Nothing` where no others may be
    patterns: tuple[str, ...] = ()  # none but in what a `Foreign` holds
    keyed: tuple[tuple[Keys, Node], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.members)


@dataclass(frozen=True)
class Either:
    """What one of several nodes allows."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Named:
    """What a definition allows; the only way to go round in circles."""

    name: str  # of an entry of `Checked.definitions`


@dataclass(frozen=True)
class Foreign:
    """A schema that only the grammar engine's own reader can put together, as JSON text.

    It is whole: what it refers to is in it. `own` is what we write as JSON ourselves: an object
    whose names are told by patterns, of which the text then names the kind only.
    """

    schema: str
    own: Object | None = None


Node: TypeAlias = (
    Anything
    | Nothing
    | Exactly
    | Text
    | Worded
    | Number
    | Array
    | Object
    | Either
    | Named
    | Foreign
)

TRUE, FALSE, NULL = Exactly(("true",)), Exactly(("false",)), Exactly(("null",))
BOOLEAN = Exactly(("true", "false"))


@dataclass(frozen=True)
class Checked:
    """A schema that was read: its root, what it defines, and what will not be enforced."""

    root: Node
    definitions: tuple[tuple[str, Node], ...] = ()
    loose: tuple[str, ...] = ()  # a sentence each, with a JSON pointer
