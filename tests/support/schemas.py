"""Two hundred schemas: fifty families that each cover one feature, with four variants each.

All of them can be enforced completely, so `strict` is possible, and nearly all keep answers short,
so that a small model finishes them. Details are random, seeded by the name of the case, so every
run has the same schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeAlias

Schema: TypeAlias = dict[str, Any]
Family: TypeAlias = Callable[[Random, int], Schema]

VARIANTS = 4
FAMILIES: dict[str, Family] = {}
WORDS = ["amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "lotus"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SchemaCase(NamedTuple):
    name: str
    schema: Schema

    @property
    def parameters(self) -> Schema:
        """The schema as parameters of a tool, which must be an object."""
        if self.schema.get("type") == "object":
            return self.schema
        inner = {
            key: value for key, value in self.schema.items() if key not in ("$defs", "$schema")
        }
        outer = make_object({"value": inner})
        return outer | {"$defs": self.schema["$defs"]} if "$defs" in self.schema else outer


def make_cases() -> list[SchemaCase]:
    return [
        SchemaCase(f"{name}-{index}", make(Random(f"{name}-{index}"), index))
        for name, make in FAMILIES.items()
        for index in range(VARIANTS)
    ]


def register(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


# Building blocks


def make_object(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def make_array(items: Schema, max_items: int, min_items: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": min_items, "maxItems": max_items}


def choose_words(rng: Random, count: int) -> list[str]:
    return rng.sample(WORDS, count)


def make_string(max_length: int = 16) -> Schema:
    return {"type": "string", "maxLength": max_length}


def make_integer(minimum: int = 0, maximum: int = 999) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def make_enum(*values: Any) -> Schema:
    return {"enum": list(values)}


NULL: Schema = {"type": "null"}
BOOLEAN: Schema = {"type": "boolean"}


def make_simple(rng: Random) -> Schema:
    """Make a schema for a short value."""
    schemas: list[Schema] = [
        make_string(rng.randint(4, 16)),
        make_integer(rng.randint(-50, 0), rng.randint(1, 5000)),
        {"type": "number", "minimum": 0, "maximum": rng.choice([1, 2.5, 100])},
        BOOLEAN,
        {"type": "string", "enum": choose_words(rng, 3)},
    ]
    return rng.choice(schemas)


def make_properties(rng: Random, count: int) -> Schema:
    return {name: make_simple(rng) for name in choose_words(rng, count)}


# Objects and their members


@register
def flat(rng: Random, index: int) -> Schema:
    return make_object(make_properties(rng, index + 2))


@register
def optional(rng: Random, index: int) -> Schema:
    properties = make_properties(rng, index + 3)
    return make_object(properties, rng.sample(list(properties), index))


@register
def empty(rng: Random, index: int) -> Schema:
    nothing: Schema = {"type": "object", "additionalProperties": False}
    variants: list[Schema] = [
        nothing,
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        make_object({choose_words(rng, 1)[0]: nothing}),
        {"type": "object", "maxProperties": 0},
    ]
    return variants[index]


@register
def open_object(rng: Random, index: int) -> Schema:
    schema = make_object(make_properties(rng, 2))
    if index % 2:
        return schema | {"additionalProperties": True}
    schema.pop("additionalProperties")
    return schema


@register
def map_of_values(rng: Random, index: int) -> Schema:
    inner = [make_integer(0, 9), BOOLEAN, make_string(6), make_array(make_integer(0, 9), 2)][index]
    return {"type": "object", "additionalProperties": inner}


@register
def map_besides_members(rng: Random, index: int) -> Schema:
    return make_object(make_properties(rng, index % 2 + 1)) | {
        "additionalProperties": make_integer(0, 10 ** (index + 1))
    }


@register
def counted_members(rng: Random, index: int) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": make_integer(0, 99)}
    bounds = [{"maxProperties": 2}, {"minProperties": 1}, {"minProperties": 1, "maxProperties": 3}]
    return schema | [*bounds, {"maxProperties": 1}][index]


@register
def named_members(rng: Random, index: int) -> Schema:
    names = {"propertyNames": {"enum": choose_words(rng, index + 2)}}
    return {"type": "object", "additionalProperties": make_simple(rng)} | names


@register
def members_by_pattern(rng: Random, index: int) -> Schema:
    patterns = ["^x_[a-z]{1,3}$", "^[A-Z]{2}$", "^n[0-9]$", "^(left|right)$"]
    schema: Schema = {"type": "object", "additionalProperties": False, "maxProperties": 3}
    return schema | {"patternProperties": {patterns[index]: make_integer(0, 9)}}


@register
def required_but_not_described(rng: Random, index: int) -> Schema:
    properties = make_properties(rng, index + 1)
    undescribed = f"extra{index}"
    schema = make_object(properties, [*properties, undescribed])
    return schema | {
        "additionalProperties": [BOOLEAN, make_integer(0, 9), make_string(8), NULL][index]
    }


@register
def many_members(rng: Random, index: int) -> Schema:
    count = 8 + 4 * index
    kinds = [BOOLEAN, make_integer(0, 9), make_enum("a", "b"), NULL]
    properties = {f"field_{number}": rng.choice(kinds) for number in range(count)}
    return make_object(properties, [name for name in properties if rng.random() < 0.5])


@register
def deep(rng: Random, index: int) -> Schema:
    schema = make_simple(rng)
    for level in range(3 + 3 * index):
        schema = (
            make_object({f"l{level}": schema})
            if level % 3
            else make_object({f"l{level}": make_array(schema, 1, 1)})
        )
    return schema


@register
def awkward_keys(rng: Random, index: int) -> Schema:
    keys = [
        ['a "quoted" key', "back\\slash", "two words"],
        ["line\nbreak", "tab\there", "", "/~1"],
        ["$ref", "type", "properties", "enum"],
        ["</tool_call>", "<think>", "{", "}", "'", "[TOOL_CALLS]"],
    ]
    return make_object({key: rng.choice([BOOLEAN, make_integer(0, 9)]) for key in keys[index]})


@register
def unicode_keys(rng: Random, index: int) -> Schema:
    keys = [["größe", "naïve"], ["名前", "年齢"], ["🙂", "👩‍🚀 role"], ["ключ", "مفتاح", "e\u0301"]]
    return make_object({key: make_simple(rng) for key in keys[index]})


# References


@register
def shared_definition(rng: Random, index: int) -> Schema:
    schema = make_object(
        {name: {"$ref": "#/$defs/point"} for name in choose_words(rng, index % 3 + 1)}
    )
    return schema | {
        "$defs": {"point": make_object({"x": make_integer(0, 99), "y": make_integer(-index, 99)})}
    }


@register
def old_definitions(rng: Random, index: int) -> Schema:
    schema = make_object({WORDS[index]: {"$ref": "#/definitions/some~1item"}})
    described = {"title": "A thing", "description": "Of some kind.", "default": None}
    return schema | {"definitions": {"some/item": make_simple(rng) | described}} | described


@register
def chain_of_references(rng: Random, index: int) -> Schema:
    last = index + 2
    links: Schema = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(last)}
    return make_object({"value": {"$ref": "#/$defs/d0"}}) | {
        "$defs": links | {f"d{last}": make_simple(rng)}
    }


@register
def linked_list(rng: Random, index: int) -> Schema:
    rest: list[Schema] = [NULL, {"$ref": "#/$defs/node"}]
    node = make_object(
        {"value": make_simple(rng), "next": {"anyOf": rest[:: -1 if index % 2 else 1]}}
    )
    return make_object({"head": {"$ref": "#/$defs/node"}}) | {"$defs": {"node": node}}


@register
def tree(rng: Random, index: int) -> Schema:
    children = make_array({"$ref": "#"}, index % 2 + 1)
    return make_object(
        {"name": make_string(6), "children": children}, ["name"] if index < 2 else None
    )


@register
def expression(rng: Random, index: int) -> Schema:
    inner: Schema = {"$ref": "#/$defs/expr"}
    total = make_object({"op": make_enum(*"+-*/"[: index + 1]), "left": inner, "right": inner})
    either = {"anyOf": [make_integer(0, 9), {"$ref": "#/$defs/sum"}]}
    return make_object({"expr": inner}) | {"$defs": {"expr": either, "sum": total}}


# Choices and combinations


@register
def choice_of_kinds(rng: Random, index: int) -> Schema:
    kinds = [make_string(8), make_integer(0, 99), BOOLEAN, NULL, make_array(BOOLEAN, 2)]
    return make_object(
        {name: {"anyOf": rng.sample(kinds, index + 2)} for name in choose_words(rng, 2)}
    )


@register
def choice_of_objects(rng: Random, index: int) -> Schema:
    shapes = [
        make_object({"kind": {"const": name}} | make_properties(rng, number + 1))
        for number, name in enumerate(choose_words(rng, index + 2))
    ]
    return make_object({"shape": {"anyOf": shapes}})


@register
def exactly_one(rng: Random, index: int) -> Schema:
    named = choose_words(rng, 3)
    variants: list[Schema] = [
        make_object({"it": {"oneOf": [make_string(8), make_integer(0, 9), NULL]}}),
        make_object({"it": {"oneOf": [make_object({name: {"const": name}}) for name in named]}}),
        make_object({"it": {"oneOf": [make_integer(0, 9), make_integer(20, 29), {"const": 15}]}}),
        make_object(
            {"it": {"oneOf": [make_object({"type": {"const": value}}) for value in (1, 2)]}}
        ),
    ]
    return variants[index]


@register
def all_of(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 5}]},
        {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
        {
            "allOf": [
                {"type": ["integer", "string"]},
                {"type": ["integer", "null"]},
                make_integer(0, 5),
            ]
        },
    ]
    return make_object({"it": variants[index]})


@register
def extended(rng: Random, index: int) -> Schema:
    base = {"type": "object", "properties": {"id": make_integer(0, 99)}, "required": ["id"]}
    more = {"type": "object", "properties": make_properties(rng, index + 1)}
    schema: Schema = {"type": "object", "allOf": [{"$ref": "#/$defs/base"}, more]}
    if index % 2:
        schema["allOf"].append({"required": list(more["properties"])})
    schema["additionalProperties"] = False
    schema["properties"] = {"id": {}} | dict.fromkeys(more["properties"], True)
    return schema | {"$defs": {"base": base}}


@register
def nullable(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        {"type": ["string", "null"], "maxLength": 8},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"anyOf": [make_string(8), NULL], "default": None, "title": "Maybe"},
        {"enum": ["on", "off", None]},
    ]
    return make_object(dict.fromkeys(choose_words(rng, 3), variants[index]), [])


@register
def several_kinds(rng: Random, index: int) -> Schema:
    kinds = ["string", "integer", "boolean", "null"]
    schema = {"type": kinds[: index + 1] + ["null"][: index < 3], "maxLength": 5, "maximum": 99}
    return make_object({name: schema | {"minimum": 0} for name in choose_words(rng, 2)})


@register
def untyped(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [{"maxLength": 6}, {"minimum": 1, "maximum": 6}, {"maxItems": 1}, {}]
    inner = variants[index] | ({"items": BOOLEAN} if index == 2 else {})
    return make_object({choose_words(rng, 1)[0]: inner if index < 3 else True})


# Roots that are not objects


@register
def root_list(rng: Random, index: int) -> Schema:
    return make_array(make_simple(rng), index + 1, index % 2)


@register
def root_list_of_objects(rng: Random, index: int) -> Schema:
    return make_array(make_object(make_properties(rng, 2)), index % 2 + 1, 1)


@register
def root_enum(rng: Random, index: int) -> Schema:
    return {"type": "string", "enum": choose_words(rng, 2 * index + 2)}


@register
def root_number(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        make_integer(-5, 5),
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 100, "maximum": 110},
        {"type": "number", "minimum": -1.5, "maximum": 1.5},
    ]
    return variants[index]


@register
def root_small(rng: Random, index: int) -> Schema:
    return [BOOLEAN, NULL, {"const": "yes"}, make_enum(1, "1", None, True)][index]


@register
def root_text(rng: Random, index: int) -> Schema:
    variants = [
        make_string(),
        {"minLength": 3, "maxLength": 9},
        {"pattern": "^[a-z]{2,6}$"},
        make_string(40),
    ]
    return {"type": "string"} | variants[index]


@register
def root_choice(rng: Random, index: int) -> Schema:
    variants: list[list[Schema]] = [
        [make_string(8), make_integer()],
        [make_object({"ok": BOOLEAN}), make_object({"error": make_string(12)})],
        [make_array(make_integer(0, 9), 3), NULL],
        [{"$ref": "#/$defs/leaf"}, make_array({"$ref": "#/$defs/leaf"}, 2)],
    ]
    schema: Schema = {"anyOf": variants[index]}
    return schema | {"$defs": {"leaf": make_simple(rng)}} if index == 3 else schema


# Values


@register
def enum_of_all_kinds(rng: Random, index: int) -> Schema:
    values = [None, True, 0, -1.5, "x", "", [1, [2]], {"a": {"b": None}}, 'é"', 10**12, 1e-7]
    return make_object(
        {name: make_enum(*rng.sample(values, 3 + index)) for name in choose_words(rng, 2)}
    )


@register
def unicode_enum(rng: Random, index: int) -> Schema:
    values = [
        "日本",
        "naïve café",
        "👩‍🚀",
        "Ελλάδα",
        'a"b',
        "back\\slash",
        "two\nlines",
        "\u2028",
        "ﬁ",
    ]
    return make_object({"choice": {"type": "string", "enum": rng.sample(values, 2 + 2 * index)}})


@register
def constants(rng: Random, index: int) -> Schema:
    values: list[list[Any]] = [[None, True], [3, -0.25], ["ü\n", ""], [[], {"k": [1, "v"]}]]
    return make_object(
        {f"c{number}": {"const": value} for number, value in enumerate(values[index])}
    )


@register
def whole_numbers(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        {"minimum": -17, "maximum": 4},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 3},
        {"minimum": 1_000_000, "maximum": 9_999_999},
        {"maximum": -5, "minimum": -12_345},
    ]
    return make_object(
        {name: {"type": "integer"} | variants[index] for name in choose_words(rng, 2)}
    )


@register
def numbers(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        {"minimum": 0.5, "maximum": 0.75},
        {"exclusiveMinimum": -0.1, "exclusiveMaximum": 0.1},
        {"minimum": 99.5, "maximum": 1000.25},
        {"minimum": -273.15, "maximum": -1},
    ]
    return make_object(
        {name: {"type": "number"} | variants[index] for name in choose_words(rng, 2)}
    )


@register
def multiples(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        make_integer(0, 100) | {"multipleOf": 5},
        make_integer(-60, 60) | {"multipleOf": 7},
        {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25},
        {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01},
    ]
    return make_object(dict.fromkeys(choose_words(rng, 2), variants[index]))


@register
def text_lengths(rng: Random, index: int) -> Schema:
    lengths = [(0, 1), (3, 3), (5, 12), (20, 40)][index]
    schema = {"type": "string", "minLength": lengths[0], "maxLength": lengths[1]}
    return make_object(dict.fromkeys(choose_words(rng, 2), schema))


@register
def long_texts(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [{}, {"minLength": 1}, {"maxLength": 400}, {"minLength": 30}]
    return make_object({"text": {"type": "string"} | variants[index]})


@register
def formats(rng: Random, index: int) -> Schema:
    pairs = [("date", "time"), ("date-time", "uuid"), ("ipv4", "email"), ("duration", "hostname")]
    return make_object({name: {"type": "string", "format": name} for name in pairs[index]})


@register
def patterns(rng: Random, index: int) -> Schema:
    pairs = [
        ["^[A-Z]{3}-[0-9]{2}$", "^(red|green|blue)$"],
        ["^\\d{3}\\.\\d{2}$", "^#[0-9a-fA-F]{6}$"],
        ['^[^"\\\\]{1,8}$', "^a?b{2,4}c$"],
        ["^\\+?[0-9]{4,8}$", "^[日本語]{1,3}$"],
    ]
    return make_object(
        {
            f"p{number}": {"type": "string", "pattern": pattern}
            for number, pattern in enumerate(pairs[index])
        }
    )


# Lists


@register
def matrix(rng: Random, index: int) -> Schema:
    schema = make_integer(0, 9)
    for _ in range(index + 1):
        schema = make_array(schema, 2, index % 2)
    return make_object({"matrix": schema})


@register
def list_lengths(rng: Random, index: int) -> Schema:
    min_items, max_items = [(0, 0), (2, 2), (1, 4), (3, 5)][index]
    return make_object({"items": make_array(make_simple(rng), max_items, min_items)})


@register
def tuples(rng: Random, index: int) -> Schema:
    first = [make_simple(rng) for _ in range(index % 3 + 1)]
    schema: Schema = {"type": "array", "prefixItems": first, "minItems": len(first)}
    variants: list[Schema] = [
        {"items": False},
        {"maxItems": len(first)},
        {"items": NULL, "maxItems": 4},
    ]
    return make_object({"row": schema | [*variants, {"items": False}][index]})


# Realistic schemas


@register
def from_pydantic(rng: Random, index: int) -> Schema:
    level = {"enum": ["low", "high"], "title": "Level", "type": "string"}
    inner = make_object({"name": make_string(10) | {"title": "Name"}}) | {"title": "Inner"}
    properties: Schema = {
        "level": {"$ref": "#/$defs/Level"},
        "inner": {"anyOf": [{"$ref": "#/$defs/Inner"}, NULL], "default": None},
        "inners": make_array({"$ref": "#/$defs/Inner"}, 2) | {"title": "Inners"},
        "count": make_integer(0, 9)
        | {"default": 3, "description": "How many.", "examples": [1, 2]},
    }
    used = dict(list(properties.items())[: index + 1])
    schema = make_object(used, ["level"]) | {"title": "Outer", "$schema": DIALECT}
    return schema | {"$defs": {"Level": level, "Inner": inner}}


@register
def realistic_tool(rng: Random, index: int) -> Schema:
    variants: list[Schema] = [
        make_object({"city": make_string(20), "unit": make_enum("C", "F")}, ["city"]),
        make_object(
            {"query": make_string(30), "limit": make_integer(1, 50), "fresh": BOOLEAN}, ["query"]
        ),
        make_object(
            {
                "to": make_array({"type": "string", "format": "email"}, 2, 1),
                "subject": make_string(20),
            }
        ),
        make_object(
            {
                "from": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "date": {"type": "string", "format": "date"},
                "passengers": make_array(
                    make_object({"age": make_integer(0, 120), "seat": make_enum(*"ABC")}), 2, 1
                ),
            }
        ),
    ]
    return variants[index]
