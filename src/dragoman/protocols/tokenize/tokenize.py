"""The small services around a tokenizer: text to ids and back."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.errors import BadRequest
from dragoman.protocols.chat import decode as chat
from dragoman.protocols.chat import tools as chat_tools
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body
from dragoman.types import Chat, Prompt


class TokenizeRequest(Struct, kw_only=True):
    """A text, or a conversation to be rendered first. Without a model, the served one."""

    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[chat.ChatMessage], Meta(max_length=100_000)] | None = None
    tools: list[chat_tools.ChatTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False


class TokenizeResponse(Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(Struct, kw_only=True):
    tokens: Annotated[list[openai.TokenId], Meta(max_length=1_000_000)]
    model: str = ""


class DetokenizeResponse(Struct):
    prompt: str


class TokenizerInfo(Struct):
    """What a client needs to know of a model's tokenizer."""

    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    add_bos_token: bool


def decode_tokenize_request(
    body: bytes, strict: bool = False
) -> tuple[TokenizeRequest, Chat | Prompt]:
    said = decode_body(body, TokenizeRequest, strict)
    if (said.prompt is None) == (said.messages is None):
        raise BadRequest("Give either `prompt` or `messages`.", param="prompt")
    if said.prompt is not None:
        return said, Prompt(content=said.prompt, add_special_tokens=said.add_special_tokens)
    conversation = chat.ChatRequest(
        model=said.model,
        messages=said.messages or [],
        tools=said.tools,
        chat_template_kwargs=said.chat_template_kwargs,
        add_generation_prompt=said.add_generation_prompt,
        continue_final_message=said.continue_final_message,
    )
    return said, chat.decode_chat(conversation)


def decode_detokenize_request(body: bytes, strict: bool = False) -> DetokenizeRequest:
    return decode_body(body, DetokenizeRequest, strict)
