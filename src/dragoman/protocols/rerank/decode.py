"""Decode requests to rerank documents, or to score pairs of texts."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body, make_missing_field_error
from dragoman.protocols.shared.prompts import MAX_PROMPTS
from dragoman.types import Json
from dragoman.types.pooling_tasks import NamedText

COHERE_DOCUMENT_TOKENS = 4096  # of a document, where a request to Cohere's API does not say it
MAX_TOKENS = 1 << 20

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Document: TypeAlias = str | dict[str, Json]
Documents: TypeAlias = Annotated[list[Document], Meta(min_length=1, max_length=MAX_PROMPTS)]
Texts: TypeAlias = Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_PROMPTS)]
TokenLimit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
PairLimit: TypeAlias = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]


class ScoringFields(Struct, kw_only=True):
    """Fields of both requests."""

    model: openai.ModelName | None = None
    truncate_prompt_tokens: PairLimit | None = None  # -1: to what the model reads
    use_activation: bool | None = None
    activation: bool | None = None
    instruction: str | None = None
    instruct: str | None = None
    user: str | None = None


class RerankRequest(ScoringFields, kw_only=True):
    """A query, and the documents to order by their relevance for it."""

    query: Text
    documents: Documents
    top_n: Annotated[int, Meta(ge=0)] | None = None  # 0 and null: all
    return_documents: bool | None = None
    max_tokens_per_doc: TokenLimit | None = None
    max_chunks_per_doc: int | None = None
    rank_fields: list[str] | None = None  # of documents that are objects


class ScoreRequest(ScoringFields, kw_only=True):
    """Pairs of texts: one with one, one with each of a list, or two lists of equal length."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None


class RerankInput(Struct, frozen=True, kw_only=True):
    """What a rerank request asks for."""

    model: str
    pairs: list[tuple[NamedText, NamedText]]
    documents: list[dict[str, Json]]  # as they are returned
    top_n: int | None
    return_documents: bool
    document_tokens: int | None
    pair_tokens: int | None


class ScoreInput(Struct, frozen=True, kw_only=True):
    """What a score request asks for."""

    model: str
    pairs: list[tuple[NamedText, NamedText]]
    pair_tokens: int | None


def decode_rerank(body: bytes, strict: bool = False) -> RerankInput:
    """Decode a request in the form of Jina, vLLM, llama-server or Cohere's first version."""
    return _convert_rerank(decode_body(body, RerankRequest, strict), None)


def decode_rerank_v2(body: bytes, strict: bool = False) -> RerankInput:
    """Decode a request in the form of Cohere's second version."""
    return _convert_rerank(decode_body(body, RerankRequest, strict), COHERE_DOCUMENT_TOKENS)


def _convert_rerank(fields: RerankRequest, document_tokens: int | None) -> RerankInput:
    _reject_unsupported(fields)
    if fields.max_chunks_per_doc is not None:
        raise Unsupported(
            "Documents are not cut into chunks; use `max_tokens_per_doc`.",
            param="max_chunks_per_doc",
        )
    query = NamedText(fields.query, "query")
    pairs = [
        (query, NamedText(_read_text(document, f"documents[{i}]", fields), f"documents[{i}]"))
        for i, document in enumerate(fields.documents)
    ]
    return RerankInput(
        model=fields.model or "",
        pairs=pairs,
        documents=[
            document if isinstance(document, dict) else {"text": document}
            for document in fields.documents
        ],
        top_n=fields.top_n or None,
        return_documents=bool(fields.return_documents),
        document_tokens=fields.max_tokens_per_doc or document_tokens,
        pair_tokens=fields.truncate_prompt_tokens or None,
    )


def decode_score(body: bytes, strict: bool = False) -> ScoreInput:
    fields = decode_body(body, ScoreRequest, strict)
    _reject_unsupported(fields)
    first = _choose(fields, ("text_1", "queries", "data_1"))
    second = _choose(fields, ("text_2", "documents", "data_2"))
    if len(first) not in (1, len(second)):
        raise BadRequest(
            f"`{_get_name(first)}` must have one text, or as many as `{_get_name(second)}`.",
            param=_get_name(first),
        )
    if len(first) == 1:
        first = first * len(second)
    return ScoreInput(
        model=fields.model or "",
        pairs=list(zip(first, second, strict=True)),
        pair_tokens=fields.truncate_prompt_tokens or None,
    )


def _choose(fields: ScoreRequest, names: tuple[str, ...]) -> list[NamedText]:
    """Return the texts of the one field that is set."""
    given = [name for name in names if getattr(fields, name) is not None]
    if not given:
        raise make_missing_field_error(names[0])
    name, value = given[0], getattr(fields, given[0])
    if len(given) > 1:
        raise BadRequest(f"`{name}` and `{given[1]}` mean the same: send one of them.", param=name)
    if isinstance(value, str):
        return [NamedText(value, name)]
    return [NamedText(text, f"{name}[{i}]") for i, text in enumerate(value)]


def _get_name(texts: list[NamedText]) -> str:
    return texts[0].param.partition("[")[0]


def _read_text(document: Document, path: str, fields: RerankRequest) -> str:
    """Return the text of a document: itself, its `text`, or its `rank_fields`, a line for each."""
    if isinstance(document, str):
        text = document
    elif fields.rank_fields:
        values = {name: document[name] for name in fields.rank_fields if name in document}
        text = "\n".join(f"{name}: {value}" for name, value in values.items())
    else:
        text = document.get("text", "")
        for name in ("image", "content"):
            if name in document:
                raise Unsupported(
                    f"`{path}.{name}` is not supported; send the text as `text`.",
                    param=f"{path}.{name}",
                )
    if not isinstance(text, str) or not text:
        name = path if isinstance(document, str) else f"{path}.text"
        raise BadRequest(f"`{name}` must be a text that is not empty.", param=name)
    return text


def _reject_unsupported(fields: ScoringFields) -> None:
    for name in ("use_activation", "activation"):
        if getattr(fields, name) is False:
            raise Unsupported(
                f"Scores are always between 0 and 1: `{name}` cannot be false.", param=name
            )
    for name in ("instruction", "instruct"):
        if getattr(fields, name):
            raise Unsupported(
                f"`{name}` is not supported. Write it into the query, as the model's card says.",
                param=name,
            )
