"""Embeddings: `/api/embed`, and the older `/api/embeddings` for one text.

The first returns vectors of unit length. Texts that are too long are cut, unless the client turns
that off. Without a text, a request only loads the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import InvalidValue
from dragoman.events import AnswerTimes, Usage
from dragoman.protocols.ollama.decode import decode_object
from dragoman.protocols.ollama.encode import to_nanoseconds
from dragoman.protocols.ollama.keep_alive import KeepAlive, decode_keep_alive
from dragoman.protocols.ollama.options import OllamaOptions
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.shared.vectors import check_vector, normalize_vector
from dragoman.types.pooling_tasks import EmbeddingTask

MAX_INPUTS = 2048
Texts: TypeAlias = Annotated[list[str], Meta(max_length=MAX_INPUTS)]


class OllamaEmbedRequest(Struct, kw_only=True):
    """Texts to embed."""

    model: openai.ModelName | None = None
    input: str | Texts | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsRequest(Struct, kw_only=True):
    """One text to embed."""

    model: openai.ModelName | None = None
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbedResponse(Struct, kw_only=True):
    """Vectors in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsResponse(Struct):
    embedding: list[float]


def decode_embed(body: bytes, strict: bool = False) -> EmbeddingTask:
    """Decode a request; one without a text has no inputs."""
    fields = decode_object(body, OllamaEmbedRequest, strict)
    texts = [fields.input] if isinstance(fields.input, str) else fields.input or []
    if isinstance(fields.input, list) and "" in texts:
        path = f"input[{texts.index('')}]"
        raise InvalidValue(f"`{path}` must not be empty.", param=path)
    return EmbeddingTask(
        model=fields.model or "",
        inputs=[text for text in texts if text],
        dimensions=fields.dimensions or None,
        truncates=fields.truncate is not False,
        keep_alive=decode_keep_alive(fields.keep_alive),
        warnings=_warn_about_options(fields.options),
    )


def decode_embeddings(body: bytes, strict: bool = False) -> EmbeddingTask:
    """Decode a request; one without a text has no inputs."""
    fields = decode_object(body, OllamaEmbeddingsRequest, strict)
    return EmbeddingTask(
        model=fields.model or "",
        inputs=[fields.prompt] if fields.prompt else [],
        truncates=True,
        keep_alive=decode_keep_alive(fields.keep_alive),
        warnings=_warn_about_options(fields.options),
    )


def _warn_about_options(options: OllamaOptions | None) -> tuple[str, ...]:
    is_set = options is not None and options != OllamaOptions()
    return ("`options` has no effect on embeddings.",) if is_set else ()


class EmbedEncoder:
    """Encodes the vectors of one request as they come."""

    def __init__(self, dimensions: int | None = None) -> None:
        self._dimensions = dimensions
        self._parts: list[bytes] = []

    def add(self, vectors: Sequence[list[float]]) -> None:
        """Encode the next vectors."""
        for vector in vectors:
            check_vector(vector)
            self._parts.append(encode(normalize_vector(vector, self._dimensions)))

    def encode_whole(self, model: str, usage: Usage, times: AnswerTimes) -> bytes:
        """Return the response with all vectors."""
        response = OllamaEmbedResponse(
            model=model,
            embeddings=[],
            total_duration=to_nanoseconds(times.total),
            load_duration=to_nanoseconds(times.load),
            prompt_eval_count=usage.prompt,
        )
        start, empty, end = encode(response).partition(b'"embeddings":[')
        return b"".join((start, empty, b",".join(self._parts), end))


class EmbeddingsEncoder(EmbedEncoder):
    """Encodes the vector of one text, as the engine returns it."""

    def __init__(self) -> None:
        super().__init__()
        self._vector: list[float] = []

    def add(self, vectors: Sequence[list[float]]) -> None:
        for vector in vectors:
            check_vector(vector)
            self._vector = vector

    def encode_whole(self, model: str, usage: Usage, times: AnswerTimes) -> bytes:
        return encode(OllamaEmbeddingsResponse(self._vector))
