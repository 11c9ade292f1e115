"""What a client wishes of a model's thinking, where the model may be unable to do it.

Agents ask every model to think in the way of the one they were made for. A field that is only a
wish is dropped, with a warning, where this model cannot honour it; any other is refused by name.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.models.model import Model
from dragoman.types import Chat


def drop_unsupported(chat: Chat, model: Model) -> tuple[Chat, tuple[str, ...]]:
    """The chat with those of its wishes that can be honoured, and a sentence for each other one."""
    unkept = []
    if "reasoning_effort" in chat.optional_fields:
        try:
            model.renderer.check_effort(chat)
        except BadRequest as error:
            unkept.append(_sentence(chat, "reasoning_effort", error.message))
            chat = replace(chat, reasoning_effort=None)
    limited = model.renderer.keeps_budget or model.output_format.reasoning_close is not None
    if (
        "thinking_budget" in chat.optional_fields
        and chat.thinking_budget is not None
        and not limited
    ):
        why = "This model's thinking cannot be limited."
        if model.output_format.reasoning is not None:  # a limit to what is not there is kept
            unkept.append(_sentence(chat, "thinking_budget", why))
        chat = replace(chat, thinking_budget=None)
    return chat, tuple(unkept)


def _sentence(chat: Chat, field: str, why: str) -> str:
    return f"`{chat.get_client_field_name(field)}` has no effect: {why}"
