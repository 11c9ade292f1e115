"""Two hundred schemas: fifty families that each show one thing, four of each, always the same.

All of them can be enforced whole, so that `strict` holds for each, and nearly all keep answers
short, so that a small model comes to an end. Chance draws the details and is seeded by the name.
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
        """The same as parameters of a tool, which are always an object."""
        if self.schema.get("type") == "object":
            return self.schema
        inner = {
            key: value for key, value in self.schema.items() if key not in ("$defs", "$schema")
        }
        whole = make_object({"value": inner})
        return whole | {"$defs": self.schema["$defs"]} if "$defs" in self.schema else whole


def make_cases() -> list[SchemaCase]:
    return [
        SchemaCase(f"{name}-{index}", make(Random(f"{name}-{index}"), index))
        for name, make in FAMILIES.items()
        for index in range(VARIANTS)
    ]


def register(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


# What families are made of


def make_object(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def make_array(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def choose_words(chance: Random, count: int) -> list[str]:
    return chance.sample(WORDS, count)


def text(most: int = 16) -> Schema:
    return {"type": "string", "maxLength": most}


def whole(least: int = 0, most: int = 999) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


NULL: Schema = {"type": "null"}
YES_NO: Schema = {"type": "boolean"}


def simple(chance: Random) -> Schema:
    """A value of a kind that ends soon."""
    made: list[Schema] = [
        text(chance.randint(4, 16)),
        whole(chance.randint(-50, 0), chance.randint(1, 5000)),
        {"type": "number", "minimum": 0, "maximum": chance.choice([1, 2.5, 100])},
        YES_NO,
        {"type": "string", "enum": choose_words(chance, 3)},
    ]
    return chance.choice(made)


def some(chance: Random, count: int) -> Schema:
    return {name: simple(chance) for name in choose_words(chance, count)}


# Objects and what they hold


@register
def flat(chance: Random, index: int) -> Schema:
    return make_object(some(chance, index + 2))


@register
def optional(chance: Random, index: int) -> Schema:
    properties = some(chance, index + 3)
    return make_object(properties, chance.sample(list(properties), index))


@register
def empty(chance: Random, index: int) -> Schema:
    nothing: Schema = {"type": "object", "additionalProperties": False}
    ways: list[Schema] = [
        nothing,
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        make_object({choose_words(chance, 1)[0]: nothing}),
        {"type": "object", "maxProperties": 0},
    ]
    return ways[index]


@register
def open_object(chance: Random, index: int) -> Schema:
    made = make_object(some(chance, 2))
    if index % 2:
        return made | {"additionalProperties": True}
    made.pop("additionalProperties")
    return made


@register
def map_of_values(chance: Random, index: int) -> Schema:
    inner = [whole(0, 9), YES_NO, text(6), make_array(whole(0, 9), 2)][index]
    return {"type": "object", "additionalProperties": inner}


@register
def map_besides_members(chance: Random, index: int) -> Schema:
    return make_object(some(chance, index % 2 + 1)) | {
        "additionalProperties": whole(0, 10 ** (index + 1))
    }


@register
def counted_members(chance: Random, index: int) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": whole(0, 99)}
    bounds = [{"maxProperties": 2}, {"minProperties": 1}, {"minProperties": 1, "maxProperties": 3}]
    return made | [*bounds, {"maxProperties": 1}][index]


@register
def named_members(chance: Random, index: int) -> Schema:
    names = {"propertyNames": {"enum": choose_words(chance, index + 2)}}
    return {"type": "object", "additionalProperties": simple(chance)} | names


@register
def members_by_pattern(chance: Random, index: int) -> Schema:
    patterns = ["^x_[a-z]{1,3}$", "^[A-Z]{2}$", "^n[0-9]$", "^(left|right)$"]
    made: Schema = {"type": "object", "additionalProperties": False, "maxProperties": 3}
    return made | {"patternProperties": {patterns[index]: whole(0, 9)}}


@register
def required_but_not_described(chance: Random, index: int) -> Schema:
    properties = some(chance, index + 1)
    undescribed = f"extra{index}"
    made = make_object(properties, [*properties, undescribed])
    return made | {"additionalProperties": [YES_NO, whole(0, 9), text(8), NULL][index]}


@register
def many_members(chance: Random, index: int) -> Schema:
    count = 8 + 4 * index
    kinds = [YES_NO, whole(0, 9), one_of("a", "b"), NULL]
    properties = {f"field_{at}": chance.choice(kinds) for at in range(count)}
    return make_object(properties, [name for name in properties if chance.random() < 0.5])


@register
def deep(chance: Random, index: int) -> Schema:
    made = simple(chance)
    for level in range(3 + 3 * index):
        made = (
            make_object({f"l{level}": made}) if level % 3 else make_object({f"l{level}": make_array(made, 1, 1)})
        )
    return made


@register
def awkward_keys(chance: Random, index: int) -> Schema:
    keys = [
        ['a "quoted" key', "back\\slash", "two words"],
        ["line\nbreak", "tab\there", "", "/~1"],
        ["$ref", "type", "properties", "enum"],
        ["</tool_call>", "<think>", "{", "}", "'", "[TOOL_CALLS]"],
    ]
    return make_object({key: chance.choice([YES_NO, whole(0, 9)]) for key in keys[index]})


@register
def unicode_keys(chance: Random, index: int) -> Schema:
    keys = [["größe", "naïve"], ["名前", "年齢"], ["🙂", "👩‍🚀 role"], ["ключ", "مفتاح", "e\u0301"]]
    return make_object({key: simple(chance) for key in keys[index]})


# References


@register
def shared_definition(chance: Random, index: int) -> Schema:
    made = make_object({name: {"$ref": "#/$defs/point"} for name in choose_words(chance, index % 3 + 1)})
    return made | {"$defs": {"point": make_object({"x": whole(0, 99), "y": whole(-index, 99)})}}


@register
def old_definitions(chance: Random, index: int) -> Schema:
    made = make_object({WORDS[index]: {"$ref": "#/definitions/some~1item"}})
    described = {"title": "A thing", "description": "Of some kind.", "default": None}
    return made | {"definitions": {"some/item": simple(chance) | described}} | described


@register
def chain_of_references(chance: Random, index: int) -> Schema:
    last = index + 2
    links: Schema = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(last)}
    return make_object({"value": {"$ref": "#/$defs/d0"}}) | {
        "$defs": links | {f"d{last}": simple(chance)}
    }


@register
def linked_list(chance: Random, index: int) -> Schema:
    rest: list[Schema] = [NULL, {"$ref": "#/$defs/node"}]
    node = make_object({"value": simple(chance), "next": {"anyOf": rest[:: -1 if index % 2 else 1]}})
    return make_object({"head": {"$ref": "#/$defs/node"}}) | {"$defs": {"node": node}}


@register
def tree(chance: Random, index: int) -> Schema:
    children = make_array({"$ref": "#"}, index % 2 + 1)
    return make_object({"name": text(6), "children": children}, ["name"] if index < 2 else None)


@register
def expression(chance: Random, index: int) -> Schema:
    inner: Schema = {"$ref": "#/$defs/expr"}
    total = make_object({"op": one_of(*"+-*/"[: index + 1]), "left": inner, "right": inner})
    either = {"anyOf": [whole(0, 9), {"$ref": "#/$defs/sum"}]}
    return make_object({"expr": inner}) | {"$defs": {"expr": either, "sum": total}}


# Choices and what is put together


@register
def choice_of_kinds(chance: Random, index: int) -> Schema:
    kinds = [text(8), whole(0, 99), YES_NO, NULL, make_array(YES_NO, 2)]
    return make_object({name: {"anyOf": chance.sample(kinds, index + 2)} for name in choose_words(chance, 2)})


@register
def choice_of_objects(chance: Random, index: int) -> Schema:
    shapes = [
        make_object({"kind": {"const": name}} | some(chance, at + 1))
        for at, name in enumerate(choose_words(chance, index + 2))
    ]
    return make_object({"shape": {"anyOf": shapes}})


@register
def exactly_one(chance: Random, index: int) -> Schema:
    named = choose_words(chance, 3)
    ways: list[Schema] = [
        make_object({"it": {"oneOf": [text(8), whole(0, 9), NULL]}}),
        make_object({"it": {"oneOf": [make_object({name: {"const": name}}) for name in named]}}),
        make_object({"it": {"oneOf": [whole(0, 9), whole(20, 29), {"const": 15}]}}),
        make_object({"it": {"oneOf": [make_object({"type": {"const": at}}) for at in (1, 2)]}}),
    ]
    return ways[index]


@register
def all_of(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 5}]},
        {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
        {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}, whole(0, 5)]},
    ]
    return make_object({"it": ways[index]})


@register
def extended(chance: Random, index: int) -> Schema:
    base = {"type": "object", "properties": {"id": whole(0, 99)}, "required": ["id"]}
    more = {"type": "object", "properties": some(chance, index + 1)}
    made: Schema = {"type": "object", "allOf": [{"$ref": "#/$defs/base"}, more]}
    if index % 2:
        made["allOf"].append({"required": list(more["properties"])})
    made["additionalProperties"] = False
    made["properties"] = {"id": {}} | dict.fromkeys(more["properties"], True)
    return made | {"$defs": {"base": base}}


@register
def nullable(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"type": ["string", "null"], "maxLength": 8},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"anyOf": [text(8), NULL], "default": None, "title": "Maybe"},
        {"enum": ["on", "off", None]},
    ]
    return make_object(dict.fromkeys(choose_words(chance, 3), ways[index]), [])


@register
def several_kinds(chance: Random, index: int) -> Schema:
    kinds = ["string", "integer", "boolean", "null"]
    made = {"type": kinds[: index + 1] + ["null"][: index < 3], "maxLength": 5, "maximum": 99}
    return make_object({name: made | {"minimum": 0} for name in choose_words(chance, 2)})


@register
def unsaid_kind(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [{"maxLength": 6}, {"minimum": 1, "maximum": 6}, {"maxItems": 1}, {}]
    inner = ways[index] | ({"items": YES_NO} if index == 2 else {})
    return make_object({choose_words(chance, 1)[0]: inner if index < 3 else True})


# Roots that are no objects


@register
def root_list(chance: Random, index: int) -> Schema:
    return make_array(simple(chance), index + 1, index % 2)


@register
def root_list_of_objects(chance: Random, index: int) -> Schema:
    return make_array(make_object(some(chance, 2)), index % 2 + 1, 1)


@register
def root_enum(chance: Random, index: int) -> Schema:
    return {"type": "string", "enum": choose_words(chance, 2 * index + 2)}


@register
def root_number(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        whole(-5, 5),
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 100, "maximum": 110},
        {"type": "number", "minimum": -1.5, "maximum": 1.5},
    ]
    return ways[index]


@register
def root_small(chance: Random, index: int) -> Schema:
    return [YES_NO, NULL, {"const": "yes"}, one_of(1, "1", None, True)][index]


@register
def root_text(chance: Random, index: int) -> Schema:
    ways = [text(), {"minLength": 3, "maxLength": 9}, {"pattern": "^[a-z]{2,6}$"}, text(40)]
    return {"type": "string"} | ways[index]


@register
def root_choice(chance: Random, index: int) -> Schema:
    ways: list[list[Schema]] = [
        [text(8), whole()],
        [make_object({"ok": YES_NO}), make_object({"error": text(12)})],
        [make_array(whole(0, 9), 3), NULL],
        [{"$ref": "#/$defs/leaf"}, make_array({"$ref": "#/$defs/leaf"}, 2)],
    ]
    made: Schema = {"anyOf": ways[index]}
    return made | {"$defs": {"leaf": simple(chance)}} if index == 3 else made


# Values


@register
def enum_of_all_kinds(chance: Random, index: int) -> Schema:
    values = [None, True, 0, -1.5, "x", "", [1, [2]], {"a": {"b": None}}, 'é"', 10**12, 1e-7]
    return make_object({name: one_of(*chance.sample(values, 3 + index)) for name in choose_words(chance, 2)})


@register
def unicode_enum(chance: Random, index: int) -> Schema:
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
    return make_object({"choice": {"type": "string", "enum": chance.sample(values, 2 + 2 * index)}})


@register
def constants(chance: Random, index: int) -> Schema:
    values: list[list[Any]] = [[None, True], [3, -0.25], ["ü\n", ""], [[], {"k": [1, "v"]}]]
    return make_object({f"c{at}": {"const": value} for at, value in enumerate(values[index])})


@register
def whole_numbers(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"minimum": -17, "maximum": 4},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 3},
        {"minimum": 1_000_000, "maximum": 9_999_999},
        {"maximum": -5, "minimum": -12_345},
    ]
    return make_object({name: {"type": "integer"} | ways[index] for name in choose_words(chance, 2)})


@register
def numbers(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"minimum": 0.5, "maximum": 0.75},
        {"exclusiveMinimum": -0.1, "exclusiveMaximum": 0.1},
        {"minimum": 99.5, "maximum": 1000.25},
        {"minimum": -273.15, "maximum": -1},
    ]
    return make_object({name: {"type": "number"} | ways[index] for name in choose_words(chance, 2)})


@register
def multiples(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        whole(0, 100) | {"multipleOf": 5},
        whole(-60, 60) | {"multipleOf": 7},
        {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25},
        {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01},
    ]
    return make_object(dict.fromkeys(choose_words(chance, 2), ways[index]))


@register
def text_lengths(chance: Random, index: int) -> Schema:
    lengths = [(0, 1), (3, 3), (5, 12), (20, 40)][index]
    made = {"type": "string", "minLength": lengths[0], "maxLength": lengths[1]}
    return make_object(dict.fromkeys(choose_words(chance, 2), made))


@register
def long_texts(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [{}, {"minLength": 1}, {"maxLength": 400}, {"minLength": 30}]
    return make_object({"text": {"type": "string"} | ways[index]})


@register
def formats(chance: Random, index: int) -> Schema:
    pairs = [("date", "time"), ("date-time", "uuid"), ("ipv4", "email"), ("duration", "hostname")]
    return make_object({name: {"type": "string", "format": name} for name in pairs[index]})


@register
def patterns(chance: Random, index: int) -> Schema:
    found = [
        ["^[A-Z]{3}-[0-9]{2}$", "^(red|green|blue)$"],
        ["^\\d{3}\\.\\d{2}$", "^#[0-9a-fA-F]{6}$"],
        ['^[^"\\\\]{1,8}$', "^a?b{2,4}c$"],
        ["^\\+?[0-9]{4,8}$", "^[日本語]{1,3}$"],
    ]
    return make_object(
        {f"p{at}": {"type": "string", "pattern": one} for at, one in enumerate(found[index])}
    )


# Lists


@register
def matrix(chance: Random, index: int) -> Schema:
    made = whole(0, 9)
    for _ in range(index + 1):
        made = make_array(made, 2, index % 2)
    return make_object({"matrix": made})


@register
def list_lengths(chance: Random, index: int) -> Schema:
    least, most = [(0, 0), (2, 2), (1, 4), (3, 5)][index]
    return make_object({"items": make_array(simple(chance), most, least)})


@register
def tuples(chance: Random, index: int) -> Schema:
    first = [simple(chance) for _ in range(index % 3 + 1)]
    made: Schema = {"type": "array", "prefixItems": first, "minItems": len(first)}
    ways: list[Schema] = [
        {"items": False},
        {"maxItems": len(first)},
        {"items": NULL, "maxItems": 4},
    ]
    return make_object({"row": made | [*ways, {"items": False}][index]})


# What people really send


@register
def from_pydantic(chance: Random, index: int) -> Schema:
    level = {"enum": ["low", "high"], "title": "Level", "type": "string"}
    inner = make_object({"name": text(10) | {"title": "Name"}}) | {"title": "Inner"}
    properties: Schema = {
        "level": {"$ref": "#/$defs/Level"},
        "inner": {"anyOf": [{"$ref": "#/$defs/Inner"}, NULL], "default": None},
        "inners": make_array({"$ref": "#/$defs/Inner"}, 2) | {"title": "Inners"},
        "count": whole(0, 9) | {"default": 3, "description": "How many.", "examples": [1, 2]},
    }
    kept = dict(list(properties.items())[: index + 1])
    made = make_object(kept, ["level"]) | {"title": "Outer", "$schema": DIALECT}
    return made | {"$defs": {"Level": level, "Inner": inner}}


@register
def realistic_tool(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        make_object({"city": text(20), "unit": one_of("C", "F")}, ["city"]),
        make_object({"query": text(30), "limit": whole(1, 50), "fresh": YES_NO}, ["query"]),
        make_object({"to": make_array({"type": "string", "format": "email"}, 2, 1), "subject": text(20)}),
        make_object(
            {
                "from": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "date": {"type": "string", "format": "date"},
                "passengers": make_array(make_object({"age": whole(0, 120), "seat": one_of(*"ABC")}), 2, 1),
            }
        ),
    ]
    return ways[index]
