"""Decode a request to fill in text."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.shared import response_format
from dragoman.protocols.shared.generation import make_request
from dragoman.protocols.shared.json_body import decode_body
from dragoman.types import Infill, Json, Prompt, Request

# Fields of llama-server that have no effect here, each with the value that means nothing.
IGNORED_FIELDS: dict[str, Json] = {
    "n_indent": 0,
    "t_max_prompt_ms": 0,
    "t_max_predict_ms": 0,
    "response_fields": [],
}


class InfillFile(Struct):
    """Another file of the project, or a part of one."""

    text: str
    filename: str = "tmp"


class InfillRequest(response_format.ConstraintFields, kw_only=True):
    """The text before and after the place to fill in.

    `prompt` is text that is already filled in.
    """

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[InfillFile], Meta(max_length=4096)] | None = None
    prompt: str | None = None
    n_predict: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    id_slot: int | None = None  # accepted: slots are chosen here
    n_indent: int | None = None
    t_max_prompt_ms: int | None = None
    t_max_predict_ms: int | None = None
    response_fields: list[str] | None = None


def decode_request(body: bytes, strict: bool = False) -> Request:
    fields = decode_body(body, InfillRequest, strict)
    if fields.n_probs:
        raise Unsupported("`n_probs` is not supported: use `/v1/completions`.", param="n_probs")
    if (fields.n or 1) > 1:
        raise Unsupported("`n` can only be 1 here.", param="n")
    fields.timings = True  # llama-server always reports them
    constraint, warnings = response_format.decode_constraint(fields)
    infill = Infill(
        suffix=fields.input_suffix,
        files=tuple((file.filename, file.text) for file in fields.input_extra or ()),
        may_shorten=True,
        param="input_suffix",
    )
    return make_request(
        fields,
        strict,
        _decode_limit(fields),
        warnings=(*warnings, *_warn_about_ignored(fields)),
        constraint=constraint,
        prompts=(Prompt(content=fields.input_prefix + (fields.prompt or ""), infill=infill),),
        prefill_only=fields.n_predict == 0,
    )


def _decode_limit(fields: InfillRequest) -> int | None:
    limit, other = fields.n_predict, fields.max_tokens
    if limit is not None and other is not None and limit != other:
        raise BadRequest(
            "`n_predict` and `max_tokens` mean the same: send one of them.", param="n_predict"
        )
    limit = other if limit is None else limit
    return limit if limit is not None and limit > 0 else None


def _warn_about_ignored(fields: InfillRequest) -> list[str]:
    return [
        f"`{name}` has no effect."
        for name, nothing in IGNORED_FIELDS.items()
        if getattr(fields, name) not in (None, nothing)
    ]
