"""Adapts a chat to its model and renders its prompt, with replayed turns.

The stage `media` comes first: pictures and sound are decoded, and files become text.

Clients send every model the reasoning fields and template variables of the model they were made
for. Those that this model's template does not have are dropped, with a warning for each. Then the
operator's system prompt and template variables are applied (`dragoman.presets`).

The operator can make system prompts public (`public_prompt`). The part of a prompt that a public
system prompt decides is the common beginning of two conversations with it that differ in their
first question. A job whose prompt begins like that may reuse exactly this part from the engine's
cache, whichever owner it was computed for. The operator's own `system` prompt is not public by
itself: who guesses it would learn from the cached tokens that the guess is right.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from dragoman.errors import BadRequest, ContextOverflow, Unsupported
from dragoman.media.service import MediaReading
from dragoman.models.model import Model
from dragoman.pipeline.rendering.infill_template import find_infill_renderer, render_infill
from dragoman.pipeline.rendering.media_prompt import count_prompt
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import (
    BUDGET_UNSUPPORTED,
    validate_media,
    warn_about_tool_media,
)
from dragoman.presets.apply import apply_to_chat, make_warning
from dragoman.prompt.infill import encode_infill
from dragoman.prompt.renderer import RenderedPrompt as RenderedPrompt
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.replay import NO_ROOM, REREAD, ReplayedPrompt, ReplayScope, ReplayService
from dragoman.telemetry.record import get_record
from dragoman.types import Chat, Json, Message, Prompt, Request, make_text_content
from dragoman.types.common_prefix import count_common_prefix
from dragoman.types.loop_share import LoopShare

QUESTIONS = ("a", "2")  # two questions with different first tokens
MAX_AGE = 60.0  # seconds that a public prefix is valid; chat templates may write the date
INFILL_ANSWER = 512  # tokens to leave for an answer without a limit


async def load_media(
    chat: Chat, model: Model, services: Services, owner: str, limit: PromptLimit
) -> Chat:
    """Return the chat with its media read; raise `BadRequest` for the first that is invalid."""
    if not chat.media:
        return chat
    reading = MediaReading(
        modalities=model.capabilities.modalities,
        owner=owner,
        max_bytes=services.limiter.find_limits(owner).media_bytes,
    )
    with get_record().measure("media"):
        chat = await services.media.read_chat(chat, reading)
    limit.check_chat(chat)  # again, because files are text now
    return chat


async def load_request_media(request: Request, model: Model, services: Services) -> Request:
    """Read the media of all chats of a request."""
    for index, prompt in enumerate(request.prompts):
        if isinstance(prompt, Chat) and prompt.media:
            limit, prompts = model.get_prompt_limit("messages"), [*request.prompts]
            prompts[index] = await load_media(prompt, model, services, request.owner, limit)
            request = replace(request, prompts=tuple(prompts))
    return request


def adapt_chat(chat: Chat, model: Model) -> tuple[Chat, tuple[str, ...]]:
    """Return the chat adapted to its model, and a warning for each field without effect."""
    warnings = warn_about_tool_media(chat) if chat.media else []
    if chat.prefers_reasoning:
        chat = _turn_on_reasoning(chat, model)
    sets_reasoning = chat.reasoning_effort is not None or chat.thinking_budget is not None
    if sets_reasoning or chat.template_kwargs:
        for drop in (_drop_effort, _drop_budget, _drop_unread_variables):
            chat, dropped = drop(chat, model)
            warnings += dropped
    if model.preset.changes_chats:
        chat, ignored = _apply_preset(chat, model)
        warnings += ignored
    return chat, tuple(warnings)


async def render_unanswered(
    chat: Chat, model: Model, services: Services, owner: str
) -> tuple[RenderedPrompt, tuple[str, ...]]:
    """Render a conversation whose answer is not generated; with warnings."""
    if model.relays_chat:
        raise Unsupported("This model's server renders its prompts itself.", param="model")
    limit, share = model.make_count_limit("messages"), LoopShare()
    limit.check_chat(chat)
    validate_media(chat, model, services.limiter.find_limits(owner))
    await share.yield_if_due()
    chat = await load_media(chat, model, services, owner, limit)
    chat, warnings = adapt_chat(chat, model)
    await share.yield_if_due()
    return await model.renderer.render(chat, limit=limit), warnings


def _turn_on_reasoning(chat: Chat, model: Model) -> Chat:
    """Turn reasoning on where the client prefers it and sets no effort of its own."""
    switch = model.renderer.reasoning.switch
    if chat.reasoning_effort is not None or switch is None:
        return chat
    return replace(chat, template_kwargs={switch[0]: switch[1]} | chat.template_kwargs)


def _drop_effort(chat: Chat, model: Model) -> tuple[Chat, list[str]]:
    """Drop a reasoning effort that this model cannot be set to."""
    try:
        model.renderer.check_reasoning_effort(chat)
    except BadRequest as error:
        name = chat.get_client_field_name("reasoning_effort")
        return replace(chat, reasoning_effort=None), [_make_warning(name, error.message)]
    return chat, []


def _drop_budget(chat: Chat, model: Model) -> tuple[Chat, list[str]]:
    """Drop a reasoning budget that is optional for the client if it cannot be enforced."""
    if chat.thinking_budget is None or "thinking_budget" not in chat.optional_fields:
        return chat, []
    output_format = model.output_format
    if model.renderer.template_enforces_budget or output_format.reasoning_close is not None:
        return chat, []
    name, warnings = chat.get_client_field_name("thinking_budget"), []
    if output_format.reasoning is not None:  # else there is nothing to limit
        warnings.append(_make_warning(name, BUDGET_UNSUPPORTED))
    return replace(chat, thinking_budget=None), warnings


def _drop_unread_variables(chat: Chat, model: Model) -> tuple[Chat, list[str]]:
    """Drop the variables that the template does not read, and rename those it names otherwise."""
    if not chat.template_kwargs:
        return chat, []
    variables: dict[str, Json] = {}
    names = dict(chat.client_field_names)
    warnings = []
    for name, value in chat.template_kwargs.items():
        client_name = chat.get_client_variable_name(name)
        resolved = model.renderer.resolve_variable(name, value)
        if isinstance(resolved, str):
            warnings.append(_make_warning(client_name, resolved))
            continue
        variables |= resolved
        names |= {f"template_kwargs.{resolved_name}": client_name for resolved_name in resolved}
    return replace(chat, template_kwargs=variables, client_field_names=names), warnings


def _apply_preset(chat: Chat, model: Model) -> tuple[Chat, list[str]]:
    """Apply the operator's values; an effort that the client chose overrides a default."""
    preset = model.preset
    effort = model.renderer.get_reasoning_variables(chat)
    defaults = {name: value for name, value in preset.variables.items() if name not in effort}
    adapted, warnings = apply_to_chat(chat, replace(preset, variables=defaults))
    forced = preset.forced_variables
    if any(forced.get(name, value) != value for name, value in effort.items()):
        warnings.append(make_warning(chat.get_client_field_name("reasoning_effort")))
    return adapted, warnings


def _make_warning(name: str, reason: str) -> str:
    return f"`{name}` has no effect: {reason}"


async def render_with_replay(
    chat: Chat, scope: ReplayScope, replay: ReplayService | None, limit: PromptLimit
) -> ReplayedPrompt:
    """Render a chat with earlier turns as the model wrote them, where those tokens are known.

    If the prompt fits the context only without the replayed turns, it is rendered without them.
    """
    with get_record().measure("render"):
        return await _render(chat, scope, replay, limit)


async def _render(
    chat: Chat, scope: ReplayScope, replay: ReplayService | None, limit: PromptLimit
) -> ReplayedPrompt:
    renderer, context = scope.model.renderer, scope.model.capabilities.context
    if replay is None or not renderer.can_splice:
        return ReplayedPrompt(await renderer.render(chat, limit=limit))
    turns = await replay.find_turns(chat, scope)
    splicer = replay.make_splicer(renderer)
    try:
        rendered = await renderer.render(turns.chat, splicer, limit)
    except ContextOverflow:
        replays = sum(message.replay is not None for message in turns.chat.messages)
        if not replays:
            raise
        plain = await renderer.render(chat, splicer, limit)
        return turns.with_prompt(plain, (NO_ROOM,) * replays)
    if rendered.replayed_turns:
        fits, reason = await _check_replays(rendered, scope.model)
        plain = rendered if fits else await renderer.render(chat, splicer, limit)
        if not fits and (reason == REREAD or plain.fits(context)):
            skipped = (*rendered.skipped, *[reason] * rendered.replayed_turns)
            return turns.with_prompt(plain, skipped)
    return turns.with_prompt(rendered, rendered.skipped)


async def _check_replays(rendered: RenderedPrompt, model: Model) -> tuple[bool, str]:
    """Return whether the engine accepts a prompt with replayed turns, and the reason if not."""
    count = await count_prompt(rendered.ids or [], rendered.media, model)
    if count is None:
        return True, ""
    if not count.is_exact:
        return False, REREAD
    context = model.capabilities.context
    return context is None or count.tokens < context, NO_ROOM


async def encode_raw_prompt(
    prompt: Prompt, model: Model, request: Request
) -> tuple[list[int] | str, tuple[str, ...]]:
    """Encode a prompt that is not a chat: text to continue, or texts to fill in between.

    Returns warnings, too.
    """
    limit = model.get_prompt_limit("prompt")
    if prompt.infill is not None:
        renderer = await find_infill_renderer(prompt.infill, model)
        if renderer is not None:
            return await render_infill(prompt, prompt.infill, renderer, limit)
        context, max_tokens = model.capabilities.context, request.sampling.max_tokens
        room = (
            None if context is None else max(context - (max_tokens or INFILL_ANSWER), context // 2)
        )
        return await encode_infill(prompt, prompt.infill, model.tokenizer, room, limit)
    if model.tokenizer is None and isinstance(prompt.content, str):
        for name in ("parse_special", "add_special_tokens"):
            if not getattr(prompt, name):
                raise Unsupported(
                    f"`{name}` cannot be turned off: this model's tokenizer is unknown.", param=name
                )
    return await model.renderer.encode_prompt(prompt, limit), ()


def prepend_context(context: tuple[int, ...], content: list[int] | str, model: Model) -> list[int]:
    """Put the tokens of earlier turns before a prompt."""
    tokenizer = model.tokenizer
    if isinstance(content, str) or tokenizer is None:
        raise Unsupported("`context` is not supported by this model's engine.", param="context")
    size = len(tokenizer.pieces)
    if max(context) >= size:
        raise BadRequest(
            f"Every token id of `context` must be between 0 and {size - 1}.", param="context"
        )
    is_repeated = content[:1] == [tokenizer.bos_id]
    return [*context, *(content[1:] if is_repeated else content)]


def make_replay_scope(model: Model, request: Request) -> ReplayScope:
    return ReplayScope(model, request.owner, request.lora or ())


async def count_public_tokens(content: list[int] | str, model: Model) -> int:
    """Return how many tokens at the beginning of a prompt are public."""
    if not model.public_prompts or isinstance(content, str):
        return 0
    now = time.monotonic()
    if model.public_prefixes is None or now - model.public_prefixes[0] > MAX_AGE:
        prefixes = [await _render_prefix(text, model) for text in model.public_prompts]
        model.public_prefixes = now, prefixes
    matching = (
        len(prefix) for prefix in model.public_prefixes[1] if content[: len(prefix)] == prefix
    )
    return max(matching, default=0)


async def _render_prefix(text: str, model: Model) -> list[int]:
    """Return the tokens with which every conversation with this system prompt begins."""
    prompts = []
    system = Message(role="system", content=make_text_content(text))
    for question in QUESTIONS:
        user = Message(role="user", content=make_text_content(question))
        chat, _ = adapt_chat(Chat(messages=(system, user)), model)
        prompts.append((await model.renderer.render(chat)).ids or [])
    first, second = prompts
    return first[: count_common_prefix(first, second)]
