"""Decode a text completion request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dragoman.errors import BadRequest
from dragoman.protocols.shared import response_format
from dragoman.protocols.shared.generation import make_request
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.prompts import PromptFields, decode_prompts
from dragoman.types import Infill, Prompt, Request, Sampling

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 2048


class CompletionRequest(response_format.ConstraintFields, kw_only=True):
    """A prompt: a string, token ids, or a list of either."""

    prompt: PromptFields
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=512)] | None = None


def decode_request(body: bytes, strict: bool = False) -> Request:
    fields = decode_body(body, CompletionRequest, strict)
    n, best_of = fields.n or 1, fields.best_of
    if best_of is not None and best_of < n:
        raise BadRequest("`best_of` must not be less than `n`.", param="best_of")
    if best_of is not None and best_of > n and fields.stream:
        raise BadRequest("`best_of` cannot be streamed.", param="best_of")
    if fields.return_token_ids and (fields.echo or (best_of or n) > n):
        other = "echo" if fields.echo else "best_of"
        raise BadRequest(
            f"`return_token_ids` and `{other}` cannot be combined.", param="return_token_ids"
        )
    prompts = _decode_prompts(fields)
    if len(prompts) * max(n, best_of or 0) > MAX_CHOICES:
        raise BadRequest(
            f"`n` times the number of prompts must be at most {MAX_CHOICES}.", param="n"
        )
    constraint, warnings = response_format.decode_constraint(fields)
    return make_request(
        fields,
        strict,
        fields.max_tokens,
        api_defaults=Sampling(max_tokens=DEFAULT_MAX_TOKENS),
        constraint=constraint,
        warnings=warnings,
        prompts=prompts,
        best_of=best_of,
        logprobs=fields.logprobs,
        echo=bool(fields.echo),
        returns_token_ids=bool(fields.return_token_ids),
        writes_ids_as_tokens=bool(fields.return_tokens_as_token_ids),
        cache_salt=fields.cache_salt or "",
    )


def _decode_prompts(fields: CompletionRequest) -> tuple[Prompt, ...]:
    """Return the prompts; with a suffix, the answer is what comes between the two."""
    infill = Infill(suffix=fields.suffix) if fields.suffix else None
    if infill is not None and fields.echo:
        raise BadRequest("`echo` and `suffix` cannot be combined.", param="echo")
    if infill is not None and fields.parse_special:
        raise BadRequest(
            "`parse_special` and `suffix` cannot be combined: the texts around the answer are "
            "plain text.",
            param="parse_special",
        )
    return tuple(
        Prompt(
            content=prompt,
            add_special_tokens=fields.add_special_tokens is not False,
            parse_special=infill is None and fields.parse_special is not False,
            infill=infill,
        )
        for prompt in decode_prompts(fields.prompt, "prompt")
    )
