"""Helpers for tests of the schema parser."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.grammar.schema.nodes import ParsedSchema
from dragoman.grammar.schema.schema_parser import parse_schema

PARAM = "response_format.json_schema.schema"


def parse(schema: Any, *, strict: bool = True, for_tool: bool = False) -> ParsedSchema:
    return parse_schema(schema, param=PARAM, strict=strict, for_tool=for_tool)


def parse_error(schema: Any, *, strict: bool = True, for_tool: bool = False) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(schema, strict=strict, for_tool=for_tool)
    assert caught.value.param == PARAM
    assert caught.value.message.startswith(f"`{PARAM}`")
    return caught.value


def try_parse(
    schema: Any, *, strict: bool = False, for_tool: bool = False
) -> ParsedSchema | BadRequest:
    try:
        return parse(schema, strict=strict, for_tool=for_tool)
    except BadRequest as error:
        return error


def object_schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


STRING = {"type": "string"}
