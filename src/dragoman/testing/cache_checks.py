"""The check of what an engine reuses of earlier prompts."""

from __future__ import annotations

from dragoman.testing.subject import PROMPTS, EngineUnderTest
from dragoman.types import Json


async def keeps_cache_scopes_apart(subject: EngineUnderTest) -> None:
    """A job reuses no cached prompt of another `cache_scope`, and none without `cache_prompt`."""
    text = " ".join(PROMPTS)
    for scope in ("first", "first", ""):
        await _count_cached(subject, text, cache_scope=scope)
    cached = await _count_cached(subject, text, cache_scope="first", cache_prompt=False)
    assert not cached, f"{cached} cached tokens were reused though `cache_prompt` is false"
    if not subject.capabilities.cache_scopes:
        return  # the pipeline sets `cache_prompt` false in all jobs that have a scope
    cached = await _count_cached(subject, text, cache_scope="second")
    assert not cached, f"{cached} tokens of a prompt were reused in another `cache_scope`"
    if subject.capabilities.public_prefixes:
        for scope in ("third", "fourth"):
            cached = await _count_cached(subject, text, cache_scope=scope, public_prefix=4)
            assert cached <= 4, f"{cached} tokens were reused of a `public_prefix` of 4"


async def _count_cached(subject: EngineUnderTest, text: str, **fields: Json) -> int:
    steps = await subject.collect(await subject.make_job(text, max_tokens=1, **fields))
    return sum(step.cached_tokens or 0 for step in steps)
