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
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, Encoder
from dragoman.replay import PromptReuse
from dragoman.types import Request

# takes frames; what it returns, if anything, is awaited before the next ones
Push: TypeAlias = Callable[[list[bytes]], Awaitable[None] | None]


class Sink(Struct, frozen=True):
    """Where an answer goes."""

    observe: Callable[[Delta], None]  # sees every delta first
    push: Push


class Run(Protocol):
    """An answer that is ready to run. Whoever holds it must close it."""

    wants_stream: bool  # the client wants to hear it grow

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

    async def stream(self, sink: Sink) -> None:
        """Generate the answer and push its frames. Cancelling this cancels the engine."""
        ...

    async def collect(self, note: Callable[[Delta], None]) -> bytes:
        """Generate the answer and return it as one body. `note` sees every delta."""
        ...

    async def fail(self, error: DragomanError) -> list[bytes]:
        """Frames that end an answer that broke."""
        ...

    def close(self) -> None: ...


class CompletionRun:
    """An answer that leaves nothing behind: one prompt, one run of the model."""

    def __init__(self, plan: pipeline.Plan, encoder: Encoder) -> None:
        self.wants_stream = plan.request.stream
        self._plan = plan
        self._encoder = encoder
        self.save: Callable[[bytes], Awaitable[None]] | None = None  # called with the whole answer
        self._completion = Completion()
        self._usage = Usage()

    @classmethod
    async def prepare(
        cls, dialect: Dialect[object], context: DialectContext, request: Request, services: Services
    ) -> CompletionRun:
        plan = await pipeline.prepare(request, services)
        answer = AnswerInfo(plan.model_name, plan.choice_count, plan.prompt_tokens)
        return cls(plan, dialect.encoder(request, answer, context))

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._plan.warnings

    @property
    def reuse(self) -> PromptReuse | None:
        return self._plan.reuse

    def start(self) -> list[bytes]:
        return self._encoder.start()

    async def stream(self, sink: Sink) -> None:
        note, push, encode = sink.observe, sink.push, self._encoder.encode_delta
        if self.save is not None:
            note = self._fold_after(note)

        def deliver(delta: Delta) -> Awaitable[None] | None:
            note(delta)
            if delta.usage is not None:
                self._usage += delta.usage
            return push(encode(delta))

        await pipeline.generate(self._plan, deliver)
        await self._store_answer()
        await pipeline.await_delivery(push(self._encoder.end(self._usage)))

    async def collect(self, note: Callable[[Delta], None]) -> bytes:
        await pipeline.generate(self._plan, self._fold_after(note))
        await self._store_answer()
        return self._encode_whole()

    async def _store_answer(self) -> None:
        if self.save is not None:
            await self.save(self._encode_whole())

    def _fold_after(self, note: Callable[[Delta], None]) -> Callable[[Delta], None]:
        def deliver(delta: Delta) -> None:
            note(delta)
            self._completion.add(delta)

        return deliver

    def _encode_whole(self) -> bytes:
        return self._encoder.encode_whole(self._completion)

    async def fail(self, error: DragomanError) -> list[bytes]:
        return self._encoder.fail(error)

    def close(self) -> None:
        self._plan.close()
