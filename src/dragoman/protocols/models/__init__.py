"""The list of models: OpenAI's `/v1/models`, and loading and unloading."""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, DialectContext
from dragoman.protocols.models.models import ModelName
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body

__all__ = ["DIALECT"]


def _decode(body: bytes, _: DialectContext) -> ModelName:
    return decode_body(body, ModelName)


DIALECT: Dialect[ModelName] = Dialect(
    name="models", decode=_decode, encode_error=openai.encode_error
)
