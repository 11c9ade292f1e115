"""What the grammar engine's own reader of schemas can do.

A `Judge` asks it whether it can put something together, and whether anything is left that fits.
A `Whole` is a part of a client's schema rewritten for it: only words that assert something, no
word that was found not to be enforced, and with all that it refers to. Its reader goes deep for
every reference and multiplies out what it merges, so both are weighed before it is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, TypeAlias

from dragoman.grammar.schema import keywords, limits
from dragoman.grammar.schema.nodes import Number, Text
from dragoman.output.arguments.json_pointer import escape_token
from dragoman.types import Json

Verdict: TypeAlias = Literal["fine", "empty", "refused"]

COPY = 8  # steps that a copy of a schema counts for
_WORDS = {"least": "minLength", "most": "maxLength", "pattern": "pattern", "format": "format"}
_BOUNDS = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum"}
_BOUNDS |= {"below": "exclusiveMaximum", "multiple": "multipleOf"}
_TABLES = frozenset({"properties", "patternProperties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_SAME = frozenset({"enum", "const", "required", "minLength", "maxLength", "format"})
_SAME |= {"minItems", "maxItems", "minProperties", "maxProperties", "propertyNames"}
_SAME |= keywords.UNENFORCED.keys() - {"$id"}


def written(node: Text | Number) -> dict[str, Json]:
    """A node as a schema."""
    if isinstance(node, Text):
        said: dict[str, Json] = {word: getattr(node, name) for name, word in _WORDS.items()}
        return {"type": "string"} | {word: one for word, one in said.items() if one is not None}
    said = {word: getattr(node, name) for name, word in _BOUNDS.items()}
    found = {word: json.loads(one) for word, one in said.items() if one is not None}
    return {"type": "integer" if node.integer else "number"} | found


class Judge:
    """Asks the engine's reader, each question once."""

    def __init__(self, budget: limits.Budget) -> None:
        self._budget = budget
        self._known: dict[str, Verdict] = {}

    def verdict(self, schema: Json) -> Verdict:
        text = json.dumps(schema)
        if text not in self._known:
            self._budget.check()
            self._known[text] = _asked(text)
        return self._known[text]

    def of(self, node: Text | Number) -> Verdict:
        plain = node in (Text(), Number(), Number(integer=True))
        return "fine" if plain else self.verdict(written(node))

    def matches(self, text: str, pattern: str) -> bool | None:
        """Whether a pattern is found in a text."""
        said = self.verdict({"const": text, "pattern": pattern})
        return None if said == "refused" else said == "fine"


def asked(schema: Json) -> Verdict:
    """A question without a budget: of what has been through one."""
    return _asked(json.dumps(schema))


def _asked(text: str) -> Verdict:
    from llguidance import LLMatcher

    try:
        said = str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))
    except (TypeError, ValueError, RuntimeError):
        return "refused"
    if not said:
        return "fine"
    return "empty" if said.startswith("Unsatisfiable") else "refused"


class TooLarge(Exception):
    """More than the engine's reader should be asked to read, or nothing that it could."""


class Whole:
    """Writes a part of a schema with all that it refers to.

    `find` gives the pointer and the schema that a reference in some place leads to, and has read
    it; `loose` are the pointers of what is left out.
    """

    def __init__(
        self,
        find: Callable[[str, str], tuple[str, Json]],
        loose: Container[str],
        synonyms: Mapping[str, str],
        budget: limits.Budget,
    ) -> None:
        self._find, self._loose, self._synonyms = find, loose, synonyms
        self._budget = budget
        self._targets: dict[str, Json] = {}  # by pointer
        self._deep = 0
        self._deepest = 0

    def of(self, schema: Mapping[str, Json], where: str) -> dict[str, Json] | None:
        """The schema; None where it is too much for the engine's reader."""
        try:
            found = self._rooted(schema, where)
            defined: dict[str, Json] = {}
            while len(defined) < len(self._targets):
                pointer = list(self._targets)[len(defined)]
                target = self._targets[pointer]
                defined[self._name(pointer)] = self._rooted(target, pointer)
            _weigh(found, defined)
        except TooLarge:
            return None
        if not isinstance(found, dict):
            return {"anyOf": [found]}
        return found | {"$defs": defined} if defined else found

    def _rooted(self, schema: Json, where: str) -> Json:
        self._deepest = 0
        found = self._copy(schema, where)
        self._deep += self._deepest
        if self._deep > limits.WHOLE_DEPTH:
            raise TooLarge
        return found

    def _name(self, pointer: str) -> str:
        return f"d{list(self._targets).index(pointer)}"

    def _copy(self, schema: Json, where: str, depth: int = 1) -> Json:
        self._budget.step(COPY)
        self._deepest = max(self._deepest, depth)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or keywords.fault(schema, self._synonyms):
            raise TooLarge
        if keywords.never(schema):
            return False
        schema = limits.drawn_in(schema)
        found: dict[str, Json] = {}
        for word, value in schema.items():
            found |= self._word(schema, word, value, where, depth)
        ends = keywords.bounds(schema).items()
        found |= {word: keywords.drawn(word, value) for word, (_, value) in ends}
        for place in [word for word in found if f"{where}/{word}" in self._loose]:
            del found[place]
        return found

    def _word(
        self, schema: dict[str, Json], word: str, value: Json, where: str, depth: int
    ) -> dict[str, Json]:
        here = f"{where}/{word}"
        loose = here in self._loose
        first, rest = keywords.items(schema)
        if word == "oneOf" and loose:
            return {"anyOf": self._listed(value, here, depth)}
        if word == "additionalProperties" or keywords.others(schema) == word:
            return {"additionalProperties": self._copy(value, here, depth + 1)}
        unenforced = word in keywords.UNENFORCED
        if loose or (unenforced and not keywords.matters(word, schema, self._synonyms)):
            return {word: value} if word == "format" and value in keywords.FORMATS else {}
        if word == "propertyNames" and value in (True, {}, {"type": "string"}):
            return {}
        if word == "type":
            return {"type": list(keywords.types(schema, self._synonyms) or ())}
        if word == "$ref":
            return {"$ref": f"#/$defs/{self._reference(value, here)}"}
        if word == "pattern":
            return {"pattern": keywords.spelled(value) or value}
        if word == first:
            return {"prefixItems": self._listed(value, here, depth)} if value else {}
        if word == rest:
            return {"items": self._copy(value, here, depth + 1)}
        if word in _LISTS:
            return {word: self._listed(value, here, depth)}
        if word in _TABLES:
            table = {
                name: self._copy(inner, f"{here}/{escape_token(name)}", depth + 1)
                for name, inner in value.items()
            }
            return {word: table}
        return {word: value} if word in _SAME else {}

    def _listed(self, every: list[Json], where: str, depth: int) -> list[Json]:
        return [
            self._copy(one, f"{where}/{index}", depth + 1)
            for index, one in enumerate(every)
            if f"{where}/{index}" not in self._loose
        ]

    def _reference(self, reference: str, where: str) -> str:
        pointer, target = self._find(reference, where)
        self._targets.setdefault(pointer, target)
        return self._name(pointer)


def disguised(schema: dict[str, Json]) -> bool:
    """Whether an object may have a member it knows under another name.

    The engine's reader takes a name with escapes for one that it does not know.
    """
    return _Names(schema.get("$defs", {})).disguised(schema)


class _Names:
    """Looks for objects that know some names and allow others. `defined` is what is referred to."""

    def __init__(self, defined: Mapping[str, Json]) -> None:
        self._defined = defined

    def disguised(self, schema: Json) -> bool:
        waiting: list[Json] = [schema, *self._defined.values()]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                if self._known(one, set()) and not self._closed(one, set()):
                    return True
                waiting += _within(one)
        return False

    def _here(self, schema: Mapping[str, Json], seen: set[str]) -> dict[str, list[Json]]:
        """The schemas that are about the same value, by the word that says so."""
        found = {word: schema[word] for word in _LISTS if word in schema}
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if name and name not in seen:
            seen.add(name)
            found["$ref"] = [self._defined.get(name, True)]
        return found

    def _known(self, schema: Json, seen: set[str]) -> bool:
        """Whether some names of members mean more than others."""
        if not isinstance(schema, dict):
            return False
        others = schema.get("additionalProperties", True)
        told = [one for word in _TABLES for one in schema.get(word, {}).values()]
        plain = (others, {}) if others is True else (others,)
        return any(one not in plain for one in told) or any(
            self._known(one, seen) for some in self._here(schema, seen).values() for one in some
        )

    def _closed(self, schema: Json, seen: set[str]) -> bool:
        """Whether it allows no objects with names that it does not know."""
        if not isinstance(schema, dict):
            return schema is False
        if "enum" in schema or "const" in schema or "object" not in schema.get("type", "object"):
            return True
        if schema.get("additionalProperties") is False:
            return True
        return any(
            (all if word in ("anyOf", "oneOf") else any)(self._closed(one, seen) for one in some)
            for word, some in self._here(schema, seen).items()
        )


def _within(schema: dict[str, Json]) -> list[Json]:
    """The schemas right below one."""
    found = [one for word in _TABLES for one in schema.get(word, {}).values()]
    found += [one for word in (*_LISTS, "prefixItems") for one in schema.get(word, ())]
    return [*found, schema.get("items"), schema.get("additionalProperties")]


def _weigh(schema: Json, defined: Mapping[str, Json]) -> None:
    """Refuses what is too much once every reference is replaced by what it leads to."""
    known: dict[str, int] = {}

    def weight(value: Any) -> int:
        if isinstance(value, list):
            return 1 + sum(map(weight, value))
        if not isinstance(value, dict):
            return 0
        total = 1
        for word, inner in value.items():
            if word == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in known:
                    known[name] = 0  # for whatever refers back to it
                    known[name] = weight(defined.get(name))
                total += known[name]
            elif word not in ("enum", "const", "required"):
                total += weight(inner)
        return total

    if weight(schema) > limits.WHOLE_WEIGHT or _patterns(schema, defined) > limits.WHOLE_PATTERNS:
        raise TooLarge


def _patterns(schema: Json, defined: Mapping[str, Json]) -> int:
    """How many patterns one text may have to match at once, or more.

    What engines do to find that out grows with the product of all of them.
    """
    known: dict[str, int] = {}

    def most(value: Json) -> int:
        if not isinstance(value, dict):
            return 0
        found = int("pattern" in value)
        for word, inner in value.items():
            if word == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in known:
                    known[name] = 0
                    known[name] = most(defined.get(name))
                found += known[name]
            elif word == "allOf":
                found += sum(map(most, inner))
            elif word == "patternProperties":
                found += sum(map(most, inner.values()))
            elif word == "properties":
                found += max(map(most, inner.values()), default=0)
            elif word in ("anyOf", "oneOf", "prefixItems"):
                found += max(map(most, inner), default=0)
            elif word in ("items", "additionalProperties"):
                found += most(inner)
        return found

    return most(schema)
