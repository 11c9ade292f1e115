"""From the text of an argument to its value, as the tool's schema wants it.

Formats that write arguments between tags write text; only the schema says that `3` is a number and
`02134` is not. Models imitate the template that taught them, and several templates write Python
(`True`, `{'a': None}`), so both spellings are read. Text that is not what the schema says stays
text: nothing is lost, and whoever runs the tool can say what is wrong with it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Types: TypeAlias = frozenset[str]

STRING: Types = frozenset({"string"})
ANY: Types = frozenset()
KINDS = ("null", "boolean", "integer", "number", "object", "array")
_SYNONYMS = {"str": "string", "text": "string", "int": "integer", "float": "number"}
_SYNONYMS |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
_SYNONYMS |= {"varchar": "string", "char": "string", "enum": "string", "uint": "integer"}
_INTEGER = re.compile(r"[-+]?\d{1,400}")
_NUMBER = re.compile(r"[-+]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][-+]?\d{1,3})?")
DEEPEST = 64


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> Types:
    """The kinds of value that a schema allows; none of them means any."""
    if not isinstance(schema, Mapping) or depth > 8:
        return ANY
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({_SYNONYMS.get(said, said)})
    if isinstance(said, list):
        return frozenset(_SYNONYMS.get(one, one) for one in said if isinstance(one, str))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return types_of(_resolve(reference, root), root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and choices:
            kinds = [types_of(one, root, depth + 1) for one in choices]
            return frozenset().union(*kinds) if all(kinds) else ANY
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_kind, schema["enum"]))
    if "const" in schema:
        return frozenset({_kind(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def parameters(schema: object) -> dict[str, Types]:
    """The kinds of each parameter of a tool."""
    if not isinstance(schema, Mapping):
        return {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {key: types_of(one, schema) for key, one in properties.items() if isinstance(key, str)}


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    node: object = root
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def cast(text: str, types: Types) -> str:
    """The text of an argument as JSON."""
    if types == STRING:
        return json.dumps(text, ensure_ascii=False)
    said = text.strip()
    for kind in _order(types):
        found = _READERS[kind](said)
        if found is not None:
            return found
    return json.dumps(text, ensure_ascii=False)


def _order(types: Types) -> Iterator[str]:
    return (kind for kind in KINDS if kind in types)


def _null(text: str) -> str | None:
    return "null" if text in ("null", "None", "NULL", "nil", "") else None


def _boolean(text: str) -> str | None:
    said = text.lower()
    return said if said in ("true", "false") else None


def _integer(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return str(int(text))
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number.is_integer():
            return str(int(number))
    return None


def _number(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return str(int(text))
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return json.dumps(number)
    return None


def _object(text: str) -> str | None:
    return _container(text, "{", dict)


def _array(text: str) -> str | None:
    return _container(text, "[(", list)


_READERS = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _object,
    "array": _array,
}


def _container(text: str, opens: str, kind: type) -> str | None:
    """JSON as it is; Python's literals rewritten."""
    if text[:1] not in opens or not text:
        return None
    value = loads(text)
    return None if not isinstance(value, kind) else _text(text, value)


def _text(text: str, value: object) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return text


def loads(text: str) -> object:
    """A value of JSON or of Python's literals, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if not _shallow(text):
        return None
    try:
        value = ast.literal_eval(text)
        return json.loads(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def read(text: str) -> str | None:
    """A value of JSON or of Python's literals as JSON, or None if it is neither."""
    said = text.strip()
    try:
        json.loads(said)
    except (ValueError, RecursionError):
        value = loads(said)
        known = value is not None or said == "None"
        return json.dumps(value, ensure_ascii=False) if known else None
    return said


def _shallow(text: str) -> bool:
    """Whether brackets nest no deeper than Python's own parser can take."""
    depth = 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if depth > DEEPEST:
            return False
    return True


def _plain(value: object) -> object:
    if isinstance(value, tuple | set | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


def guess(text: str, among: Sequence[str] = KINDS) -> str:
    """The text as what it looks like, for arguments that nobody described."""
    return cast(text, frozenset(among))
