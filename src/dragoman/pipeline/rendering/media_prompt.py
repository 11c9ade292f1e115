"""Asks an engine how it reads a prompt with pictures or sound.

Only the engine knows how many tokens an item takes. One that reads such prompts as text also says
whether it reads them as the ids that were rendered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from dragoman.models.model import Model
from dragoman.prompt.renderer import RenderedPrompt
from dragoman.replay import PromptReuse
from dragoman.types import MediaItem
from dragoman.types.media_ids import PromptCount

CountPrompt: TypeAlias = Callable[[list[int], Sequence[MediaItem]], Awaitable[PromptCount]]
ALTERED = (
    "Text that spells special tokens was sent with zero-width spaces inside, because this engine "
    "reads prompts with pictures or sound as text."
)


async def count_prompt(
    prompt: list[int] | str, media: Sequence[MediaItem], model: Model
) -> PromptCount | None:
    """Return how many tokens a prompt has, those of media included; None of a text."""
    if isinstance(prompt, str):
        return None
    method: CountPrompt | None = getattr(model.engine, "count_prompt", None)
    if not media or method is None:
        return PromptCount(len(prompt))
    return await method(prompt, media)


def count_reused_tokens(
    reuse: PromptReuse, prompt: list[int], count: PromptCount | None
) -> PromptReuse:
    """Count the tokens of media in what was reused, instead of the ids that stand for them."""
    if count is None or not count.items:
        return reuse
    reused = count.count_prefix(prompt, reuse.reused_tokens)
    return replace(reuse, prompt_tokens=count.tokens, reused_tokens=reused)


def warn_about_text(rendered: RenderedPrompt) -> tuple[str, ...]:
    return (ALTERED,) if rendered.is_altered else ()
