"""A conversation made short: the model says in its own words what came of it.

What the user said stays as it is; all the rest becomes one summary, sealed, that a client sends in
place of it.
"""

from __future__ import annotations

import time
import uuid
from typing import cast

from msgspec.structs import replace

from dragoman import pipeline
from dragoman.events import Completion
from dragoman.protocols import responses
from dragoman.protocols.responses import Asked
from dragoman.turns.fitting import fitting
from dragoman.turns.turn import Scene
from dragoman.types import Chat, Message, Request

LONGEST = 1024  # tokens of a summary
ASK = (
    "Summarise this conversation so that another assistant can go on with it without having seen "
    "it: what was asked for, what was done and found out, what was decided, and what is left to "
    "do. Keep names, numbers, paths and code that still matter. Write nothing but the summary."
)


async def compact(asked: Asked, scene: Scene) -> tuple[bytes, tuple[str, ...]]:
    """The short form of a conversation, as the dialect has it, and what is not in it, in words."""
    request = responses.to_request(asked, scene.history, owner=scene.owner, sealing=scene.sealing)
    plan = await fitting(_summarising(request), scene.models)
    whole = Completion()
    try:
        await pipeline.generate(plan, whole.add)
    finally:
        plan.close()
    summary = responses.compaction(whole.choices()[0].text, scene.sealing)
    users = [item for item in (*scene.history, *asked.items) if item.get("role") == "user"]
    output = [*users[-_told(plan.request) :], summary]
    name, now = f"resp_{uuid.uuid4().hex}", int(time.time())
    return responses.compacted(name, now, output, whole.usage), plan.warnings


def _summarising(request: Request) -> Request:
    """The same conversation, with nothing to do but to sum it up."""
    chat = cast(Chat, request.prompts[0])
    asking = replace(
        chat,
        messages=(*chat.messages, Message(role="user", content=ASK)),
        tool_choice="none",
        callable=None,
        response_format=None,
    )
    most = request.sampling.max_tokens or LONGEST
    sampling = replace(request.sampling, max_tokens=most)
    return replace(request, prompts=(asking,), shape=None, sampling=sampling)


def _told(request: Request) -> int:
    """How many messages of the user's there was room for; the last one is ours."""
    chat = cast(Chat, request.prompts[0])
    return max(1, sum(message.role == "user" for message in chat.messages) - 1)
