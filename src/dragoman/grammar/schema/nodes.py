"""The nodes that a JSON schema is parsed into: a few simple types that say what it allows.

A schema can express one thing in many ways. The parser turns it into these nodes once, and
everything that writes a grammar, as JSON or in a model's own syntax for arguments, only sees nodes.
Nodes are hashable, and equal if they have the same structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Anything:
    """Any value: the schema `true`."""


@dataclass(frozen=True)
class Nothing:
    """No value: the schema `false`."""


@dataclass(frozen=True)
class Literals:
    """One of these values, each as the JSON text that `json.dumps` writes."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class String:
    min_length: int = 0  # characters
    max_length: int | None = None
    pattern: str | None = None  # found anywhere in the string, as in JSON Schema
    format: str | None = None  # one of `keywords.FORMATS`
    excluded_patterns: tuple[str, ...] = ()  # not found in it; only in `LlguidanceSchema.json_node`


class OpaqueText:
    """A string whose constraint is not a schema: the base of `client.grammar_text.GrammarText`."""


@dataclass(frozen=True)
class Number:
    """A number; the bounds are JSON texts of numbers."""

    integer: bool = False
    minimum: str | None = None
    maximum: str | None = None
    exclusive_minimum: str | None = None
    exclusive_maximum: str | None = None
    multiple_of: str | None = None


@dataclass(frozen=True)
class Array:
    """An array: nodes for its first items, and one for all that follow.

    The last two fields are used only in `LlguidanceSchema.json_node`.
    """

    prefix_items: tuple[Node, ...] = ()
    items: Node = Anything()
    min_items: int = 0
    max_items: int | None = None
    contains: Node = Anything()  # at least one item matches; `Anything` requires none
    unique: bool = False  # all items are different


@dataclass(frozen=True)
class KeyPattern:
    """The property names in which some patterns are found and others are not."""

    matches: tuple[str, ...]
    excludes: tuple[str, ...] = ()

    @property
    def length_quantifier(self) -> str:
        """How long a name may be: llguidance cannot both count characters and match patterns."""
        return "+" if self.matches or self.excludes else "{1,64}"


@dataclass(frozen=True)
class Object:
    """An object: its known properties in order, the required names, and what others may be.

    A property is not an additional one if one of `patterns` is found in its name;
    `pattern_properties` says what it may be then. With patterns, all required names are known.
    The last four fields are used only in `LlguidanceSchema.json_node`.
    """

    properties: tuple[tuple[str, Node], ...] = ()
    required: frozenset[str] = frozenset()
    additional: Node = Anything()  # `Nothing` if there may be no other properties
    patterns: tuple[str, ...] = ()
    pattern_properties: tuple[tuple[KeyPattern, Node], ...] = ()
    min_properties: int = 0
    max_properties: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.properties)


@dataclass(frozen=True)
class AnyOf:
    """What at least one of several nodes allows."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class SchemaReference:
    """What a definition allows; recursive schemas are possible only through references."""

    name: str  # of an entry of `ParsedSchema.definitions`


@dataclass(frozen=True)
class LlguidanceSchema:
    """A schema, as JSON text, that only llguidance's own schema compiler can express.

    It is self-contained: its references stay inside it. If `json_node` is set, we write the JSON
    ourselves: its constraints can only be enforced on JSON, and `schema` states its type only.
    """

    schema: str
    json_node: Object | Array | String | None = None


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

NULL = Literals(("null",))
BOOLEAN = Literals(("true", "false"))


@dataclass(frozen=True)
class ParsedSchema:
    """The root node of a schema, the definitions it refers to, and what is not enforced."""

    root: Node
    definitions: tuple[tuple[str, Node], ...] = ()
    warnings: tuple[str, ...] = ()  # a sentence each, with a JSON pointer
