"""Decode requests that manage models. `name` is an older name of the field `model`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import InvalidType, MissingParameter, Unsupported
from dragoman.protocols.dialect import DialectContext
from dragoman.protocols.ollama.decode import decode_object
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import StructT
from dragoman.types import Json

Digest = Annotated[str, Meta(max_length=200)]
FileName = Annotated[str, Meta(max_length=512)]


class NamedModel(Struct, kw_only=True):
    """The model that a request is about."""

    model: openai.ModelName | None = None
    name: openai.ModelName | None = None

    @property
    def model_name(self) -> str:
        return self.model or self.name or ""


class OllamaShowRequest(NamedModel, kw_only=True):
    """A model to describe."""

    verbose: bool | None = None
    system: str | None = None
    options: dict[str, Json] | None = None


class OllamaPullRequest(NamedModel, kw_only=True):
    """A model to download."""

    stream: bool | None = None  # unless it is false, progress is streamed
    insecure: bool | None = None


class OllamaDeleteRequest(NamedModel, kw_only=True):
    """A model to delete."""


class OllamaCopyRequest(Struct, kw_only=True):
    """A model to give another name."""

    source: openai.ModelName
    destination: openai.ModelName


class RecipeMessage(Struct, forbid_unknown_fields=True):
    """A message before those of each conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class OllamaCreateRequest(NamedModel, kw_only=True):
    """A model to create from another one, or from a file that was uploaded."""

    from_: openai.ModelName | None = msgspec.field(default=None, name="from")
    files: dict[FileName, Digest] | None = None
    adapters: dict[FileName, Digest] | None = None
    template: str | None = None
    license: str | list[str] | None = None
    system: str | None = None
    parameters: dict[str, Json] | None = None
    messages: Annotated[list[RecipeMessage], Meta(max_length=1000)] | None = None
    stream: bool | None = None
    # Known, and refused by name if they have a value.
    quantize: str | None = None
    draft_quantize: str | None = None
    draft_files: dict[FileName, Digest] | None = None
    renderer: str | None = None
    parser: str | None = None
    remote_host: str | None = None
    info: dict[str, Json] | None = None
    modelfile: str | None = None
    path: str | None = None
    requires: str | None = None


UNSUPPORTED = (
    *("quantize", "draft_quantize", "draft_files", "renderer", "parser", "remote_host", "info"),
    *("modelfile", "path"),
)


def decode_show(body: bytes, context: DialectContext) -> OllamaShowRequest:
    return _decode(body, OllamaShowRequest, context)


def decode_pull(body: bytes, context: DialectContext) -> OllamaPullRequest:
    return _decode(body, OllamaPullRequest, context)


def decode_delete(body: bytes, context: DialectContext) -> OllamaDeleteRequest:
    return _decode(body, OllamaDeleteRequest, context)


def decode_copy(body: bytes, context: DialectContext) -> OllamaCopyRequest:
    return decode_object(body, OllamaCopyRequest, context.strict)


def decode_create(body: bytes, context: DialectContext) -> OllamaCreateRequest:
    fields = _decode(body, OllamaCreateRequest, context)
    for name in UNSUPPORTED:
        if getattr(fields, name):
            raise Unsupported(f"`{name}` is not supported.", param=name)
    if not fields.from_ and not fields.files:
        raise MissingParameter(
            "neither 'from' or 'files' was specified: name a model in `from`, or upload a GGUF "
            "file and give its digest in `files`.",
            param="from",
        )
    if fields.from_ and fields.files:
        raise Unsupported("`files` cannot be combined with `from`.", param="files")
    for name, value in (fields.parameters or {}).items():
        if isinstance(value, dict):
            raise InvalidType(f"`parameters.{name}` must be a value or a list.", param="parameters")
    return fields


def _decode(body: bytes, kind: type[StructT], context: DialectContext) -> StructT:
    fields = decode_object(body, kind, context.strict)
    if isinstance(fields, NamedModel) and not fields.model_name.strip():
        raise MissingParameter("`model` is required.", param="model")
    return fields
