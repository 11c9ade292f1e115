"""Decode requests to tokenize and detokenize."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.chat.decode import ChatMessage, ChatRequest, decode_chat
from dragoman.protocols.chat.tools import ChatTool
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body
from dragoman.types import Chat, Json, Prompt


class TokenizeRequest(Struct, kw_only=True):
    """A text, or a conversation to render first. Without a model, the default model is used."""

    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=100_000)] | None = None
    tools: list[ChatTool] | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(Struct, kw_only=True):
    tokens: Annotated[list[openai.TokenId], Meta(max_length=1_000_000)]
    model: str = ""


def decode_tokenize_request(
    body: bytes, strict: bool = False
) -> tuple[TokenizeRequest, Chat | Prompt]:
    fields = decode_body(body, TokenizeRequest, strict)
    if (fields.prompt is None) == (fields.messages is None):
        raise BadRequest("Send either `prompt` or `messages`.", param="prompt")
    if fields.prompt is not None:
        return fields, Prompt(content=fields.prompt, add_special_tokens=fields.add_special_tokens)
    conversation = ChatRequest(
        model=fields.model,
        messages=fields.messages or [],
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )
    return fields, decode_chat(conversation)


def decode_detokenize_request(body: bytes, strict: bool = False) -> DetokenizeRequest:
    return decode_body(body, DetokenizeRequest, strict)
