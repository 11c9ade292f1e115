"""Finds the text with which a template starts an answer, by comparing two prompts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dragoman.prompt.conversation import flatten_content
from dragoman.types import Chat, make_text_content

SENTINEL = "zqlast"


def find_opening(chat: Chat, render: Callable[[Chat], str]) -> str:
    """Return the text with which the template starts the answer, without any client text."""
    prompt = render(chat)
    if chat.continue_final_message:
        return _find_continued_opening(chat, prompt, render)
    before = render(replace(chat, add_generation_prompt=False))
    if prompt != before and prompt.startswith(before):
        return prompt[len(before) :]
    # The template ignores `add_generation_prompt`: take the text after the last message
    last = replace(chat.messages[-1], content=make_text_content(SENTINEL))
    other = render(replace(chat, messages=(*chat.messages[:-1], last)))
    _, sentinel, rest = other.rpartition(SENTINEL)
    return rest if sentinel and prompt.endswith(rest) else ""


def _find_continued_opening(chat: Chat, prompt: str, render: Callable[[Chat], str]) -> str:
    """Return the text that the template writes before a message that the model continues."""
    text, earlier = flatten_content(chat.messages[-1].content).strip(), chat.messages[:-1]
    before = ""
    if earlier:
        before = render(replace(chat, messages=earlier, continue_final_message=False))
    last_turn = prompt.removeprefix(before)
    return last_turn.rpartition(text)[0] if text else last_turn
