"""Reads the steps of a request's jobs, and delivers what its answer gains, delta by delta.

Steps come in one of two ways. Most engines yield them, and `read` takes one after the other. An
engine that receives the steps of many jobs at once calls `consume` for each of them, so that no
task has to be woken for a token. Both run the same code, which only waits where a delivery must.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterator
from typing import Any, TypeAlias

from msgspec.structs import replace

from dragoman.errors import EngineFailed
from dragoman.events import Delta
from dragoman.pipeline.merge import (
    STEP_ERRORS,
    Feed,
    JobRunner,
    check_first_steps,
    explain_step_error,
    reject_missing_finish,
)
from dragoman.pipeline.plan import Plan
from dragoman.pipeline.reader import Reader
from dragoman.pipeline.render import make_replay_scope
from dragoman.replay import ReplayRecorder
from dragoman.telemetry.record import Generation, get_record
from dragoman.types import Step
from dragoman.types.worker_threads import run_in_worker

# Takes a delta; the awaitable it may return is awaited before the next delta.
Deliver: TypeAlias = Callable[[Delta], Awaitable[None] | None]


class AnswerReader:
    """Reads the steps of all jobs of a request until every choice has finished."""

    def __init__(
        self,
        plan: Plan,
        runner: JobRunner,
        readers: list[Reader],
        deliver: Deliver,
        generation: Generation,
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._readers = readers
        self._generation = generation
        self._recorder = make_recorder(plan)
        self._unfinished = len(readers)
        self.is_complete = not readers
        self._undelivered: list[Delta] = []
        self._arrivals = 0  # calls of `consume` so far
        self.is_waiting = False  # for a delivery
        self._deliver = deliver
        self._feeds: list[Feed] = [reader.feed for reader in readers]
        record = get_record()
        if record.options.trace is not None:
            self._feeds = [record.time_calls("parse", feed) for feed in self._feeds]
            self._deliver = record.time_calls("encode", deliver)
        check_first_steps(self._feeds, plan.model)

    async def read(self, steps: AsyncIterable[Step]) -> None:
        """Read the steps that an engine yields."""
        async for step in steps:
            pending = self._read_step(step)
            while pending is not None:
                await pending
                pending = self.deliver_rest()
            if self.is_complete:
                return

    def consume(self, steps: list[Step]) -> RestOfSteps | None:
        """Read steps; if a delivery must wait, return what is left to do."""
        self._arrivals += 1
        rest = iter(steps)
        pending = self.read_on(rest)
        return None if pending is None else RestOfSteps(self, pending, rest)

    def read_on(self, steps: Iterator[Step]) -> Awaitable[None] | None:
        """Read steps up to one that needs a delivery to be awaited, and return that."""
        for step in steps:
            pending = self._read_step(step)
            if pending is not None or self.is_complete:
                return pending
        return None

    def get_state(self) -> int:
        """Return a state, to find out later whether the engine has made progress."""
        return self._arrivals

    def has_changed(self, state: int) -> bool:
        """Whether steps have come since then; an engine does not hang if its client is slow."""
        return self.is_waiting or self._arrivals != state

    def check_complete(self) -> None:
        """Fail if the engine has ended before all choices were finished."""
        if self._unfinished:
            reject_missing_finish(self._plan.model)

    def _read_step(self, step: Step) -> Awaitable[None] | None:
        """Read a step; return what must be awaited before anything else is read."""
        feeds = self._feeds
        try:
            if not 0 <= step.choice < len(feeds):
                raise EngineFailed("The engine answered with a choice that was not requested.")
            if step.prompt_logprobs:
                return self._read_prompt_logprobs(step)
            if step.prompt_tokens is not None or step.cached_tokens:
                self._count_prompt(step)
            deltas = feeds[step.choice](step)
        except STEP_ERRORS as error:
            explain_step_error(error, self._plan.model, step, len(feeds))
            raise
        return self._deliver_deltas(deltas)

    def _deliver_deltas(self, deltas: list[Delta]) -> Awaitable[None] | None:
        """Deliver deltas up to one whose delivery must be awaited; keep those after it."""
        deliver, recorder = self._deliver, self._recorder
        for number, delta in enumerate(deltas, 1):
            is_last = delta.finish is not None  # of its choice
            if is_last and self._plan.request.returns_context:
                delta = add_context(delta, self._readers, self._plan)
            if recorder is not None:
                record_delta(recorder, delta, self._readers[delta.choice])
            pending = deliver(delta)
            if is_last:
                self._unfinished -= 1
                if not self._unfinished:
                    self.is_complete = True
                    return pending
            if pending is not None:
                self._undelivered = deltas[number:]
                return pending
        return None

    def deliver_rest(self) -> Awaitable[None] | None:
        """Deliver the deltas that were kept while a delivery was awaited."""
        deltas, self._undelivered = self._undelivered, []
        return self._deliver_deltas(deltas)

    async def _read_prompt_logprobs(self, step: Step) -> None:
        """Read a step that has the logprobs of the prompt."""
        await self._set_prompt_logprobs(step)
        pending = self._read_step(replace(step, prompt_logprobs=[]))
        while pending is not None:
            await pending
            pending = self.deliver_rest()

    def _count_prompt(self, step: Step) -> None:
        self._generation.mark_first_step()
        self._list_siblings(step)[0].count_prompt(step)
        self._runner.count_prompt(step)

    async def _set_prompt_logprobs(self, step: Step) -> None:
        """Set the logprobs that all choices of a prompt send with its echo.

        They are as many as the prompt has tokens, so a worker thread converts them, once.
        """
        self._generation.mark_first_step()
        siblings = self._list_siblings(step)
        if siblings[0].prompt_logprobs:  # the engine repeats them with each choice
            return
        try:
            tokens = await run_in_worker(siblings[0].make_tokens, step.prompt_logprobs)
        except STEP_ERRORS as error:
            explain_step_error(error, self._plan.model, step, len(self._readers))
            raise
        for reader in siblings:
            reader.prompt_logprobs = tokens

    def _list_siblings(self, step: Step) -> list[Reader]:
        """List the readers of all choices of the prompt that a step belongs to."""
        choices = self._plan.jobs[0].n
        first = step.choice - step.choice % choices
        return self._readers[first : first + choices]


class RestOfSteps:
    """Steps that are read once a delivery has been awaited."""

    __slots__ = ("_answer", "_pending", "_rest")

    def __init__(
        self, answer: AnswerReader, pending: Awaitable[None], rest: Iterator[Step]
    ) -> None:
        self._answer = answer
        self._pending = pending
        self._rest = rest

    def __await__(self) -> Generator[Any, None, None]:
        answer = self._answer
        answer.is_waiting = True
        pending: Awaitable[None] | None = self._pending
        while pending is not None:
            yield from pending.__await__()
            pending = answer.deliver_rest()
            if pending is None and not answer.is_complete:
                pending = answer.read_on(self._rest)
        answer.is_waiting = False

    def close(self) -> None:
        """Close the pending delivery, which nobody awaits any more."""
        close = getattr(self._pending, "close", None)
        if close is not None:  # a coroutine that is never awaited would cause a warning
            close()


def make_recorder(plan: Plan) -> ReplayRecorder | None:
    """Make the recorder that stores a chat's answer for replay; `best_of` is not stored."""
    replay, request = plan.replay, plan.request
    if replay is None or plan.reuse is None or (request.best_of or 0) > request.n:
        return None
    scope = make_replay_scope(plan.model, request)
    recorder = ReplayRecorder(replay, scope, request.store, request.response_id)
    first = 0
    for job, prepared in zip(plan.jobs, plan.prompts, strict=True):
        if prepared.reuse is not None:
            recorder.start(range(first, first + job.n), prepared.reuse, prepared.answer_start)
        first += job.n
    return None if request.prefill_only else recorder  # prefilling records the prompt only


def record_delta(recorder: ReplayRecorder, delta: Delta, reader: Reader) -> None:
    recorder.add(delta)
    if delta.finish is not None:
        recorder.finish(delta.choice, reader.exact_ids, reader.generated_call_ids)


def add_context(delta: Delta, readers: list[Reader], plan: Plan) -> Delta:
    """Add the tokens of prompt and answer to the last delta of a choice, if they are known."""
    prompt, answer = plan.jobs[0].prompt, readers[delta.choice].ids
    if isinstance(prompt, str) or (not answer and readers[delta.choice].completion_tokens):
        return delta
    end = [delta.stop] if isinstance(delta.stop, int) else []
    text = [token for token in prompt if token >= 0]  # media cannot be sent back as ids
    return replace(delta, context=[*text, *answer, *end])
