"""Reading JSON bodies: one decoder, and errors in words a person can act on.

Bodies are decoded straight into Structs whose annotations are the rules (types, ranges, lengths),
so that what is checked is also what the OpenAPI document says. What the decoder complains about is
put into plain words, with `param` as a path like `messages[2].role`.

Decoding holds up the event loop, and a schema is many small things, so the sizes of all fields are
looked at first. Only what is mostly text may be as large as the body, and not even that may be
lists of lists throughout.
"""

from __future__ import annotations

import logging
import re
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest

log = logging.getLogger("dragoman.protocols")

T = TypeVar("T", bound=Struct)
V = TypeVar("V")
Fields: TypeAlias = dict[str, msgspec.Raw]

LARGEST = 1 << 19  # bytes of a field
MOST = 500_000  # lists and objects of a body, those in texts counted too
DEEPEST = 256  # of what is kept as it came: it is written out again, from deeper in the program
TEXTS = frozenset({"messages", "prompt", "input", "instructions", "items", "system", "tokens"})
_EXPECTED = re.compile(r"^Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_BOUND = re.compile(r"^Expected `(?P<kind>\w+)` (?P<rule>of length )?(?P<op>[<>=]+) (?P<limit>\S+)")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
_PATH = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SIZES = {"str": "characters", "array": "entries", "object": "entries"}


def decode_body(body: bytes, kind: type[T], strict: bool = False) -> T:
    """Decode a body. Fields the Struct does not have are logged, or refused if `strict`."""
    try:
        if not body.isascii():
            body.decode()  # what is skipped or kept as it came is not looked at otherwise
        fields = msgspec.json.decode(body, type=Fields)
        known = set(kind.__struct_encode_fields__)
        if len(body) > LARGEST:
            _measure(body, fields, known - TEXTS)
        decoded = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None
    unknown = [name for name in fields if name not in known]
    if unknown and strict:
        raise BadRequest(
            f"Unrecognized field `{unknown[0]}`.", param=unknown[0], code="unknown_parameter"
        )
    if unknown:
        log.info("ignored unknown fields: %s", ", ".join(repr(name[:64]) for name in unknown[:16]))
    return decoded


def _measure(body: bytes, fields: Fields, small: set[str]) -> None:
    for name, value in fields.items():
        if name in small and len(value) > LARGEST:
            raise BadRequest(
                f"`{name}` is larger than {LARGEST:,} bytes.", param=name, code="invalid_value"
            )
    if body.count(b"[") + body.count(b"{") > MOST:
        raise BadRequest(f"The body has more than {MOST:,} lists and objects.")
    if len(body) - sum(map(len, fields.values())) > LARGEST:
        raise BadRequest("The body says a field more than once.", code="invalid_value")


def convert_value(value: Any, kind: Any, at: str) -> Any:
    """The same for a part of a body that was decoded before."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), at) from None


def missing_field(path: str) -> BadRequest:
    return BadRequest(f"`{path}` is required.", param=path, code="missing_required_parameter")


def require(value: V | None, path: str) -> V:
    """Return the value of a required field, or raise an error that names it."""
    if value is None:
        raise missing_field(path)
    return value


def check_depth(value: Any, at: str) -> None:
    """Refuse a part of a body in which too many things stand in each other."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise BadRequest(f"`{at}` is nested too deep.", param=at, code="invalid_value")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    return [one for one in value if isinstance(one, dict | list)]


def _explain(message: str, at: str = "") -> BadRequest:
    where = _PATH.search(message)
    path = at + (where["path"].replace("[...]", "") if where else "")
    path = path.lstrip(".")
    if missing := _MISSING.match(message):
        path = f"{path}.{missing['name']}".lstrip(".")
        return BadRequest(f"`{path}` is required.", param=path, code="missing_required_parameter")
    subject = f"`{path}`" if path else "The body"
    if found := _EXPECTED.match(message):
        wanted = " or ".join(_WORDS.get(w.strip(), w) for w in found["want"].split("|"))
        got = _WORDS.get(found["got"], found["got"]).replace("true or false", "a boolean")
        return BadRequest(
            f"{subject} must be {wanted}, not {got}.", param=path or None, code="invalid_type"
        )
    if found := _BOUND.match(message):
        return BadRequest(_bound(subject, found), param=path or None, code="invalid_value")
    plain = message.partition(" - at ")[0]
    return BadRequest(f"{subject}: {plain}.", param=path or None, code="invalid_value")


def _bound(subject: str, found: re.Match[str]) -> str:
    relation = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
    limit = found["limit"].removesuffix(".0")
    words = relation.get(found["op"], found["op"])
    if found["rule"]:
        return f"{subject} must have {words} {limit} {_SIZES.get(found['kind'], 'entries')}."
    return f"{subject} must be {words} {limit}."
