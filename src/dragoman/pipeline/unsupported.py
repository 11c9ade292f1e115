"""What a client wishes of a model's thinking, where the model may be unable to do it.

Agents ask every model to think in the way of the one they were made for. A field that is only a
wish is dropped, with a warning, where this model cannot honour it; any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.models.model import Model
from dragoman.types import Chat, MediaPart, Message, TextPart


def drop_unsupported(chat: Chat, model: Model) -> tuple[Chat, tuple[str, ...]]:
    """The chat with those of its wishes that can be honoured, and a sentence for each other one."""
    unkept = warn_about_tool_media(chat, model)
    if "reasoning_effort" in chat.optional_fields:
        try:
            model.renderer.check_reasoning_effort(chat)
        except BadRequest as error:
            unkept.append(_sentence(chat, "reasoning_effort", error.message))
            chat = replace(chat, reasoning_effort=None)
    limited = (
        model.renderer.template_enforces_budget or model.output_format.reasoning_close is not None
    )
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


def find_unsupported_media(chat: Chat, model: Model) -> Iterator[tuple[Message, MediaPart]]:
    """Yield the media parts that the model's engine cannot read, with their messages."""
    modalities = model.capabilities.modalities
    for message in chat.messages:
        for part in message.content:
            if not isinstance(part, TextPart) and part.modality not in modalities:
                yield message, part


def warn_about_tool_media(chat: Chat, model: Model) -> list[str]:
    """Return a warning for each type of media in tool results that the model does not see."""
    parts = (
        part for message, part in find_unsupported_media(chat, model) if message.role == "tool"
    )
    types = dict.fromkeys(part.wire_type for part in parts)
    return [f"`{name}` in tool results is not shown to the model." for name in types]


def _sentence(chat: Chat, field: str, why: str) -> str:
    return f"`{chat.get_client_field_name(field)}` has no effect: {why}"
