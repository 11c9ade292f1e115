"""A conversation that is too long for its model, without its beginning.

What goes is whole exchanges, oldest first, each from a message of the user's to the next one, as
few as it takes to leave room for an answer. What the system says stays, and so does the last
exchange.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman import pipeline
from dragoman.errors import ContextOverflow
from dragoman.types import Chat, Message, Request

if TYPE_CHECKING:
    from dragoman.models.registry import Models

ANSWER = 1024  # tokens that an answer should have room for, if nothing else is said


async def fitting(request: Request, models: Models) -> pipeline.Plan:
    """A plan for as much of the conversation as fits."""
    try:
        return await pipeline.prepare(request, models)
    except ContextOverflow:
        shorter = _shorter(request)
        if not shorter:
            raise
    low, high = 0, len(shorter) - 1  # the least that must go lies between them
    while low < high:
        middle = (low + high) // 2
        if await _fits(shorter[middle], models):
            high = middle
        else:
            low = middle + 1
    return await pipeline.prepare(shorter[low], models)


async def _fits(request: Request, models: Models) -> bool:
    """Whether there is room for a request and for an answer to it."""
    try:
        plan = await pipeline.prepare(request, models)
    except ContextOverflow:
        return False
    with closing(plan):
        room, context = plan.jobs[0].sampling.max_tokens, plan.model.capabilities.context
        if room is None or context is None:
            return True
        return room >= min(request.sampling.max_tokens or ANSWER, context // 4)


def _shorter(request: Request) -> list[Request]:
    """The request with one exchange less, with two less, and so on."""
    chat = request.prompts[0]
    if not isinstance(chat, Chat):
        return []
    messages = chat.messages
    head = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    starts = [at for at, one in enumerate(messages) if one.role == "user" and at > head]
    return [_with(request, chat, (*messages[:head], *messages[at:])) for at in starts]


def _with(request: Request, chat: Chat, messages: tuple[Message, ...]) -> Request:
    warning = "`truncation`: the beginning of the conversation was left out."
    shorter = replace(chat, messages=messages)
    return replace(request, prompts=(shorter,), warnings=(*request.warnings, warning))
