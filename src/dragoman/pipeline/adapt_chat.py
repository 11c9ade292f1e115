"""Makes a chat one that its model can take, before it is rendered.

Clients send every model the reasoning fields and template variables of the model they were made
for. Those that this model's template does not have are dropped, with a warning for each. Then the
operator's system prompt and template variables are put in (`dragoman.presets`).
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.models.model import Model
from dragoman.pipeline.validate import BUDGET_UNSUPPORTED, warn_about_tool_media
from dragoman.presets.apply import apply_to_chat, make_warning
from dragoman.types import Chat, Json


def adapt_chat(chat: Chat, model: Model) -> tuple[Chat, tuple[str, ...]]:
    """Return the chat as its model takes it, and a warning for each field without effect."""
    warnings = warn_about_tool_media(chat, model)
    for drop in (_drop_effort, _drop_budget, _drop_unread_variables):
        chat, dropped = drop(chat, model)
        warnings += dropped
    chat, ignored = _apply_preset(chat, model)
    return chat, (*warnings, *ignored)


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
    """Put in the operator's values; an effort that the client chose is stronger than a default."""
    preset, effort = model.preset, model.renderer.get_reasoning_variables(chat)
    defaults = {name: value for name, value in preset.variables.items() if name not in effort}
    adapted, warnings = apply_to_chat(chat, replace(preset, variables=defaults))
    forced = preset.forced_variables
    if any(forced.get(name, value) != value for name, value in effort.items()):
        warnings.append(make_warning(chat.get_client_field_name("reasoning_effort")))
    return adapted, warnings


def _make_warning(name: str, reason: str) -> str:
    return f"`{name}` has no effect: {reason}"
