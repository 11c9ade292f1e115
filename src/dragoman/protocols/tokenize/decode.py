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
    """A text, or a conversation to render first. Without a model, the default model is used.

    The text is in `prompt` (vLLM's form) or in `content` (llama-server's, which adds no BOS token
    unless `add_special` is true).
    """

    model: str = ""
    prompt: str | None = None
    content: str | None = None
    parse_special: bool = True
    add_special: bool | None = None
    with_pieces: bool = False
    messages: Annotated[list[ChatMessage], Meta(max_length=20_000)] | None = None
    tools: list[ChatTool] | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(Struct, kw_only=True):
    tokens: Annotated[list[openai.TokenId], Meta(max_length=400_000)]
    model: str = ""


def decode_tokenize_request(
    body: bytes, strict: bool = False
) -> tuple[TokenizeRequest, Chat | Prompt]:
    fields = decode_body(body, TokenizeRequest, strict)
    inputs = [
        value for value in (fields.prompt, fields.content, fields.messages) if value is not None
    ]
    if len(inputs) != 1:
        raise BadRequest("Send one of `prompt`, `content` and `messages`.", param="prompt")
    if fields.messages is None:
        return fields, _decode_text(fields)
    conversation = ChatRequest(
        model=fields.model,
        messages=fields.messages or [],
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )
    return fields, decode_chat(conversation)


def _decode_text(fields: TokenizeRequest) -> Prompt:
    add_bos, other = fields.add_special_tokens, fields.add_special
    if add_bos is not None and other is not None and add_bos != other:
        raise BadRequest(
            "`add_special` and `add_special_tokens` mean the same: send one of them.",
            param="add_special",
        )
    add_bos = other if add_bos is None else add_bos
    text = fields.prompt if fields.content is None else fields.content
    return Prompt(
        content=text or "",
        add_special_tokens=fields.content is None if add_bos is None else add_bos,
        parse_special=fields.parse_special,
    )


def decode_detokenize_request(body: bytes, strict: bool = False) -> DetokenizeRequest:
    return decode_body(body, DetokenizeRequest, strict)
