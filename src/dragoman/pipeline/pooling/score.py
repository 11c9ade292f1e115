"""Scores pairs of a query and a document, for reranking.

A model with a rank head scores a pair as a whole. A model that only embeds scores it by the cosine
of two embeddings, which the result says. A model that generates text does neither.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, ContextOverflow, EngineFailed, Unsupported
from dragoman.events import Usage
from dragoman.models.model import Model
from dragoman.pipeline.plan import estimate_tokens
from dragoman.pipeline.pooling.embed import (
    EncodedInput,
    embed_slice,
    encode_first_tokens,
    encode_plain,
)
from dragoman.pipeline.pooling.slices import lease_model, queue_slices
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import check_total_length
from dragoman.pipeline.watch import watch_call
from dragoman.prompt.text_pairs import PairTemplate, get_text_format, join_texts
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.telemetry.record import get_record
from dragoman.types.loop_share import LoopShare
from dragoman.types.pooling_tasks import NamedText, ScoreTask
from dragoman.types.text_pair import PairScorer, TextPair


class ScoreResult(Struct, frozen=True, kw_only=True):
    """The scores of all pairs, in order."""

    model: str  # as the client named it
    scores: list[float]
    usage: Usage
    is_cosine: bool  # they are cosine similarities of embeddings


class EmbeddedText(Struct, frozen=True):
    """A text whose vector is compared: a query with those of the documents after it."""

    content: EncodedInput
    is_query: bool


async def score(task: ScoreTask, services: Services) -> ScoreResult:
    """Return the relevance of each document for its query."""
    async with lease_model(task.model, services, task.owner) as lease:
        model = lease.model
        check_scores(model)
        with get_record().measure("render"):
            reader = PairReader(task, model)
            encoded = await reader.encode_all()
        with queue_slices(lease, services, task.owner, reader.tokens, "score") as slices:
            scores = ScoreList(model, len(task.pairs))
            if model.capabilities.scores:
                await slices.run(cast("list[TextPair]", encoded), measure_pair, scores.add_pairs)
            else:
                await slices.run(
                    cast("list[EmbeddedText]", encoded), measure_text, scores.add_vectors
                )
    return ScoreResult(
        model=lease.model_name,
        scores=scores.finish(),
        usage=Usage(prompt=reader.tokens),
        is_cosine=not model.capabilities.scores,
    )


def check_scores(model: Model) -> None:
    """Reject a model that neither scores nor is made for embeddings."""
    capabilities = model.capabilities
    if not capabilities.scores and (capabilities.generates or not capabilities.embeddings):
        raise Unsupported(
            f"`{model.id}` generates text and cannot rerank. Use a reranking or embedding model.",
            param="model",
        )


def measure_pair(pair: TextPair) -> int:
    return len(pair.ids) or estimate_tokens(pair.query) + estimate_tokens(pair.document)


def measure_text(text: EmbeddedText) -> int:
    return estimate_tokens(text.content)


class PairReader:
    """Encodes the pairs of a request within the limits of its model."""

    def __init__(self, task: ScoreTask, model: Model) -> None:
        self.tokens = 0  # of all that was encoded, as far as it is known
        self._task = task
        self._model = model
        self._format = get_text_format(model.tokenizer)
        self._template: PairTemplate | None = None
        if self._format.pair_template is not None and model.tokenizer is not None:
            self._template = PairTemplate(
                self._format.pair_template, model.tokenizer, model.renderer.token_cache
            )
        self._has_ids = model.capabilities.token_prompts and model.tokenizer is not None
        if not self._has_ids and (task.document_tokens or task.pair_tokens) is not None:
            raise Unsupported(
                "This model's engine takes texts, which cannot be cut to a number of tokens.",
                param="max_tokens_per_doc" if task.document_tokens else "truncate_prompt_tokens",
            )

    async def encode_all(self) -> list[TextPair] | list[EmbeddedText]:
        """Return pairs for a rank head, or the texts to embed."""
        share, last = LoopShare(), None
        query_ids: EncodedInput = ""
        pairs: list[TextPair] = []
        texts: list[EmbeddedText] = []
        for query, document in self._task.pairs:
            await share.yield_if_due()
            if query != last:
                last, query_ids = query, await self._encode(query)
                if not self._model.capabilities.scores:
                    texts.append(EmbeddedText(self._wrap(query_ids, query), is_query=True))
            if self._model.capabilities.scores:
                pairs.append(await self._encode_pair(query, query_ids, document))
            else:
                ids = await self._encode(document, self._task.document_tokens)
                texts.append(EmbeddedText(self._wrap(ids, document), is_query=False))
            check_total_length(self.tokens, self._model, document.param.partition("[")[0])
        return pairs if self._model.capabilities.scores else texts

    async def _encode(self, text: NamedText, tokens: int | None = None) -> EncodedInput:
        """Encode a text, or the first tokens of it."""
        limit = self._make_limit(text)
        whole = self._task.pair_tokens
        if whole is not None and not self._model.capabilities.scores:
            most = limit.tokens if whole < 0 else min(whole, limit.tokens)
            most = max(1, most - len(self._format.wrap(())))
            tokens = most if tokens is None else min(tokens, most)
        try:
            if tokens is None:
                ids = await encode_plain(text.text, self._model, limit)
                limit.check_tokens(0 if isinstance(ids, str) else len(ids), is_whole=True)
                return ids
            return await encode_first_tokens(text.text, self._model, limit, tokens)
        except BadRequest as error:
            error.param = text.param
            raise

    async def _encode_pair(
        self, query: NamedText, query_ids: EncodedInput, document: NamedText
    ) -> TextPair:
        if isinstance(query_ids, str):
            return TextPair(query=query.text, document=document.text)
        tokens = await self._count_document_tokens(query, query_ids)
        ids = await self._encode(document, tokens)
        if isinstance(ids, str):
            return TextPair(query=query.text, document=document.text)
        if self._template is None:
            pair = join_texts(query_ids, ids, self._format)
        else:
            is_cut = tokens is not None and len(ids) == tokens
            text = self._decode(ids) if is_cut else document.text
            limit = self._make_limit(document)
            pair = TextPair(await self._template.encode(query.text, text, limit))
        self._add_tokens(len(pair.ids), document)
        return pair

    async def _count_document_tokens(self, query: NamedText, ids: list[int]) -> int | None:
        """Return how many tokens of a document are read, if the client limits them."""
        most, whole = self._task.document_tokens, self._task.pair_tokens
        if whole is None:
            return most
        limit = self._make_limit(query)
        whole = limit.tokens if whole < 0 else min(whole, limit.tokens)
        empty = len(join_texts(ids, (), self._format).ids)
        if self._template is not None:
            empty = len(await self._template.encode(query.text, "", limit))
        if empty >= whole:
            raise ContextOverflow(
                f"`{query.param}` leaves no room for a document: it has {empty} of {whole} tokens.",
                param=query.param,
            )
        return whole - empty if most is None else min(most, whole - empty)

    def _wrap(self, ids: EncodedInput, text: NamedText) -> EncodedInput:
        if isinstance(ids, str):
            return ids
        wrapped = self._format.wrap(ids)
        self._add_tokens(len(wrapped), text)
        return wrapped

    def _add_tokens(self, count: int, text: NamedText) -> None:
        self._make_limit(text).check_tokens(count, is_whole=True)
        self.tokens += count

    def _make_limit(self, text: NamedText) -> PromptLimit:
        limit = self._model.make_embedding_limit(text.param)
        return replace(limit, make_error=lambda length: _make_overflow(length, limit, text))

    def _decode(self, ids: list[int]) -> str:
        tokenizer = self._model.tokenizer
        return "" if tokenizer is None else tokenizer.decode(ids)


def _make_overflow(length: str, limit: PromptLimit, text: NamedText) -> ContextOverflow:
    return ContextOverflow(
        f"`{text.param}` is too long: this model reads {limit.tokens} tokens at once, and the "
        f"input made of it has {length}. Shorten it, or set `truncate_prompt_tokens` to -1.",
        param=text.param,
    )


class ScoreList:
    """The scores of a request, as far as they are computed."""

    def __init__(self, model: Model, count: int) -> None:
        self._model = model
        self._count = count
        self._scores: list[float] = []
        self._query: Sequence[float] = ()

    async def add_pairs(self, pairs: list[TextPair]) -> None:
        """Score pairs with the rank head of the model."""
        with watch_call(self._model, "embed", sum(map(measure_pair, pairs))):
            self._scores += await cast(PairScorer, self._model.engine).score(pairs)

    async def add_vectors(self, texts: list[EmbeddedText]) -> None:
        """Score documents by the cosine of their embedding and that of the query before them."""
        vectors = await embed_slice([text.content for text in texts], self._model)
        for text, vector in zip(texts, vectors, strict=True):
            if text.is_query:
                self._query = vector
            else:
                self._scores.append(compute_cosine(self._query, vector))

    def finish(self) -> list[float]:
        """Return all scores, which must be numbers."""
        if len(self._scores) != self._count or not all(map(math.isfinite, self._scores)):
            raise EngineFailed("The engine returned scores that are not numbers, or not all.")
        return self._scores


def compute_cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine similarity of two vectors; 0 for one without a direction."""
    norm = math.sqrt(_multiply(first, first) * _multiply(second, second))
    return _multiply(first, second) / norm if norm else 0.0


def _multiply(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(map(operator.mul, first, second))
