"""What a model or its engine cannot do is refused by name, before anything runs."""

from __future__ import annotations

from dragoman.errors import BadRequest, ContextOverflow, Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.unsupported import find_unsupported_media
from dragoman.types import Chat, Request, Sampling


def validate_request(request: Request, model: Model) -> None:
    """Refuse by name what this model's engine cannot do."""
    for prompt in request.prompts:
        if isinstance(prompt, Chat):
            validate_media(prompt, model)
    can = model.capabilities
    if request.logprobs is not None and request.logprobs > can.logprobs:
        raise Unsupported(
            "This model's engine cannot report logprobs."
            if can.logprobs < 0
            else f"This model's engine reports at most {can.logprobs} alternatives a token.",
            param="logprobs" if can.logprobs < 0 else "top_logprobs",
        )
    if request.echo and request.logprobs is not None and not can.prompt_logprobs:
        raise Unsupported("This model's engine cannot report logprobs of a prompt.", param="echo")
    for adapter in request.lora or ():
        if adapter.name not in can.lora:
            known = ", ".join(can.lora) or "none"
            raise BadRequest(
                f"There is no adapter `{adapter.name}` for this model. It has: {known}.",
                param="lora",
                code="adapter_not_found",
            )
    if can.sampling is not None:
        for name in Sampling.__struct_fields__:
            said = getattr(request.sampling, name) is not None
            if said and name not in can.sampling:
                raise Unsupported(f"This model's engine cannot honour `{name}`.", param=name)


def validate_media(chat: Chat, model: Model) -> None:
    """Reject media that this model's engine cannot read.

    Media in tool results passes with a warning: an agent sends its whole history every time and
    could never continue. `flatten_content` writes a sentence in its place.
    """
    for message, part in find_unsupported_media(chat, model):
        if message.role != "tool":
            raise Unsupported(
                f"This model does not support `{part.wire_type}` input.", param=part.param
            )


def check_context_length(content: list[int] | str, model: Model, param: str) -> int | None:
    """How many tokens are left for the answer, if that is known; none is an error."""
    context = model.capabilities.context
    if context is None or isinstance(content, str):
        return None
    room = context - len(content)
    if room <= 0:
        raise ContextOverflow(
            f"This model's maximum context length is {context} tokens. However, your {param} "
            f"resulted in {len(content)} tokens. Please shorten it.",
            param=param,
        )
    return room


def get_reasoning_budget(chat: Chat, model: Model, request: Request) -> int | None:
    """Most tokens of thoughts, where the template does not see to it itself."""
    if chat.thinking_budget is None or model.renderer.template_enforces_budget:
        return None
    name = chat.get_client_field_name("thinking_budget")
    if model.output_format.reasoning_close is None:
        raise Unsupported("This model's thinking cannot be limited.", param=name)
    if request.n > 1:
        raise Unsupported(f"`{name}` and `n` cannot be had together here.", param=name)
    return chat.thinking_budget
