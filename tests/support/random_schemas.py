"""Random schemas with values, which `jsonschema` judges and our grammars must judge alike.

A grammar accepts a value just if it is valid, unless there is a warning; with `strict` there is
none: the schema is enforced exactly or rejected. `python -m tests.support.random_schemas COUNT`
tries many schemas (`make exam`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from tests.schema_cases import grammar

NAMES = ("a", "b", "c", "ab", "x y", 'q"')
PATTERNS = ("^a", "b$", "^[ab]{2}$", "[0-9]+", "x|y")
TEXTS = ("", "a", "b", "ab", "aab", "abcd", "7", "x y", "é", 'q"\\')
NUMBERS = (0, 1, 2, 3, 6, -1, 0.5, 1.5, 2.0, 10, 100, -7.25, 1e-7, 1e20)
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
VALUES_PER_SCHEMA = 10


class SchemaGenerator:
    """Generates schemas and values that are likely to match them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def document(self) -> Any:
        schema = self.schema(3)
        if isinstance(schema, dict) and self._rng.random() < 0.3:
            schema["$defs"] = {"d": self.schema(2), "e": self.schema(1)}
        elif "$ref" in json.dumps(schema):
            return self.document()
        return schema

    def schema(self, depth: int) -> Any:
        rng = self._rng
        if rng.random() < 0.04:
            return rng.random() < 0.7
        schema: dict[str, Any] = {}
        if rng.random() < 0.85:
            kinds = rng.choices(TYPES, weights=(4, 2, 3, 1, 1, 3, 7), k=1 + (rng.random() < 0.15))
            schema["type"] = kinds if len(kinds) > 1 else kinds[0]
        types = schema.get("type", TYPES)
        for kind in [types] if isinstance(types, str) else rng.sample(types, 1):
            self._add_keywords(schema, kind, depth)
        if depth and rng.random() < 0.35:
            self._add_applicator(schema, depth)
        if rng.random() < 0.08:
            schema["enum"] = [self.value(2) for _ in range(rng.randint(1, 4))]
        elif rng.random() < 0.05:
            schema["const"] = self.value(2)
        elif rng.random() < 0.05:
            schema["$ref"] = rng.choice(["#/$defs/d", "#/$defs/e"])
        return schema

    def _add_keywords(self, schema: dict[str, Any], kind: str, depth: int) -> None:
        rng = self._rng
        options: dict[str, Any] = {}
        if kind == "string":
            options = {
                "minLength": lambda: rng.randint(0, 3),
                "maxLength": lambda: rng.randint(0, 5),
                "pattern": lambda: rng.choice(PATTERNS),
            }
        elif kind in ("number", "integer"):
            options = {name: lambda: rng.choice((0, 1, 2, 1.5, -1, 4, 10)) for name in NUMERIC}
            options["multipleOf"] = lambda: rng.choice((1, 2, 3, 0.5))
        elif kind == "array":
            options = {
                "minItems": lambda: rng.randint(0, 2),
                "maxItems": lambda: rng.randint(0, 4),
                "uniqueItems": lambda: rng.random() < 0.8,
                "items": lambda: self.schema(max(depth - 1, 0)),
            }
            if depth:
                options["prefixItems"] = lambda: self._schemas(depth - 1)
                options["contains"] = lambda: self.schema(depth - 1)
        elif kind == "object":
            options = self._object_keywords(depth)
        for keyword in rng.sample(sorted(options), min(len(options), rng.choice((0, 1, 1, 2, 3)))):
            schema[keyword] = options[keyword]()

    def _object_keywords(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        below = max(depth - 1, 0)

        def names(most: int = 2) -> list[str]:
            return rng.sample(NAMES, rng.randint(0, most))

        return {
            "properties": lambda: {name: self.schema(below) for name in names(4)},
            "required": names,
            "additionalProperties": lambda: rng.choice((False, False, self.schema(below))),
            "patternProperties": lambda: {
                name: self.schema(below) for name in rng.sample(PATTERNS, rng.randint(1, 2))
            },
            "minProperties": lambda: rng.randint(0, 3),
            "maxProperties": lambda: rng.randint(0, 4),
            "propertyNames": lambda: rng.choice(
                ({"pattern": "^[a-c]"}, {"enum": ["a", "b"]}, {"maxLength": 1}, True)
            ),
            "dependentRequired": lambda: {name: names() for name in names()},
            "dependentSchemas": lambda: {name: self.schema(below) for name in names(1)},
        }

    def _add_applicator(self, schema: dict[str, Any], depth: int) -> None:
        rng = self._rng
        keyword = rng.choice(("allOf", "anyOf", "oneOf", "oneOf", "not", "if"))
        if keyword == "not":
            schema["not"] = self.schema(depth - 1)
        elif keyword == "if":
            for name in ("if", *rng.sample(("then", "else"), rng.randint(1, 2))):
                schema[name] = self.schema(depth - 1)
        else:
            schema[keyword] = self._schemas(depth - 1)

    def _schemas(self, depth: int) -> list[Any]:
        return [self.schema(depth) for _ in range(self._rng.randint(1, 3))]

    # values

    def value(self, depth: int, kind: str | None = None) -> Any:
        rng = self._rng
        kind = kind or rng.choice(TYPES if depth else TYPES[:5])
        match kind:
            case "string":
                return rng.choice(TEXTS)
            case "number" | "integer":
                return rng.choice(NUMBERS)
            case "boolean":
                return rng.random() < 0.5
            case "array":
                return [self.value(max(depth - 1, 0)) for _ in range(rng.randint(0, 3))]
            case "object":
                names = rng.sample(NAMES, rng.randint(0, 3))
                return {name: self.value(max(depth - 1, 0)) for name in names}
        return None

    def value_of(self, schema: Any, root: Any, depth: int = 4) -> Any:
        """A value that has a chance to match a schema."""
        rng = self._rng
        if not isinstance(schema, dict) or depth <= 0 or rng.random() < 0.05:
            return self.value(1)
        if "$ref" in schema and rng.random() < 0.5:
            return self.value_of(root["$defs"][schema["$ref"][-1]], root, depth - 1)
        if "enum" in schema and rng.random() < 0.9:
            return rng.choice(schema["enum"])
        if "const" in schema and rng.random() < 0.9:
            return schema["const"]
        parts = [part for name in ("allOf", "anyOf", "oneOf") for part in schema.get(name, ())]
        parts += [schema[name] for name in ("then", "else", "if", "not") if name in schema]
        if parts and rng.random() < 0.5:
            part = rng.choice(parts)
            merged = {**part, **schema} if isinstance(part, dict) else schema
            schema = {name: merged[name] for name in merged if name not in APPLICATORS} | {
                name: {**part[name], **merged[name]}
                for name in ("properties",)
                if isinstance(part, dict) and name in part and name in schema
            }
        types = schema.get("type")
        kind = rng.choice(types) if isinstance(types, list) else types
        if kind is None:
            kind = "object" if OBJECT_KEYWORDS & schema.keys() else None
        if kind == "object":
            return self._object_of(schema, root, depth)
        if kind == "array":
            prefix = [
                self.value_of(item, root, depth - 1) for item in schema.get("prefixItems", ())
            ]
            count = rng.randint(schema.get("minItems", 0), max(schema.get("minItems", 0), 3))
            items = schema.get("items", schema.get("contains", True))
            return [*prefix[:count]] + [
                self.value_of(items, root, depth - 1) for _ in range(count - len(prefix))
            ]
        return self.value(1, kind)

    def _object_of(self, schema: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
        rng = self._rng
        properties = schema.get("properties", {})
        names = [*schema.get("required", ())]
        names += [name for name in properties if rng.random() < 0.6]
        names += rng.sample(NAMES, rng.choice((0, 0, 1, 2)))
        rng.shuffle(names)
        other = schema.get("additionalProperties", True)
        return {name: self.value_of(properties.get(name, other), root, depth - 1) for name in names}


NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
APPLICATORS = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
OBJECT_KEYWORDS = frozenset({"properties", "required", "patternProperties", "dependentRequired"})


class Mistake(NamedTuple):
    """A value that a grammar judges wrongly without a warning."""

    schema: Any
    value: Any
    strict: bool
    is_valid: bool


class Judge:
    """Compares grammars with `jsonschema`, and counts the outcomes."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer("byte")
        self.counts: Counter[str] = Counter()

    def find_mistakes(self, seed: int) -> Iterator[Mistake]:
        rng = Random(seed)
        generator = SchemaGenerator(rng)
        schema = generator.document()
        values = [generator.value_of(schema, schema) for _ in range(VALUES_PER_SCHEMA)]
        validator = Draft202012Validator(schema)
        try:
            judged = [(value, validator.is_valid(value)) for value in values]
        except RecursionError:  # a definition that refers only to itself
            return
        for strict in (False, True):
            yield from self._compare(schema, judged, strict=strict)

    def _compare(
        self, schema: Any, judged: list[tuple[Any, bool]], *, strict: bool
    ) -> Iterator[Mistake]:
        mode = "strict" if strict else "plain"
        try:
            text, warnings = grammar(schema, strict)
        except ValueError as error:
            is_empty = "allows no value" in str(error)
            self.counts[f"{mode}: {'empty' if is_empty else 'rejected'}"] += 1
            if is_empty:
                yield from (Mistake(schema, value, strict, True) for value, ok in judged if ok)
            return
        self.counts[f"{mode}: {'warning' if warnings else 'exact'}"] += 1
        if warnings or text is None:
            return
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        for value, is_valid in judged:
            self.counts["valid values" if is_valid else "invalid values"] += 1
            spellings = list_spellings(value)
            if any(accepts(matcher, spelling) for spelling in spellings) != is_valid:
                yield Mistake(schema, value, strict, is_valid)


def list_spellings(value: Any) -> list[str]:
    """Spellings of a value, of which one must be accepted: whole floats also as integers."""
    texts = (json.dumps(form, ensure_ascii=False) for form in (value, make_whole(value)))
    return list(dict.fromkeys(texts))


def make_whole(value: Any) -> Any:
    """Return a value with integers in place of floats that are whole."""
    if isinstance(value, list):
        return [make_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: make_whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    written = list(text.encode())
    return bool(matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting())


def main() -> None:
    count, first = (int(text) for text in [*sys.argv[1:], "0"][:2])
    judge, mistakes = Judge(), 0
    for seed in range(first, first + count):
        for mistake in judge.find_mistakes(seed):
            mistakes += 1
            print(f"seed {seed}: {mistake}")
    print(f"{count} random schemas, {mistakes} mistakes: {dict(judge.counts)}")
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
