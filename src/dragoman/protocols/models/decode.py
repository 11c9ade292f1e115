"""Decode requests about a model."""

from __future__ import annotations

from msgspec import Struct

from dragoman.protocols.dialect import DialectContext
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body


class ModelName(Struct):
    """The model to load or unload."""

    model: openai.Name


class AdapterPath(Struct):
    """A LoRA adapter to load, in a directory of the server."""

    lora_name: openai.Name
    lora_path: openai.Name
    model: openai.Name = ""  # the default model


class AdapterName(Struct):
    """A LoRA adapter to unload."""

    lora_name: openai.Name
    model: openai.Name = ""


def decode_adapter_path(body: bytes, _: DialectContext) -> AdapterPath:
    return decode_body(body, AdapterPath)


def decode_adapter_name(body: bytes, _: DialectContext) -> AdapterName:
    return decode_body(body, AdapterName)


def decode_model_name(body: bytes, strict: bool = False) -> ModelName:
    return decode_body(body, ModelName, strict)
