"""Reads a client's JSON schema into nodes.

Every schema is read as the parts it is made of: what it says about each kind of value, its `enum`,
what it refers to, and each of `allOf`, `anyOf` and `oneOf`. The parts are merged. What comes of it
never allows more than the schema, but for what `Checked.loose` says:

- Where nodes cannot say it, the grammar engine's own reader is asked to put the whole together, and
  the answer is a `Foreign` node. Where that cannot either, a strict reading refuses the word, and
  another leaves it out and says so.
- A schema may allow less than it says: where it names no `type`, but has words that are about
  objects, or lists, or texts, or numbers, it is read as one of these.
- Bounds that no answer will ever reach are drawn nearer, and a bound that the engine would round is
  rounded inwards.

Definitions are read when something refers to them, one by one, so that neither their number nor
their circles make anything go deep. A definition that is needed for a merge is read at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from dragoman.errors import BadRequest
from dragoman.grammar.schema import bounds, keywords, limits, simplify
from dragoman.grammar.schema.intersect import NodeIntersector
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.llguidance_schema import SchemaExporter, allows_escaped_names
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Number,
    Object,
    ParsedSchema,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.normalize import (
    CircularReference,
    TooManyReferences,
    normalize_definitions,
)
from dragoman.grammar.schema.overapproximate import overapproximate_schema
from dragoman.grammar.schema.pattern_properties import build_pattern_object
from dragoman.grammar.schema.property_limits import (
    limit_property_count,
    require_exactly_one,
    restrict_properties,
)
from dragoman.grammar.schema.simplify import ANYTHING, NOTHING, union_nodes
from dragoman.output.arguments.json_pointer import (
    UnresolvedReference,
    escape_token,
    resolve_reference,
)
from dragoman.output.arguments.parameter_types import SYNONYMS
from dragoman.types import Json

_ENDS = {
    "minimum": "minimum",
    "exclusiveMinimum": "exclusive_minimum",
    "maximum": "maximum",
    "exclusiveMaximum": "exclusive_maximum",
    "multipleOf": "multiple_of",
}
_TEXT = {
    "maxLength": "max_length",
    "minLength": "min_length",
    "format": "format",
    "pattern": "pattern",
}


def parse_schema(schema: Json, *, param: str, strict: bool, for_tool: bool = False) -> ParsedSchema:
    """A schema as nodes. `at` is what the client calls its place; errors name it.

    The parameters of a `tool` are an object, whatever else they are declared to be, and may name
    types in a few ways that are not those of JSON schema.
    """
    if for_tool and (schema is None or schema == {}):
        return ParsedSchema(Object((), frozenset(), NOTHING))
    reader = _SchemaParser(schema, limits.SchemaBudget(param), strict, SYNONYMS if for_tool else {})
    try:
        limits.check_size(schema, reader.budget)
        return reader.checked(tool=for_tool)
    except RecursionError:
        reader.budget.reject("more levels than can be followed")


class _SchemaParser:
    def __init__(
        self, schema: Json, budget: limits.SchemaBudget, strict: bool, synonyms: dict[str, str]
    ) -> None:
        self.budget = budget
        self._root, self._strict, self._synonyms = schema, strict, synonyms
        self._loose: dict[str, str] = {}  # by pointer
        self._targets: dict[str, Json] = {"": schema}  # what is referred to, by pointer
        self._known: dict[str, Node | None] = {}  # None while it is read
        self._glimpses: dict[str, Node] = {}
        self._waiting: list[str] = [""]
        self._judge = LlguidanceChecker(budget)
        self._merger = NodeIntersector(self._definition, self._outline, self._judge, budget)
        self._depth = 0
        self._wholes = self._whole_text = 0

    def checked(self, *, tool: bool) -> ParsedSchema:
        while self._waiting:
            self._definition(self._waiting.pop())
        known = {name: node for name, node in self._known.items() if node is not None}
        root = known[""]
        if tool:
            root = self._merger.intersect(Object(), root) or root
        try:
            found, definitions = normalize_definitions(root, known)
            if isinstance(found, Nothing) and tool and not isinstance(known[""], Nothing):
                self._wrong("", "must allow an object")
        except CircularReference as error:
            self._wrong(error.name, "refers only to itself")
        except TooManyReferences:
            self.budget.reject("too many definitions that refer to each other")
        if isinstance(found, Nothing):
            self._wrong("", "allows no value")
        sentences = list(self._loose.values())
        if len(sentences) > limits.MAX_WARNINGS:
            more = len(sentences) - limits.MAX_WARNINGS
            sentences[limits.MAX_WARNINGS :] = [
                f"`{self.budget.param}`: {more} more are not enforced."
            ]
        return ParsedSchema(found, definitions, tuple(sentences))

    # errors

    def _wrong(self, where: str, what: str) -> NoReturn:
        raise BadRequest(
            f"{self._place(where)} {what}.", param=self.budget.param, code="invalid_schema"
        )

    def _unenforced(self, where: str) -> None:
        if self._strict:
            raise BadRequest(
                f"{self._place(where)} cannot be enforced here, as `strict` demands.",
                param=self.budget.param,
                code="unsupported_keyword",
            )
        self._loose.setdefault(where, f"{self._place(where)} is not enforced.")

    def _place(self, where: str) -> str:
        if not where:
            return f"`{self.budget.param}`"
        shown = where if len(where) <= 200 else f"{where[:100]}...{where[-100:]}"
        plain = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in shown)
        return f"`{self.budget.param}`: `{plain}`"

    # definitions

    def _definition(self, pointer: str) -> Node | None:
        """What a pointer leads to; None while that is being read."""
        if pointer not in self._known:
            self._known[pointer] = None
            self._known[pointer] = self._node(self._targets[pointer], pointer)
        return self._known[pointer]

    def _outline(self, pointer: str) -> Node:
        """No less than what a pointer leads to, at any time."""
        found = self._definition(pointer)
        if found is None and pointer not in self._glimpses:
            self._glimpses[pointer] = overapproximate_schema(self._targets[pointer])
        return self._glimpses[pointer] if found is None else found

    def _reference(self, reference: str, where: str) -> SchemaReference:
        pointer, target = self._found(reference, where)
        seen = {pointer}
        while isinstance(target, dict) and isinstance(target.get("$ref"), str):
            then, target = self._found(target["$ref"], where)
            if then in seen:
                self._wrong(where, "refers only to itself")
            if len(seen) >= limits.MAX_DEPTH:
                self.budget.reject(f"references over more than {limits.MAX_DEPTH} others")
            seen.add(then)
        if pointer not in self._known:
            self._waiting.append(pointer)
        return SchemaReference(pointer)

    def _found(self, reference: str, where: str) -> tuple[str, Json]:
        try:
            pointer, target = resolve_reference(self._root, reference)
        except UnresolvedReference as error:
            self._wrong(where, str(error))
        self._targets[pointer] = target
        return pointer, target

    # schemas

    def _node(self, schema: Json, where: str) -> Node:
        self.budget.count_node()
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        if not isinstance(schema, dict):
            self._wrong(where, "must be a schema: an object, `true` or `false`")
        if self._depth >= limits.MAX_DEPTH:
            self.budget.reject(f"more than {limits.MAX_DEPTH} levels")
        self._depth += 1
        try:
            return self._joined(schema, where)
        finally:
            self._depth -= 1

    def _joined(self, schema: dict[str, Json], where: str) -> Node:
        self._check(schema, where)
        schema = limits.clamp_upper_bounds(schema)
        if keywords.is_false_schema(schema):
            return NOTHING
        wants: list[str] = []  # what only the engine's own reader may be able to do
        node: Node = ANYTHING
        for place, part in self._parts(schema, where, wants):
            met = self._merger.intersect(node, part)
            if met is None:
                wants.append(place)
            else:
                node = met
        if simplify.count_nodes(node) > limits.MAX_NODES:
            self.budget.reject(f"more choices than {limits.MAX_NODES:,} once it is put together")
        whole = self._whole(schema, where, node) if wants else None
        if whole is not None:
            return whole
        for place in wants:
            self._unenforced(place)
        return node

    def _check(self, schema: dict[str, Json], where: str) -> None:
        """Refuses what is no schema, and notes what cannot be enforced."""
        found = keywords.find_invalid_keyword(schema, self._synonyms)
        if found is not None:
            self._wrong(f"{where}/{escape_token(found[0])}", found[1])
        for word, most in limits.MAX_LOWER_BOUNDS.items():
            if schema.get(word, 0) > most:
                self.budget.reject(f"a `{word}` above {most:,}")
        for word, most in limits.MAX_LENGTHS.items():
            if len(schema.get(word, ())) > most:
                self.budget.reject(f"`{word}` longer than {most:,}")
        names = (*schema.get("properties", ()), *schema.get("required", ()))
        if any(len(name) > limits.MAX_NAME_LENGTH for name in names):
            self.budget.reject(f"a name longer than {limits.MAX_NAME_LENGTH:,}")
        for word in keywords.UNENFORCED_KEYWORDS:
            if keywords.is_unenforced(word, schema, self._synonyms) and (word != "$id" or where):
                self._unenforced(f"{where}/{word}")

    def _parts(
        self, schema: dict[str, Json], where: str, wants: list[str]
    ) -> Iterator[tuple[str, Node]]:
        """All that a schema demands, with the place where it does."""
        yield where, self._kinds(schema, where, wants)
        for word in ("enum", "const"):
            if word in schema:
                values = schema[word] if word == "enum" else [schema[word]]
                texts = tuple(dict.fromkeys(map(json.dumps, values)))
                self.budget.count_values(texts)
                yield f"{where}/{word}", Literals(texts)
        if "$ref" in schema:
            yield f"{where}/$ref", self._reference(schema["$ref"], f"{where}/$ref")
        for index, one in enumerate(schema.get("allOf", ())):
            place = f"{where}/allOf/{index}"
            yield place, self._node(one, place)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                place = f"{where}/{word}"
                options = [
                    self._node(one, f"{place}/{index}") for index, one in enumerate(schema[word])
                ]
                if word == "oneOf" and not self._merger.are_mutually_exclusive(options):
                    choices = keywords.required_only_options(schema[word])
                    made = None if choices is None else require_exactly_one(choices)
                    wants += [] if made is not None else [place]
                    options = options if made is None else made
                yield place, union_nodes(options)

    def _whole(self, schema: dict[str, Json], where: str, node: Node) -> Node | None:
        """A schema as the engine's own reader puts it together, if it can.

        The node allows no less than the schema.
        """
        self._wholes += 1
        if self._wholes > limits.MAX_EXPORTS:
            return None
        made = SchemaExporter(self._read_target, self._loose, self._synonyms, self.budget).export(
            schema, where
        )
        if made is None or allows_escaped_names(made):
            return None
        merged = (keywords.APPLICATORS | {"enum", "const"}) & schema.keys()
        meant = [] if merged or "type" in made else keywords.implied_types(schema)
        kinds = meant or simplify.node_types(
            self._outline(node.name) if isinstance(node, SchemaReference) else node
        )
        # the kinds help whoever writes it, but the engine's reader may not like them there
        ways = [{"type": kinds} | made] if kinds else []
        for way in ways if meant else [*ways, made]:
            text = json.dumps(way)
            self._whole_text += len(text)
            if self._whole_text > limits.MAX_EXPORT_TEXT:
                return None
            said = self._judge.check(way)
            if said != "unsupported":
                found = NOTHING if said == "empty" else LlguidanceSchema(text)
                return simplify.imply_types([found], meant) if meant else found
        return None

    def _read_target(self, reference: str, where: str) -> tuple[str, Json]:
        pointer, target = self._found(reference, where)
        self._definition(pointer)
        return pointer, target

    # kinds of values

    def _kinds(self, schema: dict[str, Json], where: str, wants: list[str]) -> Node:
        said = keywords.declared_types(schema, self._synonyms)
        if said is not None:
            return union_nodes([self._kind(kind, schema, where, wants) for kind in said])
        meant = keywords.implied_types(schema)
        return simplify.imply_types(
            [self._kind(kind, schema, where, wants) for kind in meant], meant
        )

    def _kind(self, kind: str, schema: dict[str, Json], where: str, wants: list[str]) -> Node:
        match kind:
            case "string":
                return self._text(schema, where)
            case "number" | "integer":
                return self._number(schema, where, integer=kind == "integer")
            case "array":
                return self._array(schema, where)
            case "object":
                return self._object(schema, where, wants)
        return BOOLEAN if kind == "boolean" else NULL

    def _text(self, schema: dict[str, Json], where: str) -> Node:
        said = {name: schema[word] for word, name in _TEXT.items() if word in schema}
        said |= {name: int(said[name]) for name in ("min_length", "max_length") if name in said}
        if said.get("format") not in keywords.FORMATS:
            said.pop("format", None)
        if "pattern" in said:
            said["pattern"] = keywords.escape_for_llguidance(said["pattern"])
            if said["pattern"] is None:
                self._unenforced(f"{where}/pattern")
        return self._enforced(String(**said), {name: word for word, name in _TEXT.items()}, where)

    def _number(self, schema: dict[str, Json], where: str, *, integer: bool) -> Node:
        said, words = {}, {}
        for what, (word, value) in keywords.numeric_bounds(schema).items():
            words[_ENDS[what]] = word
            said[_ENDS[what]] = json.dumps(keywords.round_bound_inwards(what, value))
        return self._enforced(Number(integer, **said), words, where)

    def _enforced(self, node: String | Number, words: dict[str, str], where: str) -> Node:
        """A node less what the engine cannot put together: first what it cannot by itself."""
        if bounds.has_empty_range(node):
            return NOTHING
        plain: String | Number = String() if isinstance(node, String) else Number(node.integer)
        for alone in (True, False):
            for name, word in words.items():
                value, usual = getattr(node, name), getattr(plain, name)
                if value == usual or self._judge.check_node(node) != "unsupported":
                    continue
                one: dict[str, Any] = {name: value}
                if not alone or self._judge.check_node(replace(plain, **one)) == "unsupported":
                    self._unenforced(f"{where}/{word}")
                    one[name] = usual
                    node = replace(node, **one)
        return NOTHING if self._judge.check_node(node) == "empty" else node

    def _array(self, schema: dict[str, Json], where: str) -> Node:
        word, then = keywords.item_keywords(schema)
        first = [
            self._node(one, f"{where}/{word}/{index}")
            for index, one in enumerate(schema.get(word, ()))
        ]
        rest = ANYTHING if then is None else self._node(schema[then], f"{where}/{then}")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        found = Array(tuple(first), rest, least, None if most is None else int(most))
        return simplify.simplify_array(found)

    def _object(self, schema: dict[str, Json], where: str, wants: list[str]) -> Node:
        members = [
            (name, self._node(inner, f"{where}/properties/{escape_token(name)}"))
            for name, inner in schema.get("properties", {}).items()
        ]
        word = keywords.additional_keyword(schema)
        others = ANYTHING if word is None else self._node(schema[word], f"{where}/{word}")
        patterns = [
            (name, self._node(inner, f"{where}/patternProperties/{escape_token(name)}"))
            for name, inner in schema.get("patternProperties", {}).items()
        ]
        found = Object(tuple(members), frozenset(schema.get("required", ())), others)
        nodes = [others, *(inner for _, inner in patterns)]
        if patterns and any(one != ANYTHING for one in nodes):
            own = build_pattern_object(found, patterns, self._judge, self._merger.intersect)
            if own is not None and not keywords.PROPERTY_NAME_KEYWORDS & schema.keys():
                return own
            wants.append(f"{where}/patternProperties")
            found = replace(found, additional=union_nodes(nodes))
        if "propertyNames" in schema:
            found = self._named_members(found, schema["propertyNames"], f"{where}/propertyNames")
        least, most = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        node, words = limit_property_count(found, least, most)
        sure = len(found.required) + 1 if isinstance(found.additional, Nothing) else 1
        if "minProperties" in words and least > sure:
            # a name that comes twice, once with an escape, counts twice for the engine's reader
            words.remove("minProperties")
            self._unenforced(f"{where}/minProperties")
        wants += [f"{where}/{word}" for word in words]
        return node

    def _named_members(self, node: Object, schema: Json, where: str) -> Object:
        """An object whose names are told by a schema."""
        names: Node | None = self._node(schema, where)
        for _ in range(limits.MAX_DEPTH):
            if isinstance(names, SchemaReference):
                names = self._definition(names.name)
        if names in (ANYTHING, String()):
            return node
        if not isinstance(names, Literals):
            self._unenforced(where)
            return node
        listed = [name for text in names.values if isinstance(name := json.loads(text), str)]
        return restrict_properties(node, listed)
