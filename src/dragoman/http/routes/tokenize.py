"""Routes that use a model's tokenizer: text to token ids and back."""

from __future__ import annotations

from typing import cast

from dragoman.errors import BadRequest, Unsupported
from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.models.model import Model
from dragoman.models.residency import Lease
from dragoman.pipeline.render import RenderedPrompt, render_unanswered
from dragoman.protocols import chat
from dragoman.protocols.dialect import pass_strict
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.tokenize import (
    DIALECT,
    DetokenizeRequest,
    DetokenizeResponse,
    TemplateResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    decode_detokenize_request,
    encode_piece,
)
from dragoman.tokenizers.serialize import SerializedTokenizer, serialize_tokenizer
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types import Chat, Prompt
from dragoman.types.loop_share import LoopShare
from dragoman.types.worker_threads import run_in_worker


class TokenizeHandlers:
    """Handlers that use the tokenizers of loaded models."""

    def __init__(self, context: RouteContext) -> None:
        self._reader = context.reader
        self._services = context.runtime.services
        self._registry = context.runtime.services.models

    async def _acquire(self, request: RequestContext, name: str = "") -> Lease:
        lease = await self._registry.acquire(name, owner=request.owner)
        request.record.model = lease.model.id
        return lease

    async def _render(
        self, request: RequestContext, conversation: Chat, model: Model
    ) -> tuple[RenderedPrompt, tuple[str, ...]]:
        return await render_unanswered(conversation, model, self._services, request.owner)

    async def tokenize(self, request: RequestContext) -> None:
        decoded, content = await self._reader.read_and_decode(request, DIALECT.decode)
        with await self._acquire(request, decoded.model or "") as model:
            tokenizer = get_tokenizer(model)
            if isinstance(content, Chat):
                rendered, warnings = await self._render(request, content, model)
                request.warnings += warnings
                check_listable(rendered)
                ids = rendered.ids or []
            else:
                ids = await encode_prompts(content, model)
            context = model.capabilities.context
            body = await run_in_worker(_encode_tokens, decoded, ids, tokenizer.pieces, context)
        await request.send_response(200, body)

    async def apply_template(self, request: RequestContext) -> None:
        decoded = await self._reader.read_and_decode(request, chat.DIALECT.decode)
        request.warnings += decoded.warnings
        with await self._acquire(request, decoded.model) as model:
            conversation = cast(Chat, decoded.prompts[0])
            rendered, warnings = await self._render(request, conversation, model)
        request.warnings += warnings
        body = await run_in_worker(encode, TemplateResponse(rendered.text))
        await request.send_response(200, body)

    async def detokenize(self, request: RequestContext) -> None:
        decode = pass_strict(decode_detokenize_request)
        decoded = await self._reader.read_and_decode(request, decode)
        with await self._acquire(request, decoded.model or "") as model:
            tokenizer = get_tokenizer(model)
            body = await run_in_worker(_encode_text, decoded.tokens, tokenizer)
        await request.send_response(200, body)

    async def get_tokenizer_info(self, request: RequestContext) -> None:
        with await self._acquire(request, request.query.get("model", "")) as model:
            tokenizer = get_tokenizer(model)
            info = TokenizerInfo(
                tokenizer.vocab_size,
                tokenizer.variables.get("bos_token"),
                tokenizer.variables.get("eos_token"),
                model.template_source,
                tokenizer.add_bos,
            )
        await request.send_response(200, encode(info))

    async def get_tokenizer(self, request: RequestContext) -> None:
        with await self._acquire(request, request.query.get("model", "")) as model:
            body = await run_in_worker(_encode_tokenizer, get_tokenizer(model))
        await request.send_response(200, body)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = TokenizeHandlers(context)
    group = RouteGroup("", DIALECT)
    return [
        group.make(
            "POST",
            "/tokenize",
            handlers.tokenize,
            "Convert text or a conversation to token ids.",
            request_type=TokenizeRequest,
            response_type=TokenizeResponse,
        ),
        group.make(
            "POST",
            "/detokenize",
            handlers.detokenize,
            "Convert token ids to text.",
            request_type=DetokenizeRequest,
            response_type=DetokenizeResponse,
        ),
        group.make(
            "POST",
            "/apply-template",
            handlers.apply_template,
            "Render a conversation with the chat template.",
            request_type=chat.ChatRequest,
            response_type=TemplateResponse,
        ),
        group.make(
            "GET",
            "/tokenizer_info",
            handlers.get_tokenizer_info,
            "Describe the tokenizer of a model.",
            response_type=TokenizerInfo,
        ),
        group.make(
            "GET",
            "/tokenizer",
            handlers.get_tokenizer,
            "Get the tokenizer of a model, for a Dragoman in front of this one.",
            response_type=SerializedTokenizer,
        ),
    ]


async def encode_prompts(prompts: list[Prompt], model: Model) -> list[int]:
    """Return the tokens of all parts of a text."""
    limit = model.make_count_limit("prompt")
    ids: list[int] = []
    share = LoopShare()
    for prompt in prompts:
        await share.yield_if_due()
        ids += cast("list[int]", await model.renderer.encode_prompt(prompt, limit))
        limit.check_tokens(len(ids), is_whole=prompt is prompts[-1])
    return ids


def _encode_tokens(
    request: TokenizeRequest, ids: list[int], pieces: list[bytes], context: int | None
) -> bytes:
    response = TokenizeResponse(len(ids), context, ids)
    if request.with_pieces:
        response.tokens = [encode_piece(token, pieces[token]) for token in ids]
    if request.return_token_strs:
        response.token_strs = [pieces[token].decode(errors="replace") for token in ids]
    return encode(response)


def _encode_text(ids: list[int], tokenizer: AnyTokenizer) -> bytes:
    if any(token >= tokenizer.vocab_size for token in ids):
        raise BadRequest("A token is not in the model's vocabulary.", param="tokens")
    text = tokenizer.decode(ids)
    return encode(DetokenizeResponse(text, text))


def _encode_tokenizer(tokenizer: AnyTokenizer) -> bytes:
    serialized = serialize_tokenizer(tokenizer)
    if serialized is None:
        raise Unsupported("This model's tokenizer is that of its engine.", param="model")
    return encode(serialized)


def check_listable(rendered: RenderedPrompt) -> None:
    """Reject a prompt with media, whose tokens have no ids."""
    if rendered.media:
        raise Unsupported(
            "The tokens of pictures and sound have no ids. `count_tokens` and `input_tokens` count "
            "them.",
            param="messages",
        )


def get_tokenizer(model: Model) -> AnyTokenizer:
    if model.tokenizer is None:
        raise Unsupported("The server does not have this model's tokenizer.", param="model")
    return model.tokenizer
