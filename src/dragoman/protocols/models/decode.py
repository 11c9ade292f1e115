"""Decode requests about a model."""

from __future__ import annotations

from msgspec import Struct

from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body


class ModelName(Struct):
    """The model to load or unload."""

    model: openai.Name


def decode_model_name(body: bytes, strict: bool = False) -> ModelName:
    return decode_body(body, ModelName, strict)
