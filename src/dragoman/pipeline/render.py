"""Renders the prompt of a chat, with replayed turns."""

from __future__ import annotations

from dragoman.models.model import Model
from dragoman.replay import NO_ROOM, ReplayedPrompt, ReplayScope, ReplayService
from dragoman.telemetry.record import get_record
from dragoman.types import Chat, Request


async def render_with_replay(
    chat: Chat, scope: ReplayScope, replay: ReplayService | None
) -> ReplayedPrompt:
    """Render a chat with earlier turns as the model wrote them, where those tokens are known.

    If the prompt fits the context only without the replayed turns, it is rendered without them.
    """
    with get_record().measure("render"):
        return await _render(chat, scope, replay)


async def _render(chat: Chat, scope: ReplayScope, replay: ReplayService | None) -> ReplayedPrompt:
    renderer, context = scope.model.renderer, scope.model.capabilities.context
    if replay is None or not renderer.can_splice:
        return ReplayedPrompt(await renderer.render(chat))
    turns = await replay.find_turns(chat, scope)
    splicer = replay.make_splicer(renderer)
    rendered = await renderer.render(turns.chat, splicer)
    if rendered.replayed_turns and not rendered.fits(context):
        plain = await renderer.render(chat, splicer)
        if plain.fits(context):
            skipped = (*rendered.skipped, *[NO_ROOM] * rendered.replayed_turns)
            return turns.with_prompt(plain, skipped)
    return turns.with_prompt(rendered, rendered.skipped)


def make_replay_scope(model: Model, request: Request) -> ReplayScope:
    return ReplayScope(model, request.owner, request.lora or ())
