"""Routes of Anthropic's Messages API."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.generation import make_generation_handler
from dragoman.pipeline.pipeline import count_prompt_tokens
from dragoman.protocols import messages
from dragoman.protocols.messages import DIALECT
from dragoman.protocols.shared.openai import encode


def make_routes(context: RouteContext) -> list[Route]:
    async def count_tokens(request: RequestContext) -> None:
        decoded = await context.reader.read_and_decode(request, messages.decode_count)
        owned = replace(decoded, owner=request.owner)
        count = await count_prompt_tokens(owned, context.runtime.services)
        await request.send_response(200, encode(messages.TokenCount(count)))

    group = RouteGroup("/v1/messages", DIALECT)
    return [
        group.make(
            "POST",
            "",
            make_generation_handler(context, DIALECT),
            "Create a message.",
            request_type=messages.MessagesRequest,
            response_type=messages.MessageResponse,
            streams=True,
        ),
        group.make(
            "POST",
            "/count_tokens",
            count_tokens,
            "Count the tokens of a message.",
            request_type=messages.CountTokensRequest,
            response_type=messages.TokenCount,
        ),
    ]
