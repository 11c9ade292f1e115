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

EACH = 4
FAMILIES: dict[str, Family] = {}
WORDS = ["amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "lotus"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Case(NamedTuple):
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
        whole = closed({"value": inner})
        return whole | {"$defs": self.schema["$defs"]} if "$defs" in self.schema else whole


def corpus() -> list[Case]:
    return [
        Case(f"{name}-{index}", make(Random(f"{name}-{index}"), index))
        for name, make in FAMILIES.items()
        for index in range(EACH)
    ]


def family(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


# What families are made of


def closed(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def listed(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def words(chance: Random, count: int) -> list[str]:
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
        {"type": "string", "enum": words(chance, 3)},
    ]
    return chance.choice(made)


def some(chance: Random, count: int) -> Schema:
    return {name: simple(chance) for name in words(chance, count)}


# Objects and what they hold


@family
def flat(chance: Random, index: int) -> Schema:
    return closed(some(chance, index + 2))


@family
def optional(chance: Random, index: int) -> Schema:
    properties = some(chance, index + 3)
    return closed(properties, chance.sample(list(properties), index))


@family
def empty(chance: Random, index: int) -> Schema:
    nothing: Schema = {"type": "object", "additionalProperties": False}
    ways: list[Schema] = [
        nothing,
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        closed({words(chance, 1)[0]: nothing}),
        {"type": "object", "maxProperties": 0},
    ]
    return ways[index]


@family
def open_object(chance: Random, index: int) -> Schema:
    made = closed(some(chance, 2))
    if index % 2:
        return made | {"additionalProperties": True}
    made.pop("additionalProperties")
    return made


@family
def map_of_values(chance: Random, index: int) -> Schema:
    inner = [whole(0, 9), YES_NO, text(6), listed(whole(0, 9), 2)][index]
    return {"type": "object", "additionalProperties": inner}


@family
def map_besides_members(chance: Random, index: int) -> Schema:
    return closed(some(chance, index % 2 + 1)) | {
        "additionalProperties": whole(0, 10 ** (index + 1))
    }


@family
def counted_members(chance: Random, index: int) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": whole(0, 99)}
    bounds = [{"maxProperties": 2}, {"minProperties": 1}, {"minProperties": 1, "maxProperties": 3}]
    return made | [*bounds, {"maxProperties": 1}][index]


@family
def named_members(chance: Random, index: int) -> Schema:
    names = {"propertyNames": {"enum": words(chance, index + 2)}}
    return {"type": "object", "additionalProperties": simple(chance)} | names


@family
def members_by_pattern(chance: Random, index: int) -> Schema:
    patterns = ["^x_[a-z]{1,3}$", "^[A-Z]{2}$", "^n[0-9]$", "^(left|right)$"]
    made: Schema = {"type": "object", "additionalProperties": False, "maxProperties": 3}
    return made | {"patternProperties": {patterns[index]: whole(0, 9)}}


@family
def required_but_not_described(chance: Random, index: int) -> Schema:
    properties = some(chance, index + 1)
    undescribed = f"extra{index}"
    made = closed(properties, [*properties, undescribed])
    return made | {"additionalProperties": [YES_NO, whole(0, 9), text(8), NULL][index]}


@family
def many_members(chance: Random, index: int) -> Schema:
    count = 8 + 4 * index
    kinds = [YES_NO, whole(0, 9), one_of("a", "b"), NULL]
    properties = {f"field_{at}": chance.choice(kinds) for at in range(count)}
    return closed(properties, [name for name in properties if chance.random() < 0.5])


@family
def deep(chance: Random, index: int) -> Schema:
    made = simple(chance)
    for level in range(3 + 3 * index):
        made = (
            closed({f"l{level}": made}) if level % 3 else closed({f"l{level}": listed(made, 1, 1)})
        )
    return made


@family
def awkward_keys(chance: Random, index: int) -> Schema:
    keys = [
        ['a "quoted" key', "back\\slash", "two words"],
        ["line\nbreak", "tab\there", "", "/~1"],
        ["$ref", "type", "properties", "enum"],
        ["</tool_call>", "<think>", "{", "}", "'", "[TOOL_CALLS]"],
    ]
    return closed({key: chance.choice([YES_NO, whole(0, 9)]) for key in keys[index]})


@family
def unicode_keys(chance: Random, index: int) -> Schema:
    keys = [["größe", "naïve"], ["名前", "年齢"], ["🙂", "👩‍🚀 role"], ["ключ", "مفتاح", "e\u0301"]]
    return closed({key: simple(chance) for key in keys[index]})


# References


@family
def shared_definition(chance: Random, index: int) -> Schema:
    made = closed({name: {"$ref": "#/$defs/point"} for name in words(chance, index % 3 + 1)})
    return made | {"$defs": {"point": closed({"x": whole(0, 99), "y": whole(-index, 99)})}}


@family
def old_definitions(chance: Random, index: int) -> Schema:
    made = closed({WORDS[index]: {"$ref": "#/definitions/some~1item"}})
    described = {"title": "A thing", "description": "Of some kind.", "default": None}
    return made | {"definitions": {"some/item": simple(chance) | described}} | described


@family
def chain_of_references(chance: Random, index: int) -> Schema:
    last = index + 2
    links: Schema = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(last)}
    return closed({"value": {"$ref": "#/$defs/d0"}}) | {
        "$defs": links | {f"d{last}": simple(chance)}
    }


@family
def linked_list(chance: Random, index: int) -> Schema:
    rest: list[Schema] = [NULL, {"$ref": "#/$defs/node"}]
    node = closed({"value": simple(chance), "next": {"anyOf": rest[:: -1 if index % 2 else 1]}})
    return closed({"head": {"$ref": "#/$defs/node"}}) | {"$defs": {"node": node}}


@family
def tree(chance: Random, index: int) -> Schema:
    children = listed({"$ref": "#"}, index % 2 + 1)
    return closed({"name": text(6), "children": children}, ["name"] if index < 2 else None)


@family
def expression(chance: Random, index: int) -> Schema:
    inner: Schema = {"$ref": "#/$defs/expr"}
    total = closed({"op": one_of(*"+-*/"[: index + 1]), "left": inner, "right": inner})
    either = {"anyOf": [whole(0, 9), {"$ref": "#/$defs/sum"}]}
    return closed({"expr": inner}) | {"$defs": {"expr": either, "sum": total}}


# Choices and what is put together


@family
def choice_of_kinds(chance: Random, index: int) -> Schema:
    kinds = [text(8), whole(0, 99), YES_NO, NULL, listed(YES_NO, 2)]
    return closed({name: {"anyOf": chance.sample(kinds, index + 2)} for name in words(chance, 2)})


@family
def choice_of_objects(chance: Random, index: int) -> Schema:
    shapes = [
        closed({"kind": {"const": name}} | some(chance, at + 1))
        for at, name in enumerate(words(chance, index + 2))
    ]
    return closed({"shape": {"anyOf": shapes}})


@family
def exactly_one(chance: Random, index: int) -> Schema:
    named = words(chance, 3)
    ways: list[Schema] = [
        closed({"it": {"oneOf": [text(8), whole(0, 9), NULL]}}),
        closed({"it": {"oneOf": [closed({name: {"const": name}}) for name in named]}}),
        closed({"it": {"oneOf": [whole(0, 9), whole(20, 29), {"const": 15}]}}),
        closed({"it": {"oneOf": [closed({"type": {"const": at}}) for at in (1, 2)]}}),
    ]
    return ways[index]


@family
def all_of(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 5}]},
        {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
        {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}, whole(0, 5)]},
    ]
    return closed({"it": ways[index]})


@family
def extended(chance: Random, index: int) -> Schema:
    base = {"type": "object", "properties": {"id": whole(0, 99)}, "required": ["id"]}
    more = {"type": "object", "properties": some(chance, index + 1)}
    made: Schema = {"type": "object", "allOf": [{"$ref": "#/$defs/base"}, more]}
    if index % 2:
        made["allOf"].append({"required": list(more["properties"])})
    made["additionalProperties"] = False
    made["properties"] = {"id": {}} | dict.fromkeys(more["properties"], True)
    return made | {"$defs": {"base": base}}


@family
def nullable(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"type": ["string", "null"], "maxLength": 8},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"anyOf": [text(8), NULL], "default": None, "title": "Maybe"},
        {"enum": ["on", "off", None]},
    ]
    return closed(dict.fromkeys(words(chance, 3), ways[index]), [])


@family
def several_kinds(chance: Random, index: int) -> Schema:
    kinds = ["string", "integer", "boolean", "null"]
    made = {"type": kinds[: index + 1] + ["null"][: index < 3], "maxLength": 5, "maximum": 99}
    return closed({name: made | {"minimum": 0} for name in words(chance, 2)})


@family
def unsaid_kind(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [{"maxLength": 6}, {"minimum": 1, "maximum": 6}, {"maxItems": 1}, {}]
    inner = ways[index] | ({"items": YES_NO} if index == 2 else {})
    return closed({words(chance, 1)[0]: inner if index < 3 else True})


# Roots that are no objects


@family
def root_list(chance: Random, index: int) -> Schema:
    return listed(simple(chance), index + 1, index % 2)


@family
def root_list_of_objects(chance: Random, index: int) -> Schema:
    return listed(closed(some(chance, 2)), index % 2 + 1, 1)


@family
def root_enum(chance: Random, index: int) -> Schema:
    return {"type": "string", "enum": words(chance, 2 * index + 2)}


@family
def root_number(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        whole(-5, 5),
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 100, "maximum": 110},
        {"type": "number", "minimum": -1.5, "maximum": 1.5},
    ]
    return ways[index]


@family
def root_small(chance: Random, index: int) -> Schema:
    return [YES_NO, NULL, {"const": "yes"}, one_of(1, "1", None, True)][index]


@family
def root_text(chance: Random, index: int) -> Schema:
    ways = [text(), {"minLength": 3, "maxLength": 9}, {"pattern": "^[a-z]{2,6}$"}, text(40)]
    return {"type": "string"} | ways[index]


@family
def root_choice(chance: Random, index: int) -> Schema:
    ways: list[list[Schema]] = [
        [text(8), whole()],
        [closed({"ok": YES_NO}), closed({"error": text(12)})],
        [listed(whole(0, 9), 3), NULL],
        [{"$ref": "#/$defs/leaf"}, listed({"$ref": "#/$defs/leaf"}, 2)],
    ]
    made: Schema = {"anyOf": ways[index]}
    return made | {"$defs": {"leaf": simple(chance)}} if index == 3 else made


# Values


@family
def enum_of_all_kinds(chance: Random, index: int) -> Schema:
    values = [None, True, 0, -1.5, "x", "", [1, [2]], {"a": {"b": None}}, 'é"', 10**12, 1e-7]
    return closed({name: one_of(*chance.sample(values, 3 + index)) for name in words(chance, 2)})


@family
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
    return closed({"choice": {"type": "string", "enum": chance.sample(values, 2 + 2 * index)}})


@family
def constants(chance: Random, index: int) -> Schema:
    values: list[list[Any]] = [[None, True], [3, -0.25], ["ü\n", ""], [[], {"k": [1, "v"]}]]
    return closed({f"c{at}": {"const": value} for at, value in enumerate(values[index])})


@family
def whole_numbers(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"minimum": -17, "maximum": 4},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 3},
        {"minimum": 1_000_000, "maximum": 9_999_999},
        {"maximum": -5, "minimum": -12_345},
    ]
    return closed({name: {"type": "integer"} | ways[index] for name in words(chance, 2)})


@family
def numbers(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        {"minimum": 0.5, "maximum": 0.75},
        {"exclusiveMinimum": -0.1, "exclusiveMaximum": 0.1},
        {"minimum": 99.5, "maximum": 1000.25},
        {"minimum": -273.15, "maximum": -1},
    ]
    return closed({name: {"type": "number"} | ways[index] for name in words(chance, 2)})


@family
def multiples(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        whole(0, 100) | {"multipleOf": 5},
        whole(-60, 60) | {"multipleOf": 7},
        {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25},
        {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01},
    ]
    return closed(dict.fromkeys(words(chance, 2), ways[index]))


@family
def text_lengths(chance: Random, index: int) -> Schema:
    lengths = [(0, 1), (3, 3), (5, 12), (20, 40)][index]
    made = {"type": "string", "minLength": lengths[0], "maxLength": lengths[1]}
    return closed(dict.fromkeys(words(chance, 2), made))


@family
def long_texts(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [{}, {"minLength": 1}, {"maxLength": 400}, {"minLength": 30}]
    return closed({"text": {"type": "string"} | ways[index]})


@family
def formats(chance: Random, index: int) -> Schema:
    pairs = [("date", "time"), ("date-time", "uuid"), ("ipv4", "email"), ("duration", "hostname")]
    return closed({name: {"type": "string", "format": name} for name in pairs[index]})


@family
def patterns(chance: Random, index: int) -> Schema:
    found = [
        ["^[A-Z]{3}-[0-9]{2}$", "^(red|green|blue)$"],
        ["^\\d{3}\\.\\d{2}$", "^#[0-9a-fA-F]{6}$"],
        ['^[^"\\\\]{1,8}$', "^a?b{2,4}c$"],
        ["^\\+?[0-9]{4,8}$", "^[日本語]{1,3}$"],
    ]
    return closed(
        {f"p{at}": {"type": "string", "pattern": one} for at, one in enumerate(found[index])}
    )


# Lists


@family
def matrix(chance: Random, index: int) -> Schema:
    made = whole(0, 9)
    for _ in range(index + 1):
        made = listed(made, 2, index % 2)
    return closed({"matrix": made})


@family
def list_lengths(chance: Random, index: int) -> Schema:
    least, most = [(0, 0), (2, 2), (1, 4), (3, 5)][index]
    return closed({"items": listed(simple(chance), most, least)})


@family
def tuples(chance: Random, index: int) -> Schema:
    first = [simple(chance) for _ in range(index % 3 + 1)]
    made: Schema = {"type": "array", "prefixItems": first, "minItems": len(first)}
    ways: list[Schema] = [
        {"items": False},
        {"maxItems": len(first)},
        {"items": NULL, "maxItems": 4},
    ]
    return closed({"row": made | [*ways, {"items": False}][index]})


# What people really send


@family
def from_pydantic(chance: Random, index: int) -> Schema:
    level = {"enum": ["low", "high"], "title": "Level", "type": "string"}
    inner = closed({"name": text(10) | {"title": "Name"}}) | {"title": "Inner"}
    properties: Schema = {
        "level": {"$ref": "#/$defs/Level"},
        "inner": {"anyOf": [{"$ref": "#/$defs/Inner"}, NULL], "default": None},
        "inners": listed({"$ref": "#/$defs/Inner"}, 2) | {"title": "Inners"},
        "count": whole(0, 9) | {"default": 3, "description": "How many.", "examples": [1, 2]},
    }
    kept = dict(list(properties.items())[: index + 1])
    made = closed(kept, ["level"]) | {"title": "Outer", "$schema": DIALECT}
    return made | {"$defs": {"Level": level, "Inner": inner}}


@family
def realistic_tool(chance: Random, index: int) -> Schema:
    ways: list[Schema] = [
        closed({"city": text(20), "unit": one_of("C", "F")}, ["city"]),
        closed({"query": text(30), "limit": whole(1, 50), "fresh": YES_NO}, ["query"]),
        closed({"to": listed({"type": "string", "format": "email"}, 2, 1), "subject": text(20)}),
        closed(
            {
                "from": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "date": {"type": "string", "format": "date"},
                "passengers": listed(closed({"age": whole(0, 120), "seat": one_of(*"ABC")}), 2, 1),
            }
        ),
    ]
    return ways[index]
