"""Runs: answers in progress.

A `Run` is ready to generate: everything that can be the client's fault was checked before it
existed. `stream` pushes the answer to a `Sink` as encoded frames while it grows; `collect` returns
it as one body when it is finished. Both process the same deltas; `http.respond` chooses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Usage
from dragoman.pipeline import pipeline
from dragoman.pipeline.plan import Plan
from dragoman.pipeline.services import Services
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, Encoder
from dragoman.replay import PromptReuse
from dragoman.responses.truncation import prepare_truncated
from dragoman.telemetry.record import get_record
from dragoman.telemetry.reports import report_current_request
from dragoman.types import Request
from dragoman.types.worker_threads import run_in_worker

SMALL_CHOICES, SMALL_TOKENS = 32, 4096  # of an answer that is encoded in a moment
Observe: TypeAlias = Callable[[Delta], None]
# takes encoded frames; an awaitable that it returns is awaited before the next call
Push: TypeAlias = Callable[[list[bytes]], Awaitable[None] | None]


class Sink(Struct, frozen=True):
    """Where an answer is streamed to."""

    observe: Observe  # is called with every delta before its frames are pushed
    push: Push
    push_end: Push | None = None  # takes the last frames, if they are sent in another way

    def end(self, frames: list[bytes]) -> Awaitable[None] | None:
        """Push the last frames; await what this returns."""
        return (self.push_end or self.push)(frames)


class Run(Protocol):
    """An answer that is ready to be generated. Its holder must close it."""

    wants_stream: bool  # the client asked for a stream

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each part of the request that is not honoured."""
        ...

    @property
    def reuse(self) -> PromptReuse | None:
        """How much of the prompt was known from earlier requests, if there is a prompt."""
        ...

    def start(self) -> list[bytes]:
        """Return frames that precede the first delta."""
        ...

    async def stream(self, sink: Sink) -> None:
        """Generate the answer and push its frames. Cancelling this cancels the engine."""
        ...

    async def collect(self, observe: Observe) -> bytes:
        """Generate the answer and return it as one body. `observe` gets every delta."""
        ...

    async def fail(self, error: DragomanError) -> list[bytes]:
        """Return frames that end a stream after an error; none if it got its last frames."""
        ...

    def close(self) -> None: ...


class CompletionRun:
    """A stateless answer: one prompt, one generation."""

    def __init__(self, plan: Plan, encoder: Encoder) -> None:
        self.wants_stream = plan.request.stream
        self._plan = plan
        self._encoder = encoder
        # stores the whole answer, before the end is sent
        self.save: Callable[[bytes], Awaitable[None]] | None = None
        self._completion = Completion()
        self._usage = Usage()
        self._has_ended = False  # the last frames of the stream were encoded

    @classmethod
    async def prepare(
        cls, dialect: Dialect[object], context: DialectContext, request: Request, services: Services
    ) -> CompletionRun:
        request = replace(request, response_id=dialect.make_response_id())
        prepare = prepare_truncated if request.truncates else pipeline.prepare
        plan = await prepare(request, services)
        record = get_record()
        answer = AnswerInfo(
            plan.model_name,
            plan.choice_count,
            plan.prompt_tokens,
            report_current_request if record.wants_report else None,
            plan.model.get_fingerprint(),
            record.measure_answer,
            plan.prompt_ids,
        )
        # The operator may have set another limit than the client's.
        limit = plan.request.sampling.max_tokens
        if limit != request.sampling.max_tokens:
            request = replace(request, sampling=replace(request.sampling, max_tokens=limit))
        return cls(plan, dialect.make_encoder(request, answer, context))

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._plan.warnings

    @property
    def reuse(self) -> PromptReuse | None:
        return self._plan.reuse

    def start(self) -> list[bytes]:
        return self._encoder.start()

    async def stream(self, sink: Sink) -> None:
        observe, push, encode = sink.observe, sink.push, self._encoder.encode_delta
        if self.save is not None:
            observe = self._observe_and_fold(observe)

        def deliver(delta: Delta) -> Awaitable[None] | None:
            observe(delta)
            if delta.usage is not None:
                self._usage += delta.usage
            return push(encode(delta))

        await pipeline.generate(self._plan, deliver)
        await self._save_whole()
        frames, self._has_ended = self._encoder.end(self._usage), True
        await pipeline.await_delivery(sink.end(frames))

    async def collect(self, observe: Observe) -> bytes:
        await pipeline.generate(self._plan, self._observe_and_fold(observe))
        await self._save_whole()
        return await self._encode_whole()

    async def _save_whole(self) -> None:
        if self.save is not None:
            await self.save(await self._encode_whole())

    def _observe_and_fold(self, observe: Observe) -> Observe:
        def deliver(delta: Delta) -> None:
            observe(delta)
            self._completion.add(delta)

        return deliver

    async def _encode_whole(self) -> bytes:
        """Encode the answer; a large one in a thread, so that the event loop does not wait."""
        encode, completion = self._encoder.encode_whole, self._completion
        usage = completion.usage
        tokens = usage.completion + usage.prompt  # the answer may contain logprobs of each
        if self._plan.choice_count <= SMALL_CHOICES and tokens <= SMALL_TOKENS:
            return encode(completion)
        return await run_in_worker(encode, completion)

    async def fail(self, error: DragomanError) -> list[bytes]:
        return [] if self._has_ended else self._encoder.fail(error)

    def close(self) -> None:
        self._plan.close()
