"""The long-lived services that preparing a request needs."""

from __future__ import annotations

from msgspec import Struct, field

from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.keys import RateLimiter
from dragoman.media.service import MediaService
from dragoman.models.registry import ModelRegistry
from dragoman.pipeline.admission import Admission
from dragoman.replay import ReplayService


class Services(Struct, frozen=True, kw_only=True, eq=False):
    """What the pipeline uses; `dragoman.runtime` builds it."""

    models: ModelRegistry
    compiler: CompilerPool
    admission: Admission
    limiter: RateLimiter = field(default_factory=RateLimiter)  # of API keys
    media: MediaService = field(default_factory=MediaService)
    replay: ReplayService | None = None  # None: earlier turns are rendered as the client sent them

    async def aclose(self) -> None:
        """Close every service. Requests that still use one of them fail."""
        if self.replay is not None:
            await self.replay.aclose()
        await self.media.aclose()
        await self.compiler.aclose()
        await self.models.aclose()
