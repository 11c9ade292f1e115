"""Decode requests to tokenize and detokenize."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.chat.decode import ChatMessage, ChatRequest, decode_chat
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.prompts import MAX_PROMPTS
from dragoman.protocols.shared.tool_choice import ChatTool
from dragoman.types import Chat, Json, Prompt

Content: TypeAlias = str | Annotated[list[str | openai.TokenId], Meta(max_length=400_000)]


class TokenizeRequest(Struct, kw_only=True):
    """A text, or a conversation to render first.

    The text is in `prompt` (vLLM's form) or in `content` (llama-server's, which adds no BOS token
    unless `add_special` is true, and also takes a list of texts and token ids).
    """

    model: openai.ModelName | None = None
    prompt: str | None = None
    content: Content | None = None
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
    model: openai.ModelName | None = None


def decode_tokenize_request(
    body: bytes, strict: bool = False
) -> tuple[TokenizeRequest, Chat | list[Prompt]]:
    """Decode a request; its text may have several parts, whose tokens are joined."""
    fields = decode_body(body, TokenizeRequest, strict)
    inputs = [
        value for value in (fields.prompt, fields.content, fields.messages) if value is not None
    ]
    if len(inputs) != 1:
        raise BadRequest("Send one of `prompt`, `content` and `messages`.", param="prompt")
    if fields.messages is None:
        return fields, _decode_texts(fields)
    conversation = ChatRequest(
        model=fields.model,
        messages=fields.messages or [],
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )
    return fields, decode_chat(conversation)


def _decode_texts(fields: TokenizeRequest) -> list[Prompt]:
    add_bos, other = fields.add_special_tokens, fields.add_special
    if add_bos is not None and other is not None and add_bos != other:
        raise BadRequest(
            "`add_special` and `add_special_tokens` mean the same: send one of them.",
            param="add_special",
        )
    add_bos = other if add_bos is None else add_bos
    add_bos = fields.content is None if add_bos is None else add_bos
    content = fields.prompt if fields.content is None else fields.content
    prompts: list[Prompt] = []
    for part in _join_token_ids(content or ""):
        starts_text = not prompts and isinstance(part, str)  # token ids have their BOS token
        prompts.append(
            Prompt(
                content=part,
                add_special_tokens=starts_text and add_bos,
                parse_special=fields.parse_special,
            )
        )
    return prompts


def _join_token_ids(content: str | list[str | int]) -> list[str | list[int]]:
    """Return the parts of a content, in which token ids that follow each other are one part."""
    if isinstance(content, str):
        return [content]
    parts: list[str | list[int]] = []
    for item in content:
        if isinstance(item, str):
            parts.append(item)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(item)
        else:
            parts.append([item])
    if len(parts) > MAX_PROMPTS:
        raise BadRequest(f"`content` must have at most {MAX_PROMPTS} texts.", param="content")
    return parts


def decode_detokenize_request(body: bytes, strict: bool = False) -> DetokenizeRequest:
    return decode_body(body, DetokenizeRequest, strict)
