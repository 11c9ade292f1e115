"""Hostile constraints, and the requests that contain them.

A value is a JSON text, since encoders cannot write many of the hostile ones. Each value has a kind
(a schema, a grammar, a pattern, a list of choices, or a whole body), and each kind fits some fields
of a request. `CASES` has every value in one of its fields, in rotation; `ALL_CASES` has every value
in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from tests.support.hostile_grammars import CHOICES, GRAMMARS, PATTERNS

MODEL = "smollm2-135m"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENS = 4
LargeText = Callable[[], str]  # large texts are built on demand


class HostileCase(NamedTuple):
    """One value in one field."""

    kind: str
    name: str
    field: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} in {self.field}"

    @property
    def path(self) -> str:
        return FIELDS[self.kind][self.field][0]

    def body(self, more: str = "") -> bytes:
        """Return the request body, with `more` fields."""
        path, template = FIELDS[self.kind][self.field]
        value = VALUES[self.kind][self.name]
        text = value if isinstance(value, str) else value()
        if template == "LARK":
            template, text = '"grammar":VALUE', json.dumps("start: %json " + text)
        prompt = (
            '"messages":[{"role":"user","content":"Go."}]' if path == CHAT else '"prompt":"Go."'
        )
        head = f'{{"model":"{MODEL}","max_tokens":{TOKENS},{more}{prompt},'
        # lone surrogates are sent the way a careless encoder would
        return (head + template.replace("VALUE", text) + "}").encode("utf-8", "surrogatepass")


def _make_tool_fields(choice: str, more: str = "") -> str:
    return (
        '"tools":[{"type":"function","function":{"name":"act"'
        + more
        + ',"parameters":VALUE}}],"tool_choice":'
        + choice
    )


def _make_format_field(strict: str) -> str:
    inner = '{"name":"made","schema":VALUE' + strict + "}"
    return '"response_format":{"type":"json_schema","json_schema":' + inner + "}"


NAMED_CHOICE = '{"type":"function","function":{"name":"act"}}'
# kind -> field -> path of the endpoint and template of the body
FIELDS: dict[str, dict[str, tuple[str, str]]] = {
    "schema": {
        "response_format strict": (CHAT, _make_format_field(',"strict":true')),
        "tools auto": (CHAT, _make_tool_fields('"auto"')),
        "response_format": (CHAT, _make_format_field("")),
        "tools required strict": (CHAT, _make_tool_fields('"required"', ',"strict":true')),
        "completions response_format": (TEXT, _make_format_field(',"strict":true')),
        "tools named": (CHAT, _make_tool_fields(NAMED_CHOICE)),
        "guided_json": (TEXT, '"guided_json":VALUE'),
        "both": (
            CHAT,
            _make_tool_fields('"auto"', ',"strict":true') + "," + _make_format_field(""),
        ),
        "structured_outputs.json": (CHAT, '"structured_outputs":{"json":VALUE}'),
        "json_schema": (CHAT, '"json_schema":VALUE'),
        "grammar json": (TEXT, '"grammar":{"type":"json_schema","grammar":VALUE}'),
        "schema": (CHAT, '"response_format":{"type":"json_object","schema":VALUE}'),
        "lark": (TEXT, "LARK"),
    },
    "grammar": {
        "grammar": (CHAT, '"grammar":VALUE'),
        "guided_grammar": (TEXT, '"guided_grammar":VALUE'),
        "structured_outputs.grammar": (TEXT, '"structured_outputs":{"grammar":VALUE}'),
        "lark": (CHAT, '"grammar":{"type":"lark","grammar":VALUE}'),
        "gbnf": (TEXT, '"grammar":{"type":"gbnf","grammar":VALUE}'),
    },
    "pattern": {
        "regex": (CHAT, '"regex":VALUE'),
        "guided_regex": (TEXT, '"guided_regex":VALUE'),
        "structured_outputs.regex": (TEXT, '"structured_outputs":{"regex":VALUE}'),
        "grammar regex": (CHAT, '"grammar":{"type":"regex","grammar":VALUE}'),
        "schema": (
            CHAT,
            _make_format_field("").replace("VALUE", '{"type":"string","pattern":VALUE}'),
        ),
        "tools": (
            CHAT,
            _make_tool_fields('"required"', ',"strict":true').replace(
                "VALUE", '{"type":"object","properties":{"a":{"pattern":VALUE}},"required":["a"]}'
            ),
        ),
    },
    "choice": {
        "choice": (CHAT, '"choice":VALUE'),
        "guided_choice": (TEXT, '"guided_choice":VALUE'),
        "structured_outputs.choice": (TEXT, '"structured_outputs":{"choice":VALUE}'),
        "enum": (CHAT, _make_format_field(',"strict":true').replace("VALUE", '{"enum":VALUE}')),
    },
    "body": {"body": (CHAT, "VALUE")},
}


# Schemas


def nest(before: str, times: int, inner: str = '{"type":"null"}', after: str = "}") -> LargeText:
    return lambda: before * times + inner + after * times


def chain_definitions(count: int, body: str, last: str = '{"type":"string"}') -> LargeText:
    """Make definitions that each refer to the next; THEN in `body` is replaced with it."""

    def make() -> str:
        definitions = (f'"d{i}":{body.replace("THEN", _make_ref(i + 1))}' for i in range(count))
        return f'{{"$ref":"#/$defs/d0","$defs":{{{",".join(definitions)},"d{count}":{last}}}}}'

    return make


def _make_ref(number: int) -> str:
    return f'{{"$ref":"#/$defs/d{number}"}}'


def repeat_item(count: int, item: str, wrap: str) -> LargeText:
    """Make a list of items; NUMBER in an item is replaced with its number."""
    return lambda: wrap.replace(
        "LIST", ",".join(item.replace("NUMBER", str(i)) for i in range(count))
    )


def multiply_choices(options: int, factors: int) -> LargeText:
    """Make an allOf of choices: the number of results is `options` to the power of `factors`."""

    def make() -> str:
        choices = (
            {
                "anyOf": [
                    {"required": [f"k{i}_{j}"], "properties": {f"k{i}_{j}": {"minLength": j}}}
                    for j in range(options)
                ]
            }
            for i in range(factors)
        )
        return json.dumps({"type": "object", "allOf": list(choices)})

    return make


PAIR_SCHEMA = '{"type":"object","properties":{"a":THEN,"b":THEN},"required":["a","b"]}'
SPECIAL_TEXTS = (
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    '"}\n',
    "\\",
    "a|b.*(",
    "{{x}}",
    "\u2028",
)
OBJECT_SCHEMA = '{"type":"object","properties":{LIST}}'

DEEP: dict[str, str | LargeText] = {
    **{f"{n} arrays": nest('{"type":"array","items":', n) for n in (62, 100, 1_000, 100_000)},
    **{
        f"{n} objects": nest('{"type":"object","required":["a"],"properties":{"a":', n, after="}}")
        for n in (62, 100, 300, 2_000, 100_000)
    },
    **{f"{n} anyOf": nest('{"anyOf":[', n, after="]}") for n in (60, 1_000, 50_000)},
    "300 allOf": nest('{"allOf":[{"type":"object"},', 300, "{}", "]}"),
    "1,000 not": nest('{"not":', 1_000),
    "60 if": nest('{"if":{"type":"string"},"then":', 60),
    "60 optional": nest('{"type":["object","null"],"properties":{"a":{},"b":', 60, after="}}"),
    "a deep const": nest("[", 50_000, '{"const":1}', "]"),
    "a deep enum": lambda: '{"enum":[' + "[" * 5_000 + "]" * 5_000 + "]}",
}
WIDE: dict[str, str | LargeText] = {
    "10 to the 20": multiply_choices(10, 20),
    "2 to the 62": multiply_choices(2, 62),
    "anyOf of anyOf": nest('{"anyOf":[{"type":"string"},{"minItems":2},', 30, "{}", "]}"),
    "choices in choices": lambda: _make_choice_tree(12),
    "oneOf of 300": repeat_item(300, '{"type":"string","pattern":"^aNUMBER"}', '{"oneOf":[LIST]}'),
    "oneOf of objects": repeat_item(
        60, '{"properties":{"aNUMBER":{"type":"string"}}}', '{"type":"object","oneOf":[LIST]}'
    ),
    "allOf of 5,000": repeat_item(5_000, '{"minLength":NUMBER}', '{"allOf":[LIST]}'),
    "doubling members": chain_definitions(40, PAIR_SCHEMA),
    "doubling choices": chain_definitions(40, '{"anyOf":[THEN,{"type":"array","items":THEN}]}'),
    "doubling parts": chain_definitions(30, '{"allOf":[THEN,THEN]}', '{"type":"object"}'),
    "doubling items": chain_definitions(
        40, '{"type":"array","prefixItems":[THEN,THEN],"minItems":2}'
    ),
    "tripling oneOf": chain_definitions(12, '{"oneOf":[THEN,THEN,{"type":"array","items":THEN}]}'),
    "a chain of 60": chain_definitions(60, '{"type":"array","items":THEN}'),
    "a chain of 5,000": chain_definitions(5_000, "THEN"),
    "1,000 members": repeat_item(1_000, '"kNUMBER":{"type":"integer"}', OBJECT_SCHEMA),
    "60 members of 60": lambda: _make_square_schema(60),
    "200,000 members": repeat_item(200_000, '"kNUMBER":{"type":"integer"}', OBJECT_SCHEMA),
    "patternProperties": repeat_item(
        200,
        '".*aNUMBER.*":{"minimum":NUMBER}',
        '{"type":"object","patternProperties":{LIST}}',
    ),
    "a large description": lambda: '{"type":"null","description":"' + "x" * 5_000_000 + '"}',
}
REFERENCES: dict[str, str | LargeText] = {
    "itself": '{"$ref":"#"}',
    "itself in a choice": '{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}',
    "each other": '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},'
    '"b":{"$ref":"#/$defs/a"}}}',
    "a tree": '{"type":"object","properties":{"l":{"$ref":"#"},"r":{"$ref":"#"}}}',
    "no end": '{"type":"object","properties":{"l":{"$ref":"#"}},"required":["l"]}',
    "all of each other": repeat_item(
        60,
        '"dNUMBER":{"anyOf":['
        + ",".join(f'{{"type":"array","items":{_make_ref(i)}}}' for i in range(60))
        + "]}",
        '{"$ref":"#/$defs/d0","$defs":{LIST}}',
    ),
    "allOf of itself": '{"allOf":[{"$ref":"#"},{"type":"object","properties":{"a":{"$ref":"#"}}}]}',
    "http": '{"$ref":"http://127.0.0.1:9/schema.json"}',
    "a file": '{"$ref":"file:///etc/passwd"}',
    "metadata": '{"properties":{"a":{"$ref":"http://169.254.169.254/latest/meta-data/"}}}',
    "a relative one": '{"$id":"http://localhost:9/","$ref":"other.json"}',
    "$dynamicRef": '{"$dynamicRef":"#meta","$dynamicAnchor":"meta"}',
    "into a value": '{"$ref":"#/enum/0","enum":[{"type":"string"},"a"]}',
    "an odd pointer": '{"$ref":"#/%00/%ff/~2/__proto__"}',
    "a long pointer": lambda: json.dumps({"$ref": "#" + "/a" * 50_000}),
}
LARGE: dict[str, str | LargeText] = {
    "20,000 values": repeat_item(20_000, '"value NUMBER"', '{"enum":[LIST]}'),
    "5,000 values": repeat_item(5_000, '"value NUMBER"', '{"enum":[LIST]}'),
    "one of 5 MB": lambda: '{"enum":["' + "a" * 5_000_000 + '"]}',
    "maxLength": '{"type":"string","maxLength":1000000000}',
    "minLength": '{"type":"string","minLength":1000000000}',
    "minLength below the limit": '{"type":"string","minLength":99999,"maxLength":100000}',
    "lengths of lengths": repeat_item(
        300, '"kNUMBER":{"type":"string","minLength":NUMBER,"maxLength":9NUMBER}', OBJECT_SCHEMA
    ),
    "minItems": '{"type":"array","minItems":1000000}',
    "items of items": nest(
        '{"type":"array","minItems":1999,"maxItems":2000,"items":', 20, '{"maxLength":99999}'
    ),
    "minProperties": '{"type":"object","minProperties":1000000}',
    "maxProperties": '{"type":"object","maxProperties":1999,"propertyNames":{"pattern":"^a+$"}}',
    "beyond floats": '{"type":"number","maximum":1' + "0" * 400 + "}",
    "1e400": '{"type":"number","maximum":1e400}',
    "a small step": '{"type":"number","multipleOf":1e-300}',
    "a large step": '{"type":"number","minimum":-1e308,"maximum":1e308,"multipleOf":1e300}',
    "odd steps": '{"type":"number","minimum":0.1,"maximum":1e16,"multipleOf":0.30000000000000004}',
    "steps of steps": '{"type":"integer","allOf":['
    + ",".join(f'{{"multipleOf":{n}}}' for n in (7919, 7907, 7901, 7883, 7879, 7877))
    + "]}",
    "far bounds": '{"type":"integer","minimum":-99999999999999999,"maximum":99999999999999999}',
    "a huge number": '{"const":1' + "0" * 5_000 + "}",
}
ODD: dict[str, str | LargeText] = {
    "NaN": '{"type":"number","minimum":NaN}',
    "Infinity": '{"type":"number","maximum":Infinity}',
    "NUL in a key": '{"type":"object","properties":{"a\\u0000b":{"const":"\\u0000"}}}',
    "half a character": '{"type":"object","properties":{"\\ud800":{"enum":["\\udfff"]}}}',
    "half a character, raw": '{"enum":["\ud800"]}',
    "__proto__": '{"type":"object","properties":{"__proto__":{"type":"string"},"constructor":{}}}',
    "a long key": lambda: '{"type":"object","required":["' + "k" * 100_000 + '"]}',
    "special texts in keys": json.dumps(
        {"type": "object", "properties": {text: {"const": text} for text in SPECIAL_TEXTS}}
    ),
    "special texts required": json.dumps({"type": "object", "required": list(SPECIAL_TEXTS)}),
    "parser options": '{"x-guidance":{"whitespace_flexible":5,"lenient":true},"not":{"x":1}}',
    "two of a name": '{"type":"string","type":"object","properties":{"a":{}},"properties":5}',
    "null": "null",
    "a list": "[[[]]]",
    "a text": '"{"',
    "false": "false",
    **{
        members: "{" + members + "}"
        for members in (
            '"type":5', '"type":[]', '"type":"text"', '"pattern":"["', '"required":"x"',
            '"enum":[]', '"enum":{}', '"properties":[]', '"properties":{"a":5}', '"items":5',
            '"anyOf":{}', '"$ref":5', '"minLength":-1', '"minLength":1.5', '"minimum":"a"',
            '"multipleOf":0', '"additionalProperties":"x"', '"$defs":5,"$ref":"#/$defs/a"',
            '"minimum":5,"maximum":1', '"allOf":[{"type":"string"},{"type":"object"}]',
            '"type":"string","minLength":9,"enum":["a"]', '"format":5', '"format":"\\n"',
        )
    },
}  # fmt: skip


def _make_choice_tree(depth: int) -> str:
    """Make nested choices of two options each."""
    if depth == 0:
        return '{"type":"object","properties":{"a":{"type":"string"}}}'
    inner = _make_choice_tree(depth - 1)
    return f'{{"anyOf":[{inner},{{"type":"array","items":{inner}}}]}}'


def _make_square_schema(side: int) -> str:
    names = [f"k{i}" for i in range(side)]
    inner = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return json.dumps({"type": "object", "properties": dict.fromkeys(names, inner)})


# Whole bodies


def make_tools(
    count: int, schema: str = '{"type":"object"}', name: str = '"toolNUMBER"'
) -> LargeText:
    tool = '{"type":"function","function":{"name":' + name + ',"parameters":' + schema + "}}"
    return repeat_item(count, tool, '"tool_choice":"required","tools":[LIST]')


def make_named_tool(name: str) -> LargeText:
    return make_tools(1, name=json.dumps(name))


LARGE_SCHEMA = (
    '{"type":"object","properties":{"a":{"enum":["x","y"]},"b":{"type":"string","maxLength":99}}}'
)
BODIES: dict[str, str | LargeText] = {
    "1,000 tools": make_tools(1_000, LARGE_SCHEMA),
    "1,025 tools": make_tools(1_025),
    "64 tools of 60 members": make_tools(64, _make_square_schema(8)),
    "two of a name": make_tools(2, name='"same"'),
    **{
        f"called {name[:12]!r}": make_named_tool(name)
        for name in ('a"b', "a\nb", "(a|b)*", "<tool_call>", "a\x00b", "n" * 512, "/x/", "{{x}}")
    },
    "half a name": make_tools(1, name='"\\ud800"'),
    "a grammar and a pattern": '"grammar":"root ::= \\"a\\"","regex":"a"',
    "nothing structured": '"structured_outputs":{}',
    "all of it": '"structured_outputs":{"json":{},"regex":"a","choice":["a"]},"guided_json":{}',
    "a choice of nothing": '"tool_choice":"required"',
    "an odd choice": '"tool_choice":{"type":"function","function":{"name":{}}},"tools":[]',
    "an odd format": '"response_format":{"type":{"type":"json_schema"}}',
    "no schema": '"response_format":{"type":"json_schema","json_schema":{"name":"a"}}',
    "a deep choice": lambda: '"tool_choice":' + "[" * 100_000 + "]" * 100_000,
    "10 MB of schema": repeat_item(330_000, '"kNUMBER":{"type":"object"}', '"guided_json":{LIST}'),
    "10 MB of nothing": lambda: '"response_format":{"type":"text"},"x":"' + "x" * 10_000_000 + '"',
    "10 MB of lists": lambda: '"guided_json":{"a":[' + "[]," * 3_500_000 + "1]}",
    "10 MB, twice": lambda: '"tools":[' + "{}," * 3_500_000 + '1],"tools":[]',
    "many choices": '"n":8,"regex":"(x+x+)+y"',
}

VALUES: dict[str, dict[str, str | LargeText]] = {
    "schema": DEEP | WIDE | REFERENCES | LARGE | ODD,
    "grammar": GRAMMARS,
    "pattern": PATTERNS,
    "choice": CHOICES,
    "body": BODIES,
}

ALL_CASES = [
    HostileCase(kind, name, field)
    for kind, values in VALUES.items()
    for name in values
    for field in FIELDS[kind]
]
CASES = [
    HostileCase(kind, name, list(FIELDS[kind])[index % len(FIELDS[kind])])
    for kind, values in VALUES.items()
    for index, name in enumerate(values)
]
