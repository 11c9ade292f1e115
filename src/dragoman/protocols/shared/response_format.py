"""What an answer must look like, in all the ways in which clients say it.

OpenAI has `response_format`. llama.cpp and vLLM have fields of their own, old and new, which are
explicit: a grammar, a pattern, a list of texts or a schema. They all end as one `Shape`. A request
may say one explicit thing. It wins over a `response_format`, with a warning, unless that is strict;
what cannot both be kept is refused by both names. What a schema or a grammar means is not looked at
here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import convert_value
from dragoman.types import Constraint

Kind: TypeAlias = Literal["json", "grammar", "regex", "choice"]
Schema: TypeAlias = dict[str, Any] | bool
SchemaOrText: TypeAlias = dict[str, Any] | bool | str
Source: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Choices: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1000)
]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchemaFormat(Struct):
    """A schema with a name, as OpenAI has it."""

    name: str
    schema: Schema
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """`text`, `json_object` or `json_schema`; other servers have the schema right in here."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Schema | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TypedGrammar(Struct, forbid_unknown_fields=True):
    """A grammar that says its language; without a type, the content tells."""

    type: str | None = None
    grammar: Any = None
    value: Any = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """One of the first five; the rest is known and refused."""

    json: SchemaOrText | None = None
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: Any = None
    disable_any_whitespace: Any = None
    disable_additional_properties: Any = None
    disable_fallback: Any = None
    backend: Any = None


class ConstraintFields(openai.SamplingFields, kw_only=True):
    """Sampling, and what the answer must look like."""

    response_format: ResponseFormat | None = None
    grammar: Source | TypedGrammar | None = None
    regex: Source | None = None
    choice: Choices | None = None
    json_schema: SchemaOrText | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None
    guided_whitespace_pattern: Any = None
    guided_decoding_backend: Any = None
    structural_tag: Any = None


def decode_constraint(
    said: ConstraintFields, calls: bool = False
) -> tuple[Constraint | None, tuple[str, ...]]:
    """The shape of the answer, and what was said that it does not keep to, a sentence each.

    `calls`: the answer must be a tool call.
    """
    return resolve_constraint(said, _wanted(said.response_format), "response_format", calls)


def resolve_constraint(
    said: ConstraintFields, wanted: Constraint | None, name: str, calls: bool
) -> tuple[Constraint | None, tuple[str, ...]]:
    """The same for a dialect that has another `name` for what is `wanted` of the content."""
    explicit = _explicit(said)
    if explicit is None:
        return wanted, ()
    if calls:
        raise _both(explicit.param, "tool_choice")
    if wanted is None:
        return explicit, ()
    if wanted.strict:
        raise _both(explicit.param, name)
    return explicit, (f"`{name}` is not enforced: `{explicit.param}` takes its place.",)


def to_template_format(said: ResponseFormat | None) -> dict[str, Any] | None:
    """A `response_format` as templates know it, which is as OpenAI writes it."""
    if said is None or said.type == "text":
        return None
    if said.schema is not None:
        inner = {"name": said.name or "answer", "schema": said.schema}
        return {"type": "json_schema", "json_schema": inner}
    plain: dict[str, Any] = msgspec.to_builtins(said)
    inner = plain["json_schema"]
    if inner is None:
        return {"type": said.type}
    return {"type": said.type, "json_schema": {k: v for k, v in inner.items() if v is not None}}


def _both(one: str, other: str) -> BadRequest:
    return BadRequest(
        f"`{one}` and `{other}` cannot be had together: give one of them.", param=other
    )


def _wanted(said: ResponseFormat | None) -> Constraint | None:
    """What a `response_format` asks for."""
    if said is None:
        return None
    if said.type not in ("text", "json_object", "json_schema"):
        raise BadRequest(
            "`response_format.type` must be `text`, `json_object` or `json_schema`.",
            param="response_format.type",
        )
    if said.type == "json_schema" and said.json_schema is not None:
        return _named(said, said.json_schema)
    _misplaced(said)
    if said.type == "text":
        return None
    at = "response_format" if said.schema is None else "response_format.schema"
    check_schema_name(said.name, "response_format.name")
    return make_json_constraint(said.schema, said.strict, at)


def _named(said: ResponseFormat, inner: JsonSchemaFormat) -> Constraint:
    at = "response_format.json_schema"
    if said.schema is not None:
        raise _both(f"{at}.schema", "response_format.schema")
    check_schema_name(inner.name, f"{at}.name")
    strict = said.strict if inner.strict is None else inner.strict
    return make_json_constraint(inner.schema, strict, f"{at}.schema")


def make_json_constraint(schema: Schema | None, strict: bool | None, at: str) -> Constraint:
    """JSON as the content of an answer that may call tools instead."""
    return Constraint(kind="json", value=schema, strict=strict, param=at, allows_tool_calls=True)


def _misplaced(said: ResponseFormat) -> None:
    """Refuse a type and a schema that do not go together."""
    if said.type == "json_schema" and said.schema is None:
        raise BadRequest(
            "`response_format.json_schema` is required.",
            param="response_format.json_schema",
            code="missing_required_parameter",
        )
    given: dict[str, Any] = {"json_schema": said.json_schema}
    if said.type == "text":
        given["schema"] = said.schema
    for name, value in given.items():
        if value is not None:
            raise BadRequest(
                f"`response_format.{name}` does not go with the type `{said.type}`.",
                param=f"response_format.{name}",
            )


def check_schema_name(name: str | None, at: str) -> None:
    if name is not None and not _NAME.fullmatch(name):
        raise BadRequest(
            f"`{at}` must be 1 to 64 letters, digits, underscores and dashes.",
            param=at,
            code="invalid_value",
        )


def _explicit(said: ConstraintFields) -> Constraint | None:
    """The one thing that is said in a field of its own."""
    _refuse(said)
    every = [
        _grammar(said.grammar),
        _shape("regex", said.regex, "regex"),
        _shape("choice", said.choice, "choice"),
        _shape("json", said.json_schema, "json_schema"),
        *_structured(said.structured_outputs),
        _shape("json", said.guided_json, "guided_json"),
        _shape("regex", said.guided_regex, "guided_regex"),
        _shape("choice", said.guided_choice, "guided_choice"),
        _shape("grammar", said.guided_grammar, "guided_grammar"),
    ]
    found = [shape for shape in every if shape is not None]
    if len(found) > 1:
        raise _both(found[0].param, found[1].param)
    return found[0] if found else None


def _refuse(said: ConstraintFields) -> None:
    """Refuse what would change how a grammar is kept to."""
    nested = said.structured_outputs or StructuredOutputs()
    inside = "structured_outputs"
    openai.reject_unsupported(
        {
            f"{inside}.structural_tag": nested.structural_tag,
            "structural_tag": said.structural_tag,
        },
        "use `tools` or a `grammar`",
    )
    openai.reject_unsupported(
        {
            f"{inside}.backend": nested.backend,
            f"{inside}.disable_fallback": nested.disable_fallback,
            "guided_decoding_backend": said.guided_decoding_backend,
        },
        "there is one back end here",
    )
    openai.reject_unsupported(
        {
            f"{inside}.whitespace_pattern": nested.whitespace_pattern,
            f"{inside}.disable_any_whitespace": nested.disable_any_whitespace,
            "guided_whitespace_pattern": said.guided_whitespace_pattern,
        },
        "white space in JSON is not for the request to choose",
    )
    openai.reject_unsupported(
        {f"{inside}.disable_additional_properties": nested.disable_additional_properties},
        "say `additionalProperties` in the schema",
    )


def _structured(said: StructuredOutputs | None) -> list[Constraint | None]:
    if said is None:
        return []
    at = "structured_outputs"
    anything = Constraint(kind="json", param=f"{at}.json_object") if said.json_object else None
    every = [
        _shape("json", said.json, f"{at}.json"),
        _shape("regex", said.regex, f"{at}.regex"),
        _shape("choice", said.choice, f"{at}.choice"),
        _shape("grammar", said.grammar, f"{at}.grammar"),
        anything,
    ]
    if not any(every):
        raise BadRequest(
            f"`{at}` must have one of `json`, `regex`, `choice`, `grammar` and `json_object`.",
            param=at,
        )
    return every


def _grammar(said: str | TypedGrammar | None) -> Constraint | None:
    if said is None or isinstance(said, str):
        return _shape("grammar", said, "grammar")
    if said.grammar is not None and said.value is not None:
        raise _both("grammar.grammar", "grammar.value")
    value, at = said.grammar, "grammar.grammar"
    if value is None and said.value is not None:
        value, at = said.value, "grammar.value"
    if value is None:
        raise BadRequest(f"`{at}` is required.", param=at, code="missing_required_parameter")
    match said.type:
        case "json_schema" | "json":
            return _shape("json", convert_value(value, SchemaOrText, at), at)
        case "regex":
            return _shape("regex", convert_value(value, Source, at), at)
        case None | "gbnf" | "lark":
            text = convert_value(value, Source, at)
            return Constraint(kind="grammar", value=text, param=at, language=said.type)
    raise BadRequest(
        "`grammar.type` must be `gbnf`, `lark`, `regex` or `json_schema`.", param="grammar.type"
    )


def _shape(kind: Kind, value: Any, at: str) -> Constraint | None:
    if value is None:
        return None
    if kind == "json" and isinstance(value, str):
        value = _schema(value, at)
    return Constraint(kind=kind, value=value, param=at)


def _schema(text: str, at: str) -> Schema:
    """A schema that was written as a string."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(f"`{at}` is not valid JSON.", param=at, code="invalid_json") from None
    found: Schema = convert_value(value, Schema, at)
    return found
