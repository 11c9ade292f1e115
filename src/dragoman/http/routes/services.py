"""The small services beside the generating dialects: models, tokens, health, documents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dragoman.errors import BadRequest, Unsupported
from dragoman.http import openapi
from dragoman.http.asgi import RequestContext
from dragoman.http.metrics import CONTENT_TYPE
from dragoman.models.registry import Model, ModelEntry
from dragoman.pipeline.embed import embed
from dragoman.pipeline.pipeline import count_prompt_tokens
from dragoman.pipeline.validate import validate_media
from dragoman.protocols import embeddings, models
from dragoman.protocols import tokenize as tokens
from dragoman.protocols.messages import Messages, TokenCount, model_list
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body
from dragoman.responses.run import CompletionRun
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types import Chat

if TYPE_CHECKING:
    from dragoman.http.app import App

T = TypeVar("T")
HTML = b"text/html; charset=utf-8"
PAGE = Path(__file__).with_name("docs_page.html")


class Services:
    """Handlers over one app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._models = app.models
        self._services = app.services

    async def message(self, exchange: RequestContext) -> None:
        dialect = await self._speaking(exchange)
        said = await self._app.read(exchange, dialect.decode)
        request = replace(said, owner=exchange.owner)
        await self._app.responder.respond(
            exchange, lambda: CompletionRun.prepare(dialect, request, self._services)
        )

    async def count_tokens(self, exchange: RequestContext) -> None:
        dialect = await self._speaking(exchange)
        said = await self._app.read(exchange, dialect.to_count)
        counted = TokenCount(
            await count_prompt_tokens(replace(said, owner=exchange.owner), self._services)
        )
        await exchange.send_response(200, openai.encode(counted))

    async def _speaking(self, exchange: RequestContext) -> Messages:
        """The Messages dialect for one client, told by the errors and the pings as well."""
        seal = await self._app.state.get_signer()
        dialect = Messages(seal.for_owner(exchange.owner), exchange.request_id)
        exchange.ping = dialect.ping
        return dialect

    async def embed(self, exchange: RequestContext) -> None:
        request = await self._app.read(exchange, embeddings.decode_request)
        async with self._app.responder.track(exchange.wait_disconnected):
            model, vectors, spent = await embed(request.model, request.inputs, self._services)
        self._app.metrics.spent += spent
        body = embeddings.encode_embeddings(request, model, vectors, spent.prompt)
        await exchange.send_response(200, body)

    async def tokenize(self, exchange: RequestContext) -> None:
        said, prompt = await self._app.read(exchange, tokens.decode_tokenize_request)
        with await self._models.acquire(said.model or self._models.default_name) as model:
            vocabulary = vocabulary_of(model)
            if isinstance(prompt, Chat):
                validate_media(prompt, model)
                ids = (await model.renderer.render(prompt)).ids or []
            else:
                ids = cast("list[int]", await model.renderer.encode_prompt(prompt))
            answer = tokens.TokenizeResponse(len(ids), model.capabilities.context, ids)
            if said.return_token_strs:
                answer.token_strs = [
                    vocabulary.pieces[token].decode(errors="replace") for token in ids
                ]
        await exchange.send_response(200, await asyncio.to_thread(openai.encode, answer))

    async def detokenize(self, exchange: RequestContext) -> None:
        said = await self._app.read(exchange, tokens.decode_detokenize_request)
        with await self._models.acquire(said.model or self._models.default_name) as model:
            vocabulary = vocabulary_of(model)
            if any(token >= vocabulary.vocab_size for token in said.tokens):
                raise BadRequest("A token is not in the model's vocabulary.", param="tokens")
            text = await asyncio.to_thread(vocabulary.decode, said.tokens)
        await exchange.send_response(200, openai.encode(tokens.DetokenizeResponse(text)))

    async def tokenizer_info(self, exchange: RequestContext) -> None:
        with await self._models.acquire(self._models.default_name) as model:
            vocabulary = vocabulary_of(model)
            answer = tokens.TokenizerInfo(
                vocabulary.vocab_size,
                vocabulary.variables.get("bos_token"),
                vocabulary.variables.get("eos_token"),
                model.template_source,
                vocabulary.add_bos,
            )
        await exchange.send_response(200, openai.encode(answer))

    async def list_models(self, exchange: RequestContext) -> None:
        cards = [card(entry) for entry in self._models.list_models()]
        if exchange.messages:
            await exchange.send_response(200, model_list.encode_model_page(cards, exchange.query))
        else:
            await exchange.send_response(200, models.encode_model_list(cards))

    async def one_model(self, exchange: RequestContext) -> None:
        found = card(self._models.get(exchange.params["model"]))
        await exchange.send_response(200, (model_list if exchange.messages else models).encode_model(found))

    async def load(self, exchange: RequestContext) -> None:
        said = decode_body(await self._app.body(exchange), models.ModelName)
        await self._models.load(said.model)
        await exchange.send_response(200, openai.encode(card(self._models.get(said.model))))

    async def unload(self, exchange: RequestContext) -> None:
        said = decode_body(await self._app.body(exchange), models.ModelName)
        await self._models.unload(said.model)
        await exchange.send_response(200, openai.encode(card(self._models.get(said.model))))

    async def live(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, b'{"status":"live"}')

    async def ready(self, exchange: RequestContext) -> None:
        waiting = self._app.not_ready()
        if waiting is None:
            await exchange.send_response(200, b'{"status":"ready"}')
        else:
            raise waiting

    async def hello(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, b'{"object":"dragoman","docs":"/docs"}')

    async def metrics(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, self._app.metrics.render(), CONTENT_TYPE)

    async def openapi(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, openapi.render_document(self._app.router.routes))

    async def docs(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, PAGE.read_bytes(), HTML)


def vocabulary_of(model: Model) -> AnyTokenizer:
    if model.tokenizer is None:
        raise Unsupported("This model's engine has no tokenizer here.", param="model")
    return model.tokenizer


def known(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def card(entry: ModelEntry) -> models.ModelCard:
    """A model as it is listed; what is known only once it is loaded is left out until then."""
    info = entry.info
    return models.ModelCard(
        id=entry.id,
        created=info.created,
        status=entry.state,
        context_length=known(info.context),
        max_model_len=known(info.context),
        architecture=known(info.architecture),
        quantization=known(info.quantisation),
        parameters=known(info.parameters),
        size=info.size,
        modalities=list(info.modalities),
        capabilities=list(info.capabilities),
        lora=list(info.lora),
        aliases=list(entry.aliases),
        error=known(entry.error),
    )
