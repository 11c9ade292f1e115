"""Decode JSON bodies, with errors that say what to change.

Bodies are decoded straight into Structs whose annotations are the rules (types, ranges, lengths),
so that the OpenAPI document states exactly what is checked. Errors of the decoder are reworded,
with `param` as a path like `messages[2].role`.

Decoding blocks the event loop even from another thread, and a body of many small values takes many
times its size in memory. So the values of a large body are counted first (`json_size`), and the
sizes of its fields are checked: only fields that are mostly text may be as large as the body.

A field that the Struct does not have is rejected if the server is strict, or if it is known to
change the answer on servers that have it (`UNSUPPORTED_FIELDS`). Otherwise it is ignored, and a
warning is added to the list that `collect_warnings` was given. Both suggest the field
that was probably meant. Objects directly in the body are checked like the body itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from dragoman.errors import (
    BadRequest,
    InvalidJson,
    InvalidType,
    InvalidValue,
    MissingParameter,
    UnknownParameter,
    Unsupported,
)
from dragoman.options import suggest
from dragoman.options.type_names import describe_mismatch
from dragoman.protocols.shared.json_size import JsonSizeLimits, find_excess
from dragoman.protocols.shared.whole_numbers import convert_json, decode_json
from dragoman.types import Json
from dragoman.types.context_value import ContextValue

log = logging.getLogger("dragoman.protocols")

StructT = TypeVar("StructT", bound=Struct)
V = TypeVar("V")
RawFields: TypeAlias = dict[str, msgspec.Raw]

MAX_FIELD_SIZE = 1 << 19  # bytes
MAX_REASON = 200  # characters, with the value that the client sent
LARGE_BODY = 1 << 15  # bytes; more than this takes noticeable time to decode
SIZE_LIMITS = JsonSizeLimits(
    containers=50_000,
    strings=200_000,
    values=400_000,
    members=1_000,
    wide_bytes=6 << 20,
    escapes=3_000_000,
)
MAX_MEMBERS = 10_000  # of a body that is too large, in which the field to blame is looked for
MAX_WARNINGS, MAX_NAME = 16, 64  # unknown fields that are reported, characters of their names
MIN_SIMILARITY = 0.75  # of a suggested name; clients also send fields of other servers
# Fields of other servers that would change the answer, so that they are rejected, not ignored.
UNSUPPORTED_FIELDS = frozenset(
    {"chat_template", "prompt_embeds", "inputs_embeds", "input_embeds", "extra_body"}
    | {"image_data", "audio_data", "video_data", "multi_modal_data", "multi_modal_uuids"}
    | {"mm_processor_kwargs", "media_io_kwargs"}
)
MAX_DEPTH = 256  # of JSON that is stored as sent: it is encoded again from deeper call stacks
TEXT_FIELDS = frozenset(
    {"messages", "prompt", "input", "instructions", "items", "system", "tokens", "content"}
    | {"query", "documents", "queries", "text_1", "text_2", "data_1", "data_2"}
    | {"suffix", "input_prefix", "input_suffix", "input_extra", "images", "context"}
)
_BOUND = re.compile(r"^Expected `(?P<kind>\w+)` (?P<rule>of length )?(?P<op>[<>=]+) (?P<limit>\S+)")
_MALFORMED = re.compile(r"JSON is malformed: (?P<problem>.+) \(byte (?P<byte>\d+)\)")
TRUNCATED = "Input data was truncated"
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
_PATH = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
_UNITS = {"str": "characters", "array": "entries", "object": "entries"}
_RELATIONS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}


# Set while a request is decoded, so that no decoder needs a parameter for it.
_collected_warnings: ContextVar[list[str] | None] = ContextVar("collected_warnings", default=None)


def collect_warnings(warnings: list[str]) -> ContextValue[list[str] | None]:
    """Add a sentence to `warnings` for each field that is unknown to a decoder in this block."""
    return ContextValue(_collected_warnings, warnings)


def decode_body(body: bytes, kind: type[StructT], strict: bool = False) -> StructT:
    """Decode a body. Fields that the Struct does not have are ignored, or rejected if `strict`."""
    try:
        if len(body) > LARGE_BODY:
            _check_values(body, kind)
        elif not body.isascii():
            body.decode()  # the decoder does not check what it skips or keeps as raw JSON
        fields = msgspec.json.decode(body, type=RawFields)
        if len(body) > MAX_FIELD_SIZE:
            _check_sizes(body, fields, _list_fields(kind) - TEXT_FIELDS)
        _report_unknown_fields(fields, kind, strict)
        decoded: StructT = decode_json(body, kind)
        return decoded
    except msgspec.ValidationError as error:
        raise _reword(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidJson(_describe_invalid_json(body, error)) from None


def _describe_invalid_json(body: bytes, error: Exception) -> str:
    """Say why a body is not JSON, and where."""
    if not body.strip():
        return "The body is empty; send a JSON object."
    if match := _MALFORMED.fullmatch(str(error)):
        return f"The body is not valid JSON at byte {match['byte']}: {match['problem']}."
    if str(error) == TRUNCATED:
        return "The body is not valid JSON: it ends too early."
    return "The body is not valid JSON."


def _report_unknown_fields(fields: RawFields, kind: type[Struct], strict: bool) -> None:
    """Reject unknown fields, or add a warning for each."""
    warnings = _collected_warnings.get()
    for path, suggestion in _find_unknown_fields(fields, kind):
        if path in UNSUPPORTED_FIELDS and bytes(fields[path]) != b"null":
            raise Unsupported(f"`{path}` is not supported.", param=path)
        if strict and "." not in path:
            raise UnknownParameter(f"Unrecognized field `{path}`.{suggestion}", param=path)
        log.debug("ignored unknown field %r", path)
        if warnings is not None:
            warnings.append(f"`{path}` is unknown and has no effect.{suggestion}")


def has_unknown_fields(fields: RawFields, kind: type[Struct]) -> bool:
    return bool(_find_unknown_fields(fields, kind))


def _find_unknown_fields(fields: RawFields, kind: type[Struct]) -> list[tuple[str, str]]:
    """Return the paths of unknown fields, each with a question that suggests another name."""
    unknown = _compare_names(fields, _list_fields(kind))
    objects = _list_object_fields(kind)
    for name, value in fields.items():
        if name in objects and bytes(memoryview(value)[:1]) == b"{":
            names = msgspec.json.decode(value, type=RawFields)
            unknown += _compare_names(names, objects[name], f"{name}.")
    return unknown


def _compare_names(
    names: Iterable[str], known: frozenset[str], prefix: str = ""
) -> list[tuple[str, str]]:
    if known.issuperset(names):
        return []
    unknown = (name[:MAX_NAME] for name in names if name not in known)
    return [
        (prefix + name, suggest(name, known, MIN_SIMILARITY))
        for name in islice(unknown, MAX_WARNINGS)
    ]


@cache
def _list_fields(kind: type[Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


@cache
def _list_object_fields(kind: type[Struct]) -> dict[str, frozenset[str]]:
    """Return the fields that are objects of one type, and the names that each may contain."""
    known = {}
    for name, hint in get_type_hints(kind).items():
        structs = [item for item in get_args(hint) or [hint] if _is_struct(item)]
        if len(structs) == 1 and not structs[0].__struct_config__.forbid_unknown_fields:
            known[name] = _list_fields(structs[0])
    return known


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _check_values(body: bytes, kind: type[Struct]) -> None:
    excess = find_excess(body, SIZE_LIMITS)
    if excess is not None:
        if body.count(b'":') < MAX_MEMBERS:  # then it is quick to find the field to blame
            fields = msgspec.json.decode(body, type=RawFields)
            _check_sizes(body, fields, _list_fields(kind) - TEXT_FIELDS)
        raise BadRequest(f"The body has {excess}, which is more than the server decodes.")


def _check_sizes(body: bytes, fields: RawFields, small: frozenset[str]) -> None:
    for name, value in fields.items():
        if name in small and len(value) > MAX_FIELD_SIZE:
            raise make_field_too_large_error(name)
    if len(body) - sum(map(len, fields.values())) > MAX_FIELD_SIZE:
        raise InvalidValue("The body has a field more than once.")


def convert_value(value: Json, kind: Any, path: str) -> Any:
    """Convert a part of a body that is already decoded; `path` is its path in the body."""
    try:
        return convert_json(value, kind)
    except msgspec.ValidationError as error:
        raise _reword(str(error), path) from None


def make_missing_field_error(path: str) -> BadRequest:
    return MissingParameter(f"`{path}` is required.", param=path)


def make_field_too_large_error(path: str) -> BadRequest:
    return InvalidValue(f"`{path}` is larger than {MAX_FIELD_SIZE:,} bytes.", param=path)


def require(value: V | None, path: str) -> V:
    """Return the value of a required field, or raise an error that names it."""
    if value is None:
        raise make_missing_field_error(path)
    return value


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def check_depth(value: Json, path: str) -> None:
    """Reject a part of a body that is nested too deeply."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _get_containers(outer)]
        if not level:
            return
    raise InvalidValue(f"`{path}` is nested too deeply.", param=path)


def _get_containers(value: Json) -> list[Json]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict | list)]


def _reword(message: str, base: str = "") -> BadRequest:
    """Turn a decoder's error about the value at the path `base` into an error for clients."""
    match = _PATH.search(message)
    path = base + (match["path"].replace("[...]", "") if match else "")
    path = path.lstrip(".")
    if missing := _MISSING.match(message):
        return make_missing_field_error(f"{path}.{missing['name']}".lstrip("."))
    subject = f"`{path}`" if path else "The body"
    if mismatch := describe_mismatch(message):
        return InvalidType(f"{subject} {mismatch}.", param=path or None)
    if match := _BOUND.match(message):
        return InvalidValue(_reword_bound(subject, match), param=path or None)
    reason = message.partition(" - at ")[0]
    if len(reason) > MAX_REASON:
        reason = reason[:MAX_REASON] + "…"
    return InvalidValue(f"{subject}: {reason}.", param=path or None)


def _reword_bound(subject: str, match: re.Match[str]) -> str:
    limit = match["limit"].removesuffix(".0")
    relation = _RELATIONS.get(match["op"], match["op"])
    if match["rule"]:
        return f"{subject} must have {relation} {limit} {_UNITS.get(match['kind'], 'entries')}."
    return f"{subject} must be {relation} {limit}."
