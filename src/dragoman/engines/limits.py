"""Checks of a job against an engine's limits, with the same error for every engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.errors import AdapterNotFound, BadRequest, ContextOverflow, Unsupported
from dragoman.types import Adapter, Capabilities, Job, MediaItem, Sampling
from dragoman.types.media_ids import split_at_media

ENDS_IN_MEDIA = (
    "The prompt must not end with a picture or sound. Add text after it, or set "
    "`add_generation_prompt`."
)
UNREADABLE_MEDIA = (
    "The engine cannot read a picture or sound of this request. Send it in another size or shape."
)


def check_logprobs(requested: int | None, maximum: int) -> None:
    """Reject more alternatives per token than the engine reports (-1: it reports no logprobs)."""
    if requested is None or requested <= maximum:
        return
    if maximum < 0:
        raise Unsupported("This model's engine cannot report logprobs.", param="logprobs")
    raise Unsupported(
        f"This model's engine reports at most {maximum} alternatives for each token.",
        param="top_logprobs",
    )


def check_adapters(adapters: Sequence[Adapter], known: Collection[str]) -> None:
    """Reject an adapter that the engine has not loaded."""
    for adapter in adapters:
        if adapter.name not in known:
            names = ", ".join(known) or "none"
            raise AdapterNotFound(
                f"There is no adapter `{adapter.name}` for this model. Available: {names}.",
                param="lora",
            )


def check_generates(capabilities: Capabilities) -> None:
    """Reject a job for a model that only embeds or scores texts."""
    if not capabilities.generates:
        purpose = "scores texts for reranking" if capabilities.scores else "embeds texts"
        raise Unsupported(f"This model {purpose}; it does not generate.", param="model")


def check_prompt_length(tokens: int, capabilities: Capabilities, param: str = "messages") -> None:
    """Reject a prompt that leaves no room for an answer in the context."""
    context = capabilities.context
    if context is not None and tokens >= context:
        raise make_context_overflow(tokens, context, capabilities.trained_context, param)


def make_context_overflow(
    length: int | str, context: int, trained: int | None = None, param: str = "messages"
) -> ContextOverflow:
    """Make the error; if the model was trained for more than is served, it says how to get that.

    The length is that of the prompt, in tokens or in words ("at least 9000 tokens").
    """
    if isinstance(length, int):
        length = f"{length} tokens"
    more = ""
    if trained is not None and trained > context:
        more = f" (it was trained for {trained} tokens; the server's --context can raise it)"
    return ContextOverflow(
        f"This model's maximum context length is {context} tokens{more}. However, your {param} "
        f"resulted in {length}. Please shorten your {param}.",
        param=param,
    )


def check_media(job: Job, ids: Sequence[int]) -> None:
    """Reject a prompt that ends with media, and logprobs of a prompt with media."""
    if ids[-1] < 0:
        raise BadRequest(ENDS_IN_MEDIA, param="messages")
    if job.prompt_logprobs is not None:
        raise Unsupported(
            "Logprobs of a prompt cannot be combined with pictures or sound.", param="echo"
        )


def split_media_prompt(
    prompt: Sequence[int], media: Sequence[MediaItem]
) -> tuple[list[list[int]], list[MediaItem]]:
    """Return the texts around all items, one more than there are items, and the items."""
    try:
        parts = list(split_at_media(prompt, media))
    except ValueError:
        raise BadRequest("The prompt refers to media that it does not have.") from None
    texts = [part for part in parts if not isinstance(part, MediaItem)]
    return texts, [part for part in parts if isinstance(part, MediaItem)]


def check_token_ids(ids: Collection[int], vocabulary_size: int, param: str) -> None:
    """Reject ids that the model's vocabulary does not have."""
    for token in ids:
        if not 0 <= token < vocabulary_size:
            raise BadRequest(
                f"{token} is not a token id of this model, which has {vocabulary_size} tokens.",
                param=param,
            )


def check_grammar_sampling(sampling: Sampling) -> None:
    """Reject sampling fields that make an answer continue after the grammar has ended."""
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            raise Unsupported(f"`{name}` cannot be combined with a grammar.", param=name)
