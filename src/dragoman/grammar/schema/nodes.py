"""What a JSON schema allows, in a few plain shapes.

A schema can say one thing in many ways. `schema` turns it into these nodes once, and everything
that writes a grammar, in JSON or in a model's own way of writing arguments, walks the nodes only.
Nodes are equal when they allow the same, as far as one can see, and can be keys of a dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Anything:
    """Any value at all."""


@dataclass(frozen=True)
class Nothing:
    """No value: what a schema says that is `false`."""


@dataclass(frozen=True)
class Literals:
    """One of these values; each is the JSON text of one, as `json.dumps` writes it."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class String:
    """A string."""

    min_length: int = 0  # characters
    max_length: int | None = None
    pattern: str | None = None  # found anywhere in it, as JSON schema has it
    format: str | None = None  # one of those that are enforced


class OpaqueText:
    """A string whose constraint is not a schema: the base of `client.grammar_text.GrammarText`."""


@dataclass(frozen=True)
class Number:
    """A number; bounds are the JSON texts of numbers."""

    integer: bool = False
    minimum: str | None = None
    maximum: str | None = None
    exclusive_minimum: str | None = None  # exclusiveMinimum
    exclusive_maximum: str | None = None
    multiple_of: str | None = None


@dataclass(frozen=True)
class Array:
    """A list: nodes for its first items, one for all that follow."""

    prefix_items: tuple[Node, ...] = ()
    items: Node = Anything()
    min_items: int = 0
    max_items: int | None = None


@dataclass(frozen=True)
class KeyPattern:
    """Names of members by patterns that are found in them, and others that are not."""

    matches: tuple[str, ...]
    excludes: tuple[str, ...] = ()

    @property
    def length_quantifier(self) -> str:
        """How many letters: engines cannot both count them and look for patterns."""
        return "+" if self.matches or self.excludes else "{1,64}"


@dataclass(frozen=True)
class Object:
    """An object: its known members in order, those that must be there, and what others may be.

    Names that one of `patterns` is found in are no others: what those may be is in `keyed`.
    """

    properties: tuple[tuple[str, Node], ...] = ()
    required: frozenset[str] = frozenset()
    additional: Node = Anything()  # `Nothing` where no others may be
    patterns: tuple[str, ...] = ()  # none but in what a `Foreign` holds
    pattern_properties: tuple[tuple[KeyPattern, Node], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.properties)


@dataclass(frozen=True)
class AnyOf:
    """What one of several nodes allows."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class SchemaReference:
    """What a definition allows; the only way to go round in circles."""

    name: str  # of an entry of `Checked.definitions`


@dataclass(frozen=True)
class LlguidanceSchema:
    """A schema that only the grammar engine's own reader can put together, as JSON text.

    It is whole: what it refers to is in it. `own` is what we write as JSON ourselves: an object
    whose names are told by patterns, of which the text then names the kind only.
    """

    schema: str
    object_node: Object | None = None


Node: TypeAlias = (
    Anything
    | Nothing
    | Literals
    | String
    | OpaqueText
    | Number
    | Array
    | Object
    | AnyOf
    | SchemaReference
    | LlguidanceSchema
)

TRUE, FALSE, NULL = Literals(("true",)), Literals(("false",)), Literals(("null",))
BOOLEAN = Literals(("true", "false"))


@dataclass(frozen=True)
class ParsedSchema:
    """A schema that was read: its root, what it defines, and what will not be enforced."""

    root: Node
    definitions: tuple[tuple[str, Node], ...] = ()
    warnings: tuple[str, ...] = ()  # a sentence each, with a JSON pointer
