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
from dragoman.grammar.schema import keywords, limits, simplify
from dragoman.grammar.schema.intersect import Merger
from dragoman.grammar.schema.llguidance_schema import Judge, Whole, disguised
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    Array,
    Checked,
    Exactly,
    Foreign,
    Named,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.grammar.schema.normalize import Endless, Knotted, settled
from dragoman.grammar.schema.overapproximate import glimpse
from dragoman.grammar.schema.pattern_properties import patterned
from dragoman.grammar.schema.property_limits import counted, exactly_one, only
from dragoman.grammar.schema.simplify import ANYTHING, NOTHING, either
from dragoman.output.arguments.json_pointer import (
    UnresolvedReference,
    escape_token,
    resolve_reference,
)
from dragoman.output.arguments.parameter_types import SYNONYMS
from dragoman.types import Json

_ENDS = {"minimum": "minimum", "exclusiveMinimum": "above", "maximum": "maximum"}
_ENDS |= {"exclusiveMaximum": "below", "multipleOf": "multiple"}
_TEXT = {"maxLength": "most", "minLength": "least", "format": "format", "pattern": "pattern"}


def read(schema: Json, *, at: str, strict: bool, tool: bool = False) -> Checked:
    """A schema as nodes. `at` is what the client calls its place; errors name it.

    The parameters of a `tool` are an object, whatever else they are declared to be, and may name
    types in a few ways that are not those of JSON schema.
    """
    if tool and (schema is None or schema == {}):
        return Checked(Object((), frozenset(), NOTHING))
    reader = _Reader(schema, limits.Budget(at), strict, SYNONYMS if tool else {})
    try:
        limits.survey(schema, reader.budget)
        return reader.checked(tool=tool)
    except RecursionError:
        reader.budget.over("more levels than can be followed")


class _Reader:
    def __init__(
        self, schema: Json, budget: limits.Budget, strict: bool, synonyms: dict[str, str]
    ) -> None:
        self.budget = budget
        self._root, self._strict, self._synonyms = schema, strict, synonyms
        self._loose: dict[str, str] = {}  # by pointer
        self._targets: dict[str, Json] = {"": schema}  # what is referred to, by pointer
        self._known: dict[str, Node | None] = {}  # None while it is read
        self._glimpses: dict[str, Node] = {}
        self._waiting: list[str] = [""]
        self._judge = Judge(budget)
        self._merger = Merger(self._definition, self._outline, self._judge, budget)
        self._depth = 0
        self._wholes = self._whole_text = 0

    def checked(self, *, tool: bool) -> Checked:
        while self._waiting:
            self._definition(self._waiting.pop())
        known = {name: node for name, node in self._known.items() if node is not None}
        root = known[""]
        if tool:
            root = self._merger.meet(Object(), root) or root
        try:
            found, definitions = settled(root, known)
            if isinstance(found, Nothing) and tool and not isinstance(known[""], Nothing):
                self._wrong("", "must allow an object")
        except Endless as error:
            self._wrong(error.name, "refers only to itself")
        except Knotted:
            self.budget.over("too many definitions that refer to each other")
        if isinstance(found, Nothing):
            self._wrong("", "allows no value")
        sentences = list(self._loose.values())
        if len(sentences) > limits.LOOSE:
            more = len(sentences) - limits.LOOSE
            sentences[limits.LOOSE :] = [f"`{self.budget.at}`: {more} more are not enforced."]
        return Checked(found, definitions, tuple(sentences))

    # errors

    def _wrong(self, where: str, what: str) -> NoReturn:
        raise BadRequest(
            f"{self._place(where)} {what}.", param=self.budget.at, code="invalid_schema"
        )

    def _unenforced(self, where: str) -> None:
        if self._strict:
            raise BadRequest(
                f"{self._place(where)} cannot be enforced here, as `strict` demands.",
                param=self.budget.at,
                code="unsupported_keyword",
            )
        self._loose.setdefault(where, f"{self._place(where)} is not enforced.")

    def _place(self, where: str) -> str:
        if not where:
            return f"`{self.budget.at}`"
        shown = where if len(where) <= 200 else f"{where[:100]}...{where[-100:]}"
        plain = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in shown)
        return f"`{self.budget.at}`: `{plain}`"

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
            self._glimpses[pointer] = glimpse(self._targets[pointer])
        return self._glimpses[pointer] if found is None else found

    def _reference(self, reference: str, where: str) -> Named:
        pointer, target = self._found(reference, where)
        seen = {pointer}
        while isinstance(target, dict) and isinstance(target.get("$ref"), str):
            then, target = self._found(target["$ref"], where)
            if then in seen:
                self._wrong(where, "refers only to itself")
            if len(seen) >= limits.DEEPEST:
                self.budget.over(f"references over more than {limits.DEEPEST} others")
            seen.add(then)
        if pointer not in self._known:
            self._waiting.append(pointer)
        return Named(pointer)

    def _found(self, reference: str, where: str) -> tuple[str, Json]:
        try:
            pointer, target = resolve_reference(self._root, reference)
        except UnresolvedReference as error:
            self._wrong(where, str(error))
        self._targets[pointer] = target
        return pointer, target

    # schemas

    def _node(self, schema: Json, where: str) -> Node:
        self.budget.node()
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        if not isinstance(schema, dict):
            self._wrong(where, "must be a schema: an object, `true` or `false`")
        if self._depth >= limits.DEEPEST:
            self.budget.over(f"more than {limits.DEEPEST} levels")
        self._depth += 1
        try:
            return self._joined(schema, where)
        finally:
            self._depth -= 1

    def _joined(self, schema: dict[str, Json], where: str) -> Node:
        self._check(schema, where)
        schema = limits.drawn_in(schema)
        if keywords.never(schema):
            return NOTHING
        wants: list[str] = []  # what only the engine's own reader may be able to do
        node: Node = ANYTHING
        for place, part in self._parts(schema, where, wants):
            met = self._merger.meet(node, part)
            if met is None:
                wants.append(place)
            else:
                node = met
        if simplify.size(node) > limits.NODES:
            self.budget.over(f"more choices than {limits.NODES:,} once it is put together")
        whole = self._whole(schema, where, node) if wants else None
        if whole is not None:
            return whole
        for place in wants:
            self._unenforced(place)
        return node

    def _check(self, schema: dict[str, Json], where: str) -> None:
        """Refuses what is no schema, and notes what cannot be enforced."""
        found = keywords.fault(schema, self._synonyms)
        if found is not None:
            self._wrong(f"{where}/{escape_token(found[0])}", found[1])
        for word, most in limits.MOST.items():
            if schema.get(word, 0) > most:
                self.budget.over(f"a `{word}` above {most:,}")
        for word, most in limits.LONGEST.items():
            if len(schema.get(word, ())) > most:
                self.budget.over(f"`{word}` longer than {most:,}")
        names = (*schema.get("properties", ()), *schema.get("required", ()))
        if any(len(name) > limits.NAME for name in names):
            self.budget.over(f"a name longer than {limits.NAME:,}")
        for word in keywords.UNENFORCED:
            if keywords.matters(word, schema, self._synonyms) and (word != "$id" or where):
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
                self.budget.values(texts)
                yield f"{where}/{word}", Exactly(texts)
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
                if word == "oneOf" and not self._merger.exclusive(options):
                    choices = keywords.choices(schema[word])
                    made = None if choices is None else exactly_one(choices)
                    wants += [] if made is not None else [place]
                    options = options if made is None else made
                yield place, either(options)

    def _whole(self, schema: dict[str, Json], where: str, node: Node) -> Node | None:
        """A schema as the engine's own reader puts it together, if it can.

        The node allows no less than the schema.
        """
        self._wholes += 1
        if self._wholes > limits.WHOLES:
            return None
        made = Whole(self._read_target, self._loose, self._synonyms, self.budget).of(schema, where)
        if made is None or disguised(made):
            return None
        merged = (keywords.APPLICATORS | {"enum", "const"}) & schema.keys()
        meant = [] if merged or "type" in made else keywords.implied(schema)
        kinds = meant or simplify.kinds(
            self._outline(node.name) if isinstance(node, Named) else node
        )
        # the kinds help whoever writes it, but the engine's reader may not like them there
        ways = [{"type": kinds} | made] if kinds else []
        for way in ways if meant else [*ways, made]:
            text = json.dumps(way)
            self._whole_text += len(text)
            if self._whole_text > limits.WHOLE_TEXT:
                return None
            said = self._judge.verdict(way)
            if said != "refused":
                found = NOTHING if said == "empty" else Foreign(text)
                return simplify.implied([found], meant) if meant else found
        return None

    def _read_target(self, reference: str, where: str) -> tuple[str, Json]:
        pointer, target = self._found(reference, where)
        self._definition(pointer)
        return pointer, target

    # kinds of values

    def _kinds(self, schema: dict[str, Json], where: str, wants: list[str]) -> Node:
        said = keywords.types(schema, self._synonyms)
        if said is not None:
            return either([self._kind(kind, schema, where, wants) for kind in said])
        meant = keywords.implied(schema)
        return simplify.implied([self._kind(kind, schema, where, wants) for kind in meant], meant)

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
        said |= {name: int(said[name]) for name in ("least", "most") if name in said}
        if said.get("format") not in keywords.FORMATS:
            said.pop("format", None)
        if "pattern" in said:
            said["pattern"] = keywords.spelled(said["pattern"])
            if said["pattern"] is None:
                self._unenforced(f"{where}/pattern")
        return self._enforced(Text(**said), {name: word for word, name in _TEXT.items()}, where)

    def _number(self, schema: dict[str, Json], where: str, *, integer: bool) -> Node:
        said, words = {}, {}
        for what, (word, value) in keywords.bounds(schema).items():
            words[_ENDS[what]] = word
            said[_ENDS[what]] = json.dumps(keywords.drawn(what, value))
        return self._enforced(Number(integer, **said), words, where)

    def _enforced(self, node: Text | Number, words: dict[str, str], where: str) -> Node:
        """A node less what the engine cannot put together: first what it cannot by itself."""
        if simplify.impossible(node):
            return NOTHING
        plain: Text | Number = Text() if isinstance(node, Text) else Number(node.integer)
        for alone in (True, False):
            for name, word in words.items():
                value, usual = getattr(node, name), getattr(plain, name)
                if value == usual or self._judge.of(node) != "refused":
                    continue
                one: dict[str, Any] = {name: value}
                if not alone or self._judge.of(replace(plain, **one)) == "refused":
                    self._unenforced(f"{where}/{word}")
                    one[name] = usual
                    node = replace(node, **one)
        return NOTHING if self._judge.of(node) == "empty" else node

    def _array(self, schema: dict[str, Json], where: str) -> Node:
        word, then = keywords.items(schema)
        first = [
            self._node(one, f"{where}/{word}/{index}")
            for index, one in enumerate(schema.get(word, ()))
        ]
        rest = ANYTHING if then is None else self._node(schema[then], f"{where}/{then}")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        found = Array(tuple(first), rest, least, None if most is None else int(most))
        return simplify.array(found)

    def _object(self, schema: dict[str, Json], where: str, wants: list[str]) -> Node:
        members = [
            (name, self._node(inner, f"{where}/properties/{escape_token(name)}"))
            for name, inner in schema.get("properties", {}).items()
        ]
        word = keywords.others(schema)
        others = ANYTHING if word is None else self._node(schema[word], f"{where}/{word}")
        patterns = [
            (name, self._node(inner, f"{where}/patternProperties/{escape_token(name)}"))
            for name, inner in schema.get("patternProperties", {}).items()
        ]
        found = Object(tuple(members), frozenset(schema.get("required", ())), others)
        nodes = [others, *(inner for _, inner in patterns)]
        if patterns and any(one != ANYTHING for one in nodes):
            own = patterned(found, patterns, self._judge, self._merger.meet)
            if own is not None and not keywords.COUNTED & schema.keys():
                return own
            wants.append(f"{where}/patternProperties")
            found = replace(found, others=either(nodes))
        if "propertyNames" in schema:
            found = self._named_members(found, schema["propertyNames"], f"{where}/propertyNames")
        least, most = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        node, words = counted(found, least, most)
        sure = len(found.required) + 1 if isinstance(found.others, Nothing) else 1
        if "minProperties" in words and least > sure:
            # a name that comes twice, once with an escape, counts twice for the engine's reader
            words.remove("minProperties")
            self._unenforced(f"{where}/minProperties")
        wants += [f"{where}/{word}" for word in words]
        return node

    def _named_members(self, node: Object, schema: Json, where: str) -> Object:
        """An object whose names are told by a schema."""
        names: Node | None = self._node(schema, where)
        for _ in range(limits.DEEPEST):
            if isinstance(names, Named):
                names = self._definition(names.name)
        if names in (ANYTHING, Text()):
            return node
        if not isinstance(names, Exactly):
            self._unenforced(where)
            return node
        listed = [name for text in names.values if isinstance(name := json.loads(text), str)]
        return only(node, listed)
