"""An answer as a piece of work: what is done for a request, whoever listens.

A `Work` is ready to run: all that can be the client's fault lies behind it. It runs into an
`Outlet`. If that takes frames, the answer is told as it grows; if not, it is asked for as a whole
when it is done. The same deltas are written down in both cases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Usage
from dragoman.pipeline import pipeline
from dragoman.pipeline.services import Services
from dragoman.protocols import Dialect, Encoder
from dragoman.replay import PromptReuse
from dragoman.types import Request

# takes frames; what it returns, if anything, is awaited before the next ones
Push: TypeAlias = Callable[[list[bytes]], Awaitable[None] | None]


class Sink(Struct, frozen=True):
    """Where an answer goes."""

    note: Callable[[Delta], None]  # is told of every delta first
    push: Push | None = None  # takes frames; without it the answer is wanted whole


class Run(Protocol):
    """An answer that is ready to run. Whoever holds it must close it."""

    streamed: bool  # the client wants to hear it grow

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was asked for and is not kept to, a sentence each."""
        ...

    @property
    def reuse(self) -> PromptReuse | None:
        """How much of its prompt was there before, where that is known."""
        ...

    def start(self) -> list[bytes]:
        """Frames before anything was generated."""
        ...

    async def run(self, outlet: Sink) -> None:
        """Generate it, and tell it with its last frames. Cancelling this cancels the engine."""
        ...

    def whole(self) -> bytes:
        """All of it, once it has run."""
        ...

    async def fail(self, error: DragomanError) -> list[bytes]:
        """Frames that end an answer that broke."""
        ...

    def close(self) -> None: ...


class CompletionRun:
    """An answer that leaves nothing behind: one prompt, one run of the model."""

    def __init__(self, plan: pipeline.Plan, writer: Encoder) -> None:
        self.streamed = plan.request.stream
        self._plan = plan
        self._writer = writer
        self.keep: Callable[[bytes], Awaitable[None]] | None = None  # before it is told whole
        self._completion = Completion()
        self._usage = Usage()

    @classmethod
    async def prepare(cls, dialect: Dialect, request: Request, services: Services) -> CompletionRun:
        plan = await pipeline.prepare(request, services)
        return cls(
            plan, dialect.encoder(request, plan.model_name, plan.choice_count, plan.prompt_tokens)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._plan.warnings

    @property
    def reuse(self) -> PromptReuse | None:
        return self._plan.reuse

    def start(self) -> list[bytes]:
        return self._writer.start()

    async def run(self, outlet: Sink) -> None:
        note, push, write = outlet.note, outlet.push, self._writer.encode_delta
        if push is None:
            await pipeline.generate(self._plan, self._adding(note))
            await self._kept()
            return
        if self.keep is not None:
            note = self._adding(note)

        def deliver(delta: Delta) -> Awaitable[None] | None:
            note(delta)
            if delta.usage is not None:
                self._usage += delta.usage
            return push(write(delta))

        await pipeline.generate(self._plan, deliver)
        await self._kept()
        await pipeline.await_delivery(push(self._writer.end(self._usage)))

    async def _kept(self) -> None:
        if self.keep is not None:
            await self.keep(self.whole())

    def _adding(self, note: Callable[[Delta], None]) -> Callable[[Delta], None]:
        def deliver(delta: Delta) -> None:
            note(delta)
            self._completion.add(delta)

        return deliver

    def whole(self) -> bytes:
        return self._writer.encode_whole(self._completion)

    async def fail(self, error: DragomanError) -> list[bytes]:
        return self._writer.fail(error)

    def close(self) -> None:
        self._plan.close()
