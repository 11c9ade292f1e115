"""A conversation made short: the model says in its own words what came of it.

What the user said stays as it is; all the rest becomes one summary, sealed, that a client sends in
place of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import cast

from msgspec.structs import replace

from dragoman.errors import EngineFailed
from dragoman.events import Completion, Delta
from dragoman.pipeline import pipeline
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest
from dragoman.responses.response_run import ResponseContext
from dragoman.responses.truncation import prepare_truncated
from dragoman.types import Chat, Message, Request, text_content

LONGEST = 1024  # tokens of a summary
ASK = (
    "Summarise this conversation so that another assistant can go on with it without having seen "
    "it: what was asked for, what was done and found out, what was decided, and what is left to "
    "do. Keep names, numbers, paths and code that still matter. Write nothing but the summary."
)

NOTHING = (
    "The model wrote no summary; it may have done nothing but think. Try again without "
    "`reasoning.effort`, with less of the conversation, or with another model."
)
CUT = "The summary was cut: there was no room for more of it."


async def compact(
    asked: DecodedRequest, scene: ResponseContext, note: Callable[[Delta], None]
) -> tuple[bytes, tuple[str, ...]]:
    """The short form of a conversation, as the dialect has it, and what is not in it, in words.

    `note` is told of every delta of the summary.
    """
    request = responses.to_request(asked, scene.history, owner=scene.owner, sealing=scene.signer)
    plan = await prepare_truncated(_summarising(request), scene.services)
    whole = Completion()

    def deliver(delta: Delta) -> None:
        note(delta)
        whole.add(delta)

    with closing(plan):
        await pipeline.generate(plan, deliver)
    choice = whole.choices()[0]
    if not choice.text.strip():
        raise EngineFailed(NOTHING)
    summary = responses.make_compaction_item(choice.text, scene.signer)
    users = [item for item in (*scene.history, *asked.items) if item.get("role") == "user"]
    output = [*users[-_told(plan.request) :], summary]
    name, now = f"resp_{uuid.uuid4().hex}", int(time.time())
    unkept = _unkept(plan, cast(Chat, request.prompts[0]), choice.finish == "length")
    return responses.encode_compaction(name, now, output, whole.usage), unkept


def _summarising(request: Request) -> Request:
    """The same conversation, with nothing to do but to sum it up."""
    chat = cast(Chat, request.prompts[0])
    asking = replace(
        chat,
        messages=(*chat.messages, Message(role="user", content=text_content(ASK))),
        tool_choice="none",
        allowed_tools=None,
        response_format=None,
        # all its tokens should be for the summary
        reasoning_effort=chat.reasoning_effort or "none",
        optional_fields=(*chat.optional_fields, "reasoning_effort"),
    )
    most = request.sampling.max_tokens or LONGEST
    sampling = replace(request.sampling, max_tokens=most)
    # the summary is the client's alone: there is nothing that it could be deleted with
    return replace(request, prompts=(asking,), constraint=None, sampling=sampling, store=False)


def _unkept(plan: pipeline.Plan, chat: Chat, cut: bool) -> tuple[str, ...]:
    """The warnings, but for those of a wish that was ours."""
    ours = plan.prompts[0].warnings if chat.reasoning_effort is None else ()
    said = tuple(one for one in plan.warnings if one not in ours)
    return (*said, CUT) if cut else said


def _told(request: Request) -> int:
    """How many messages of the user's there was room for; the last one is ours."""
    chat = cast(Chat, request.prompts[0])
    return max(1, sum(message.role == "user" for message in chat.messages) - 1)
