"""The list of models: OpenAI's `/v1/models`, and loading and unloading.

decode    the name of a model
encode    one model, or the list of them
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, DialectContext
from dragoman.protocols.models.decode import ModelName, decode_model_name
from dragoman.protocols.models.encode import (
    ModelCard,
    ModelList,
    UpstreamCard,
    encode_model,
    encode_model_list,
)
from dragoman.protocols.shared import openai

__all__ = [
    "DIALECT",
    "ModelCard",
    "ModelList",
    "ModelName",
    "UpstreamCard",
    "decode_model_name",
    "encode_model",
    "encode_model_list",
]


def _decode(body: bytes, _: DialectContext) -> ModelName:
    return decode_model_name(body)


DIALECT: Dialect[ModelName] = Dialect(
    name="models", decode=_decode, encode_error=openai.encode_error
)
