"""A last message that the model continues: where the prompt ends in it."""

from __future__ import annotations

from dragoman.errors import Unsupported
from dragoman.prompt.special_tokens import PROMPT_END
from dragoman.prompt.template.capabilities import TemplateMessage
from dragoman.types import Chat


def append_prompt_end(message: TemplateMessage) -> None:
    """Mark where the prompt ends, in a last message that the model continues."""
    content = message.get("content")
    if isinstance(content, list):
        content[-1]["text"] += PROMPT_END
    else:
        message["content"] = (content or "") + PROMPT_END


def cut_prompt(chat: Chat, text: str) -> str:
    """Cut off the text after a last message that the model continues."""
    if not chat.continue_final_message:
        return text
    text, end_marker, _ = text.rpartition(PROMPT_END)
    if not end_marker:
        raise Unsupported(
            "This model's chat template cannot leave the last message open.",
            param=chat.get_client_field_name("continue_final_message"),
        )
    return text.replace(PROMPT_END, "")
