"""The numeric fields of all request types, and values at and beyond every boundary."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema

from dragoman.http.pages.openapi import render_document
from dragoman.http.router import Route
from tests.support.hostile_samples import takes_body

# JSON texts: no encoder writes all of these.
NOT_NUMBERS = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "1e400",
        "-1e400",
        "0x10",
        "01",
        "+1",
        ".5",
        "1.",
        "--1",
    ),
    *('"1"', '"nan"', '"Infinity"', "true", "false", "[]", "[1]", "{}", '{"a": 1}', '""', "١"),
]
BOUNDARIES = [
    *(
        "-1",
        "-0.0",
        "0",
        "1e-400",
        "5e-324",
        "0.5",
        "1",
        "1.0",
        "2",
        "20",
        "21",
        "128",
        "129",
        "1e9",
    ),
    *("-2", "-2.1", "100", "101", "1000", "1001", "65536", "1000000", "2147483647", "2147483648"),
    *("-2147483649", "4294967296", "9223372036854775807", "9223372036854775808", "1e18", "1e308"),
    *("-9223372036854775809", "18446744073709551616", "1" + "0" * 30, "9" * 5000, "-" + "9" * 400),
]


class NumericField(NamedTuple):
    """A numeric field of a request type, possibly inside an object of the body."""

    path: str
    name: str  # dotted inside an object
    schema: dict[str, Any]
    streams: bool

    def __str__(self) -> str:
        return f"{self.path} {self.name}"

    def write(self, body: dict[str, Any], raw: str) -> str:
        """Write a body in which this field has a value that is given as JSON."""
        outer, _, inner = self.name.partition(".")
        rest = json.dumps({name: value for name, value in body.items() if name != outer})
        value = f'{{"{inner}": {raw}}}' if inner else raw
        return f'{{"{outer}": {value}, {rest[1:]}' if len(rest) > 2 else f'{{"{outer}": {value}}}'

    def accepts(self, raw: str) -> bool:
        """Whether the schema of the field allows a value."""
        try:
            value = json.loads(raw)
        except ValueError:  # also raised for integers of thousands of digits
            return False
        if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            return False
        try:
            jsonschema.validate(value, self.schema)  # to which `1.0` is an integer, as to us
        except jsonschema.ValidationError:
            return False
        return True


def list_numeric_fields(routes: list[Route]) -> list[NumericField]:
    document = json.loads(render_document(routes))
    schemas = document["components"]["schemas"]
    fields = []
    for route in routes:
        if route.request_type is not None and takes_body(route) and not route.parameters:
            properties = schemas[route.request_type.__name__]["properties"]
            for name, schema in _find_numbers(properties, schemas):
                fields.append(NumericField(route.path, name, schema, route.streams))
    return fields


def _find_numbers(
    properties: dict[str, Any], schemas: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in properties.items():
        options = schema.get("anyOf", [schema])
        if any(option.get("type") in ("integer", "number") for option in options):
            yield prefix + name, schema
        for option in options:
            reference = option.get("$ref", "").rpartition("/")[2]
            if reference and not prefix:
                inner = schemas[reference].get("properties", {})
                yield from _find_numbers(inner, schemas, f"{name}.")


def pick_values(field: NumericField, count: int) -> list[str]:
    """Pick some of the values, others for each field, but always NaN, 1e400 and a large one."""
    values = [*NOT_NUMBERS, *BOUNDARIES]
    start = zlib.crc32(str(field).encode()) % len(values)
    rotated = (values[start:] + values[:start])[: max(0, count - 3)]
    return list(dict.fromkeys(["NaN", "1e400", "1000000000000000000", *rotated]))
