"""Checks of a chat or of token ids before they are rendered, and about how much work that is."""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.types import Chat

ITEM_COST = 100  # characters that a part of a message or a call counts for besides its text


def estimate_cost(chat: Chat) -> int:
    """Return about how much work it is to render a chat, in characters."""
    items = 0
    for message in chat.messages:
        items += max(1, len(message.content)) + len(message.tool_calls)
    return ITEM_COST * items + chat.characters


def check_messages(chat: Chat) -> None:
    if not chat.messages:
        raise make_empty_error()
    if not chat.continue_final_message:
        return
    last, param = chat.messages[-1], chat.get_client_field_name("continue_final_message")
    if chat.add_generation_prompt:
        raise BadRequest(f"`{param}` and `add_generation_prompt` exclude each other.", param=param)
    if last.role != "assistant" or last.tool_calls:
        raise BadRequest(
            f"`{param}` requires that the last message is text from the assistant.",
            param=param,
        )


def check_ids(ids: list[int], size: int | None) -> None:
    if ids and (min(ids) < 0 or (size is not None and max(ids) >= size)):
        allowed = "0 or more" if size is None else f"between 0 and {size - 1}"
        raise BadRequest(f"Every token id of a prompt must be {allowed}.", param="prompt")


def make_empty_error() -> BadRequest:
    return BadRequest("Messages cannot be empty.", param="messages")
