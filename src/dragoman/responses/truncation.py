"""Truncation: drops the beginning of a conversation that is too long for its model.

Whole exchanges, each from one user message to the next, are dropped, oldest first, and only as many
as necessary to leave room for an answer. The leading system messages and the last exchange stay.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from dragoman.errors import ContextOverflow
from dragoman.pipeline import pipeline
from dragoman.pipeline.plan import Plan
from dragoman.types import Chat, Request

if TYPE_CHECKING:
    from dragoman.pipeline.services import Services

DEFAULT_ANSWER = 1024  # tokens reserved for an answer without `max_output_tokens`


async def prepare_truncated(
    request: Request, services: Services, already_admitted: bool = False
) -> Plan:
    """Plan a request with as much of its conversation as fits."""
    starts = _list_possible_starts(request)
    try:
        plan = await pipeline.prepare(request, services, already_admitted)
    except ContextOverflow:
        if not starts:
            raise
    else:
        if _has_room(plan) or not starts:
            return plan
        plan.close()
    low, high = 0, len(starts) - 1  # binary search for the first start that fits
    while low < high:
        middle = (low + high) // 2
        if await _fits(_drop_before(request, starts[middle]), services, already_admitted):
            high = middle
        else:
            low = middle + 1
    return await pipeline.prepare(_drop_before(request, starts[low]), services, already_admitted)


async def _fits(request: Request, services: Services, already_admitted: bool) -> bool:
    """Whether the context has room for a request and its answer."""
    try:
        plan = await pipeline.prepare(request, services, already_admitted)
    except ContextOverflow:
        return False
    with closing(plan):
        return _has_room(plan)


def _has_room(plan: Plan) -> bool:
    """Whether the context has room for an answer."""
    tokens, context = plan.prompts[0].tokens, plan.model.capabilities.context
    if context is None or tokens is None:
        return True
    wanted = plan.request.sampling.max_tokens or plan.model.defaults.max_tokens or DEFAULT_ANSWER
    return context - tokens >= min(wanted, context // 4)


def _count_system_messages(chat: Chat) -> int:
    """Return how many system messages lead the conversation."""
    for index, message in enumerate(chat.messages):
        if message.role != "system":
            return index
    return len(chat.messages)


def _list_possible_starts(request: Request) -> list[int]:
    """Return indices of the user messages that the conversation could begin with instead."""
    chat = request.prompts[0]
    if not isinstance(chat, Chat):
        return []
    first = _count_system_messages(chat)
    return [
        index
        for index, message in enumerate(chat.messages)
        if message.role == "user" and index > first
    ]


def _drop_before(request: Request, start: int) -> Request:
    """Drop the messages before an index, except the leading system messages."""
    chat = cast(Chat, request.prompts[0])
    messages = (*chat.messages[: _count_system_messages(chat)], *chat.messages[start:])
    shorter = replace(chat, messages=messages, result_params={})  # they were checked before
    name = "truncate" if request.truncates else "truncation"
    warning = f"`{name}`: the beginning of the conversation was left out."
    return replace(request, prompts=(shorter,), warnings=(*request.warnings, warning))
