"""Prompts that are not chats: a string, token ids, or a list of either."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from dragoman.errors import BadRequest
from dragoman.protocols.shared.json_body import convert_value
from dragoman.protocols.shared.openai import TokenId
from dragoman.types import Json

MAX_PROMPTS = 2048
PromptFields: TypeAlias = str | list[Json]
_TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
_Prompts = Annotated[list[str | _TokenIds], Meta(max_length=MAX_PROMPTS)]


def decode_prompts(value: PromptFields, path: str) -> list[str | list[int]]:
    """Decode any of the four forms of a prompt as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not value:
        raise BadRequest(f"`{path}` must not be empty.", param=path)
    if type(value[0]) in (int, float):
        return [convert_value(value, _TokenIds, path)]
    prompts: list[str | list[int]] = convert_value(value, _Prompts, path)
    return prompts
