"""Constraints on an answer, in all the forms in which clients send them.

OpenAI has `response_format`. llama.cpp and vLLM have fields of their own, old and new, which are
explicit: a grammar, a pattern, a list of texts or a schema. All of them become one `Constraint`. A
request may have one explicit constraint. It replaces a `response_format`, with a warning, unless
that one is strict; constraints that exclude each other are rejected by both names. This module does
not interpret schemas and grammars.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest, InvalidJson, InvalidValue
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.generation import GenerationFields
from dragoman.protocols.shared.json_body import convert_value, make_missing_field_error
from dragoman.types import Constraint, Json

ConstraintKind: TypeAlias = Literal["json", "grammar", "regex", "choice"]
Schema: TypeAlias = dict[str, Json] | bool
SchemaOrText: TypeAlias = dict[str, Json] | bool | str
GrammarText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Choices: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1000)
]
DEFAULT_SCHEMA_NAME = "answer"
_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchemaFormat(Struct):
    """A schema with a name, as OpenAI sends it."""

    name: str
    schema: Schema
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """`text`, `json_object` or `json_schema`; clients of other servers put the schema here."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Schema | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TypedGrammar(Struct, forbid_unknown_fields=True):
    """A grammar with its language; without a type, the language is detected."""

    type: str | None = None
    grammar: Json = None
    value: Json = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of `json` to `json_object`, which is the constraint.

    The fields from `structural_tag` on are not supported.
    """

    json: SchemaOrText | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_additional_properties: bool | None = None  # for `json`
    structural_tag: Json = None
    whitespace_pattern: Json = None
    disable_any_whitespace: Json = None
    disable_fallback: Json = None
    backend: Json = None


class ConstraintFields(GenerationFields, kw_only=True):
    """Sampling, and what the answer must satisfy."""

    response_format: ResponseFormat | None = None
    grammar: GrammarText | TypedGrammar | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    json_schema: SchemaOrText | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: Json = None
    guided_decoding_backend: Json = None
    structural_tag: Json = None


EXPLICIT_FIELDS = tuple(
    name
    for name in ConstraintFields.__struct_fields__
    if name not in (*GenerationFields.__struct_fields__, "response_format")
)
get_explicit = attrgetter(*EXPLICIT_FIELDS)
UNSET = (None,) * len(EXPLICIT_FIELDS)


def decode_constraint(
    fields: ConstraintFields, requires_call: bool = False
) -> tuple[Constraint | None, tuple[str, ...]]:
    """Return the constraint of a request, and a warning for each one that is not enforced.

    `requires_call`: the answer must be a tool call.
    """
    format_constraint = _decode_response_format(fields.response_format)
    return resolve_constraint(fields, format_constraint, "response_format", requires_call)


def resolve_constraint(
    fields: ConstraintFields, format_constraint: Constraint | None, name: str, requires_call: bool
) -> tuple[Constraint | None, tuple[str, ...]]:
    """Choose between an explicit constraint and the one that the field `name` asks for."""
    explicit = None if get_explicit(fields) == UNSET else _decode_explicit(fields)
    if explicit is None:
        return format_constraint, ()
    if requires_call:
        raise _make_exclusive_error(explicit.param, "tool_choice")
    if format_constraint is None:
        return explicit, ()
    if format_constraint.strict:
        raise _make_exclusive_error(explicit.param, name)
    return explicit, (f"`{name}` is not enforced: `{explicit.param}` replaces it.",)


def to_template_format(response_format: ResponseFormat | None) -> dict[str, Json] | None:
    """Return a `response_format` as templates expect it, which is OpenAI's form."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.schema is not None:
        return _make_schema_format(
            response_format.name or DEFAULT_SCHEMA_NAME, response_format.schema
        )
    plain: dict[str, Json] = msgspec.to_builtins(response_format)
    schema = plain["json_schema"]
    if schema is None:
        return {"type": response_format.type}
    present_fields = {name: value for name, value in schema.items() if value is not None}
    return {"type": response_format.type, "json_schema": present_fields}


def make_template_format(constraint: Constraint | None) -> dict[str, Json] | None:
    """Return a constraint to JSON as a `response_format`, which templates know."""
    if constraint is None:
        return None
    if constraint.value is None:
        return {"type": "json_object"}
    return _make_schema_format(DEFAULT_SCHEMA_NAME, constraint.value)


def _make_schema_format(name: str, schema: Schema) -> dict[str, Json]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def _make_exclusive_error(first: str, second: str) -> BadRequest:
    return BadRequest(
        f"`{first}` and `{second}` cannot be combined: send one of them.", param=second
    )


def _decode_response_format(response_format: ResponseFormat | None) -> Constraint | None:
    if response_format is None:
        return None
    if response_format.type not in ("text", "json_object", "json_schema"):
        raise BadRequest(
            "`response_format.type` must be `text`, `json_object` or `json_schema`.",
            param="response_format.type",
        )
    if response_format.type == "json_schema" and response_format.json_schema is not None:
        return _decode_named_schema(response_format, response_format.json_schema)
    _check_type_matches_schema(response_format)
    if response_format.type == "text":
        return None
    path = "response_format" if response_format.schema is None else "response_format.schema"
    check_schema_name(response_format.name, "response_format.name")
    return make_json_constraint(response_format.schema, response_format.strict, path)


def _decode_named_schema(response_format: ResponseFormat, named: JsonSchemaFormat) -> Constraint:
    path = "response_format.json_schema"
    if response_format.schema is not None:
        raise _make_exclusive_error(f"{path}.schema", "response_format.schema")
    check_schema_name(named.name, f"{path}.name")
    strict = response_format.strict if named.strict is None else named.strict
    return make_json_constraint(named.schema, strict, f"{path}.schema")


def make_json_constraint(schema: Schema | None, strict: bool | None, path: str) -> Constraint:
    """Constrain the content of an answer to JSON; the answer may call tools instead."""
    return Constraint(kind="json", value=schema, strict=strict, param=path, allows_tool_calls=True)


def _check_type_matches_schema(response_format: ResponseFormat) -> None:
    if response_format.type == "json_schema" and response_format.schema is None:
        raise make_missing_field_error("response_format.json_schema")
    excluded: dict[str, object] = {"json_schema": response_format.json_schema}
    if response_format.type == "text":
        excluded["schema"] = response_format.schema
    for name, value in excluded.items():
        if value is not None:
            raise BadRequest(
                f"`response_format.{name}` is not allowed with type `{response_format.type}`.",
                param=f"response_format.{name}",
            )


def check_schema_name(name: str | None, path: str) -> None:
    if name is not None and not _SCHEMA_NAME.fullmatch(name):
        raise InvalidValue(
            f"`{path}` must be 1 to 64 letters, digits, underscores and dashes.",
            param=path,
        )


def _decode_explicit(fields: ConstraintFields) -> Constraint | None:
    """Return the constraint that is sent in a field of its own."""
    _reject_unsupported(fields)
    candidates = [
        _decode_grammar(fields.grammar),
        _make_constraint("regex", fields.regex, "regex"),
        _make_constraint("choice", fields.choice, "choice"),
        # llama-server's field, with its meaning
        _make_constraint("json", fields.json_schema, "json_schema", closes_objects=True),
        *_decode_structured_outputs(fields.structured_outputs),
        _make_constraint("json", fields.guided_json, "guided_json"),
        _make_constraint("regex", fields.guided_regex, "guided_regex"),
        _make_constraint("choice", fields.guided_choice, "guided_choice"),
        _make_constraint("grammar", fields.guided_grammar, "guided_grammar"),
    ]
    constraints = [constraint for constraint in candidates if constraint is not None]
    if len(constraints) > 1:
        raise _make_exclusive_error(constraints[0].param, constraints[1].param)
    return constraints[0] if constraints else None


def _reject_unsupported(fields: ConstraintFields) -> None:
    """Reject fields that would change how a grammar is enforced."""
    nested = fields.structured_outputs or StructuredOutputs()
    path = "structured_outputs"
    openai.reject_unsupported(
        {
            f"{path}.structural_tag": nested.structural_tag,
            "structural_tag": fields.structural_tag,
        },
        "use `tools` or a `grammar`",
    )
    openai.reject_unsupported(
        {
            f"{path}.backend": nested.backend,
            f"{path}.disable_fallback": nested.disable_fallback,
            "guided_decoding_backend": fields.guided_decoding_backend,
        },
        "there is only one backend",
    )
    openai.reject_unsupported(
        {
            f"{path}.whitespace_pattern": nested.whitespace_pattern,
            f"{path}.disable_any_whitespace": nested.disable_any_whitespace,
            "guided_whitespace_pattern": fields.guided_whitespace_pattern,
        },
        "a request cannot choose the whitespace in JSON",
    )


def _decode_structured_outputs(outputs: StructuredOutputs | None) -> list[Constraint | None]:
    if outputs is None:
        return []
    path = "structured_outputs"
    json_object = Constraint(kind="json", param=f"{path}.json_object")
    candidates = [
        _make_constraint(
            "json", outputs.json, f"{path}.json", bool(outputs.disable_additional_properties)
        ),
        _make_constraint("regex", outputs.regex, f"{path}.regex"),
        _make_constraint("choice", outputs.choice, f"{path}.choice"),
        _make_constraint("grammar", outputs.grammar, f"{path}.grammar"),
        json_object if outputs.json_object else None,
    ]
    if not any(candidates):
        raise BadRequest(
            f"`{path}` must have one of `json`, `regex`, `choice`, `grammar` and `json_object`.",
            param=path,
        )
    if outputs.disable_additional_properties and outputs.json is None:
        name = f"{path}.disable_additional_properties"
        raise BadRequest(f"`{name}` needs `{path}.json`.", param=name)
    return candidates


def _decode_grammar(grammar: str | TypedGrammar | None) -> Constraint | None:
    if grammar is None or isinstance(grammar, str):
        return _make_constraint("grammar", grammar, "grammar")
    if grammar.grammar is not None and grammar.value is not None:
        raise _make_exclusive_error("grammar.grammar", "grammar.value")
    value, path = grammar.grammar, "grammar.grammar"
    if value is None and grammar.value is not None:
        value, path = grammar.value, "grammar.value"
    if value is None:
        raise make_missing_field_error(path)
    match grammar.type:
        case "json_schema" | "json":
            return _make_constraint("json", convert_value(value, SchemaOrText, path), path)
        case "regex":
            return _make_constraint("regex", convert_value(value, GrammarText, path), path)
        case None | "gbnf" | "lark":
            text = convert_value(value, GrammarText, path)
            return Constraint(kind="grammar", value=text, param=path, language=grammar.type)
    raise BadRequest(
        "`grammar.type` must be `gbnf`, `lark`, `regex` or `json_schema`.", param="grammar.type"
    )


def _make_constraint(
    kind: ConstraintKind,
    value: SchemaOrText | Choices | None,
    path: str,
    closes_objects: bool = False,
) -> Constraint | None:
    if value is None:
        return None
    if kind == "json" and isinstance(value, str):
        value = _parse_schema(value, path)
    return Constraint(kind=kind, value=value, param=path, closes_objects=closes_objects)


def _parse_schema(text: str, path: str) -> Schema:
    """Parse a schema that is sent as a string."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidJson(f"`{path}` is not valid JSON.", param=path) from None
    schema: Schema = convert_value(value, Schema, path)
    return schema
