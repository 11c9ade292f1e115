"""A conversation that is too long for its model, without its beginning.

What goes is whole exchanges, oldest first, each from a message of the user's to the next one, as
few as it takes to leave room for an answer. What the system says stays, and so does the last
exchange.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from dragoman.errors import ContextOverflow
from dragoman.pipeline import pipeline
from dragoman.types import Chat, Request

if TYPE_CHECKING:
    from dragoman.pipeline.services import Services

ANSWER = 1024  # tokens that an answer should have room for, if nothing else is said


async def prepare_truncated(
    request: Request, services: Services, already_admitted: bool = False
) -> pipeline.Plan:
    """A plan for as much of the conversation as fits."""
    starts = _starts(request)
    try:
        plan = await pipeline.prepare(request, services, already_admitted)
    except ContextOverflow:
        if not starts:
            raise
    else:
        if _roomy(plan) or not starts:
            return plan
        plan.close()
    low, high = 0, len(starts) - 1  # the least that must go lies between them
    while low < high:
        middle = (low + high) // 2
        if await _fits(_from(request, starts[middle]), services, already_admitted):
            high = middle
        else:
            low = middle + 1
    return await pipeline.prepare(_from(request, starts[low]), services, already_admitted)


async def _fits(request: Request, services: Services, already_admitted: bool) -> bool:
    """Whether there is room for a request and for an answer to it."""
    try:
        plan = await pipeline.prepare(request, services, already_admitted)
    except ContextOverflow:
        return False
    with closing(plan):
        return _roomy(plan)


def _roomy(plan: pipeline.Plan) -> bool:
    """Whether there is room for an answer."""
    prompt, context = plan.jobs[0].prompt, plan.model.capabilities.context
    if context is None or isinstance(prompt, str):
        return True
    wanted = plan.request.sampling.max_tokens or plan.model.defaults.max_tokens or ANSWER
    return context - len(prompt) >= min(wanted, context // 4)


def _head(chat: Chat) -> int:
    """How many messages lead the conversation and stay."""
    messages = chat.messages
    return next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))


def _starts(request: Request) -> list[int]:
    """Messages of the user's that the conversation could begin with instead."""
    chat = request.prompts[0]
    if not isinstance(chat, Chat):
        return []
    head = _head(chat)
    return [at for at, one in enumerate(chat.messages) if one.role == "user" and at > head]


def _from(request: Request, start: int) -> Request:
    """The request without what lies before a message, but for what leads it."""
    chat = cast(Chat, request.prompts[0])
    messages = (*chat.messages[: _head(chat)], *chat.messages[start:])
    shorter = replace(chat, messages=messages)
    warning = "`truncation`: the beginning of the conversation was left out."
    return replace(request, prompts=(shorter,), warnings=(*request.warnings, warning))
