"""What a job may reuse of the prompts that an engine has cached.

Cached prompts are reused within one owner only: jobs carry the cache scope of their owner, and an
engine that lists `cache_scopes` keeps scopes apart. Any other engine that caches prompts would tell
one owner about another, so jobs with a scope tell it not to reuse any (`cache_prompt` false);
`testing.check_engine` checks that it obeys.

The operator can make system prompts public (`public_prompt`). The part of a rendered prompt that a
public system prompt decides is the common beginning of two conversations with it that differ in
their first question. A job whose prompt begins like that may reuse exactly this part, whoever
computed it. An operator's own `system` prompt is not public by itself: who guesses it would learn
from the cached tokens that the guess is right.
"""

from __future__ import annotations

import logging
import time

from dragoman.models.model import Model
from dragoman.pipeline.render import adapt_chat
from dragoman.types import Chat, Job, Message, Request, text_content
from dragoman.types.cache_scope import make_cache_scope
from dragoman.types.common_prefix import count_common

log = logging.getLogger("dragoman.pipeline")

QUESTIONS = ("a", "2")  # two questions with different first tokens
MAX_AGE = 60.0  # seconds; chat templates may write the date


def get_job_scope(request: Request, model: Model) -> str:
    """Return the cache scope of the jobs of a request."""
    return "" if model.shares_cache else make_cache_scope(request.owner)


def may_reuse(scope: str, model: Model) -> bool:
    """Whether a job with this scope may reuse what the engine has cached."""
    if not scope or model.capabilities.cache_scopes:
        return True
    if not model.warned_about_scopes:
        model.warned_about_scopes = True
        log.warning(
            "%s: its engine does not keep the cached prompts of API keys apart, so requests with a "
            "key reuse none; --shared-cache lets all keys reuse them",
            model.id,
        )
    return False


def warn_about_cache(request: Request, job: Job) -> tuple[str, ...]:
    if not request.cache_prompt or job.cache_prompt:
        return ()
    return ("`cache_prompt` has no effect: this engine does not keep API keys apart.",)


async def count_public_tokens(content: list[int] | str, model: Model) -> int:
    """Return how many tokens at the beginning of a prompt are public."""
    if not model.public_prompts or isinstance(content, str):
        return 0
    now = time.monotonic()
    if model.public_prefixes is None or now - model.public_prefixes[0] > MAX_AGE:
        prefixes = [await _render_prefix(text, model) for text in model.public_prompts]
        model.public_prefixes = now, prefixes
    matching = (
        len(prefix) for prefix in model.public_prefixes[1] if content[: len(prefix)] == prefix
    )
    return max(matching, default=0)


async def _render_prefix(text: str, model: Model) -> list[int]:
    """Return the tokens with which every conversation with this system prompt begins."""
    prompts = []
    system = Message(role="system", content=text_content(text))
    for question in QUESTIONS:
        user = Message(role="user", content=text_content(question))
        chat, _ = adapt_chat(Chat(messages=(system, user)), model)
        prompts.append((await model.renderer.render(chat)).ids or [])
    first, second = prompts
    return first[: count_common(first, second)]
