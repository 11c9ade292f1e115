"""Checks a request against what its model and engine can do, before anything runs.

A field that would change the answer and cannot be honoured is rejected by name. Fields that are
optional for the client are dropped with a warning instead (`render.adapt_chat`).
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.engines.limits import (
    check_adapters,
    check_generates,
    check_logprobs,
    check_prompt_length,
)
from dragoman.errors import BadRequest, TooLarge, Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.sampling import check_sampling
from dragoman.prompt.unanswered_calls import check_tool_results
from dragoman.types import (
    AudioPart,
    Chat,
    ImagePart,
    MediaPart,
    Message,
    Request,
)
from dragoman.types.limits import NO_LIMITS, KeyLimits

MAX_REQUEST_TOKENS = 400_000  # of all prompts or inputs
BUDGET_UNSUPPORTED = "This model's reasoning cannot be limited."


def validate_request(request: Request, model: Model, limits: KeyLimits = NO_LIMITS) -> None:
    """Reject what this model's engine cannot honour, and chats that are not valid."""
    check_generates(model.capabilities)
    for prompt in request.prompts:
        if isinstance(prompt, Chat):
            model.get_prompt_limit("messages").check_chat(prompt)
            validate_chat(prompt, model, limits)
    capabilities = model.capabilities
    if request.logprobs is not None:
        check_logprobs(request.logprobs, capabilities.logprobs)
    if request.echo and request.logprobs is not None and not capabilities.prompt_logprobs:
        raise Unsupported("This model's engine cannot report logprobs of a prompt.", param="echo")
    if request.returns_token_ids and not capabilities.token_prompts:
        raise Unsupported("This model's engine has no token ids.", param="return_token_ids")
    if request.lora:
        check_adapters(request.lora, capabilities.lora)
    check_sampling(request, model)


def validate_chat(chat: Chat, model: Model, limits: KeyLimits = NO_LIMITS) -> None:
    """Reject tool results without a call, and media that cannot be read or is too large."""
    if not model.preset.lenient_tools:
        check_tool_results(chat)
    if chat.requires_reasoning and not can_reason(model):
        param = chat.get_client_field_name("reasoning_effort")
        raise Unsupported(f'"{model.id}" does not support thinking.', param=param)
    validate_media(chat, model, limits)


def can_reason(model: Model) -> bool:
    return model.output_format.reasoning is not None or model.renderer.reasoning.switch is not None


def validate_media(chat: Chat, model: Model, limits: KeyLimits = NO_LIMITS) -> None:
    """Reject media that this model's engine cannot read, and more of it than the limit allows.

    Media in tool results passes with a warning: an agent sends its whole history every time and
    could never continue. `flatten_content` writes a sentence in its place.
    """
    if not chat.media:
        return
    if limits.media_bytes is not None:
        check_media_size(chat, limits.media_bytes)
    for message, part in find_unsupported_media(chat, model):
        if message.role != "tool":
            raise Unsupported(
                f"This model does not support `{part.wire_type}` input.", param=part.param
            )


def check_media_size(chat: Chat, limit: int) -> None:
    """Reject media whose content, as far as the request itself contains it, is too large."""
    total = 0
    for _, part in chat.media:
        total += measure_media(part)
        if total > limit:
            raise TooLarge(
                f"The media of this request is larger than the {limit:,} bytes that this API "
                "key may send.",
                param=part.param,
            )


def measure_media(part: MediaPart) -> int:
    """Return the size of a part's content in bytes; what a URL refers to is not counted."""
    content, is_base64 = part.data or "", True
    if part.url is not None and part.url[:5].lower() == "data:":
        head, _, rest = part.url.partition(",")
        content, is_base64 = content + rest, head.lower().endswith(";base64")
    return len(content) * 3 // 4 if is_base64 else len(content)


def validate_embedding(model: Model, dimensions: int | None) -> None:
    size = model.capabilities.embeddings
    if not size:
        raise Unsupported("This model's engine does not support embeddings.", param="model")
    if dimensions is not None and dimensions > size:
        raise BadRequest(f"`dimensions` must be at most {size} for this model.", param="dimensions")


def check_context_length(tokens: int | None, model: Model, param: str) -> int | None:
    """Return how many tokens are left for the answer, if known; none left is an error."""
    context = model.capabilities.context
    if context is None or tokens is None:
        return None
    check_prompt_length(tokens, model.capabilities, param)
    return None if model.capabilities.context_shift else context - tokens


def check_total_length(tokens: int, model: Model, param: str) -> None:
    """Reject a list of prompts that is too long; one prompt may always fill the context."""
    if tokens <= MAX_REQUEST_TOKENS:
        return
    limit = max(MAX_REQUEST_TOKENS, model.capabilities.context or 0)
    if tokens > limit:
        raise BadRequest(
            f"`{param}` has more than {limit} tokens in all. Send it in several requests.",
            param=param,
        )


def check_echo_length(tokens: int, model: Model, request: Request) -> None:
    """Reject an answer that would repeat its prompts too often."""
    if not request.echo:
        return
    limit = max(MAX_REQUEST_TOKENS, model.capabilities.context or 0)
    if tokens * request.n > limit:
        raise BadRequest(
            f"`echo` would repeat more than {limit} tokens of the prompt, which each of the "
            f"{request.n} choices begins with. Ask for fewer choices (`n`).",
            param="echo",
        )


def get_reasoning_budget(chat: Chat, model: Model, request: Request) -> int | None:
    """Return the maximum number of reasoning tokens; None if the template itself enforces it."""
    if chat.thinking_budget is None or model.renderer.template_enforces_budget:
        return None
    name = chat.get_client_field_name("thinking_budget")
    if model.output_format.reasoning_close is None:
        raise Unsupported(BUDGET_UNSUPPORTED, param=name)
    if request.n > 1:
        raise Unsupported(f"`{name}` cannot be combined with `n`.", param=name)
    return chat.thinking_budget


def find_unsupported_media(chat: Chat, model: Model) -> Iterator[tuple[Message, MediaPart]]:
    """Yield the media parts that the model's engine cannot read, with their messages.

    Files are read by the stage `media`, whatever the engine.
    """
    modalities = model.capabilities.modalities
    for message, part in chat.media:
        if isinstance(part, ImagePart | AudioPart) and part.modality not in modalities:
            yield message, part


def warn_about_tool_media(chat: Chat) -> list[str]:
    """Return a warning for each type of media that the stage `media` left out of tool results."""
    types = dict.fromkeys(part.wire_type for _, part in chat.media if part.item is None)
    return [f"`{name}` in tool results is not shown to the model." for name in types]
