"""Compaction: the model summarises a conversation.

User messages stay as they are; everything else becomes one signed summary, which the client sends
instead of the conversation.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import cast

from msgspec.structs import replace

from dragoman.errors import BadRequest, EngineFailed
from dragoman.events import Completion, Delta
from dragoman.pipeline import pipeline
from dragoman.pipeline.plan import Plan
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest
from dragoman.responses.build_request import build_request
from dragoman.responses.response_run import ResponseContext
from dragoman.responses.run import Observe
from dragoman.responses.truncation import prepare_truncated
from dragoman.types import Chat, Message, Request, TextPart, make_text_content
from dragoman.types.worker_threads import run_in_worker

MAX_SUMMARY = 1024  # tokens, unless the request says otherwise
INSTRUCTION = (
    "Summarise this conversation so that another assistant can go on with it without having seen "
    "it: what was asked for, what was done and found out, what was decided, and what is left to "
    "do. Keep names, numbers, paths and code that still matter. Write nothing but the summary."
)

NO_SUMMARY = (
    "The model wrote no summary, perhaps only reasoning. Try again without `reasoning.effort`, "
    "with a shorter conversation, or with another model."
)
CUT_OFF = "The summary is incomplete: it reached the token limit."


async def compact(
    decoded: DecodedRequest, context: ResponseContext, observe: Observe
) -> tuple[bytes, tuple[str, ...]]:
    """Summarise a conversation; return the encoded compaction, and warnings.

    `observe` is called with every delta of the summary.
    """
    request = await build_request(
        decoded, context.history, owner=context.owner, packer=context.signer
    )
    plan = await prepare_truncated(_make_summary_request(request), context.services)
    completion = Completion()

    def deliver(delta: Delta) -> None:
        observe(delta)
        completion.add(delta)

    with closing(plan):
        await pipeline.generate(plan, deliver)
    choice = completion.build_choices()[0]
    if not choice.text.strip():
        raise EngineFailed(NO_SUMMARY)
    summary = responses.make_compaction_item(choice.text, context.signer)
    items = (*context.history, *decoded.items)
    user_messages = [item for item in items if item.get("role") == "user"]
    output = [*user_messages[-_count_user_messages(plan.request) :], summary]
    response_id, now = f"resp_{uuid.uuid4().hex}", int(time.time())
    warnings = _list_warnings(
        plan, cast(Chat, request.prompts[0]), cut_off=choice.finish == "length"
    )
    body = await run_in_worker(
        responses.encode_compaction, response_id, now, output, completion.usage
    )
    return body, warnings


def _make_summary_request(request: Request) -> Request:
    """Return the same conversation, with the instruction to summarise it."""
    chat = cast(Chat, request.prompts[0])
    if not any(map(_has_content, chat.messages)):
        raise BadRequest("There is no conversation to summarise.", param="input")
    summarise = replace(
        chat,
        messages=(*chat.messages, Message(role="user", content=make_text_content(INSTRUCTION))),
        tool_choice="none",
        allowed_tools=None,
        response_format=None,
        # all tokens should go into the summary
        reasoning_effort=chat.reasoning_effort or "none",
    )
    max_tokens = request.sampling.max_tokens or MAX_SUMMARY
    sampling = replace(request.sampling, max_tokens=max_tokens)
    # nothing is stored: there is no response that the client could delete it with
    return replace(request, prompts=(summarise,), constraint=None, sampling=sampling, store=False)


def _has_content(message: Message) -> bool:
    """Whether a message has a call, or content other than an empty text."""
    texts = (not isinstance(part, TextPart) or bool(part.text) for part in message.content)
    return bool(message.tool_calls) or any(texts)


def _list_warnings(plan: Plan, chat: Chat, *, cut_off: bool) -> tuple[str, ...]:
    """Return the warnings, except those about the reasoning effort that we set ourselves."""
    ours = plan.prompts[0].warnings if chat.reasoning_effort is None else ()
    warnings = tuple(warning for warning in plan.warnings if warning not in ours)
    return (*warnings, CUT_OFF) if cut_off else warnings


def _count_user_messages(request: Request) -> int:
    """Return how many user messages were in the prompt, without the last one, which is ours."""
    chat = cast(Chat, request.prompts[0])
    return max(1, sum(message.role == "user" for message in chat.messages) - 1)
