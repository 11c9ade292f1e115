"""Generates the choices of a job, by one or several requests to the native server.

A job is one request for as many choices as there are slots, which share the processing of the
prompt. Some things take several requests, each of which continues where the one before it ended, on
a prompt that is still cached:

- `min_tokens`: a first request in which nothing may end the answer, then one without that rule.
- Tokens that were lost at the end of a request, inside a character: requested again.
- A logprob of a token that the server did not report: one step from the same position.
- Logprobs of the prompt: the prompt is generated again under a grammar that allows nothing else.

`logprobs` implements the last two.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dragoman.engines.grammar import check_tokens_allowed
from dragoman.engines.llamacpp.choice import ChoiceProgress
from dragoman.engines.llamacpp.params import (
    SEED_STRIDE,
    NativeEvent,
    NativeRequest,
    convert_logprob,
    event_decoder,
)
from dragoman.engines.llamacpp.slots import SlotLease
from dragoman.errors import ENGINE_ENDED_EARLY, EngineFailed
from dragoman.types import Job, Logprob, Step

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

log = logging.getLogger("dragoman.llamacpp")

SPARE_TOKENS = 3  # requested beyond the limit under a grammar, to complete a character


class GroupGenerator:
    """Generates the choices of a job that run at the same time."""

    def __init__(
        self,
        engine: LlamaCppEngine,
        job: Job,
        prompt: list[int],
        choices: list[ChoiceProgress],
        seed: int,
        lease: SlotLease,
    ) -> None:
        self._engine = engine
        self._job = job
        self._prompt = prompt
        self._choices = choices
        self._seed = seed
        self._lease = lease
        lease.watch_answer(prompt, choices[0].ids)

    async def run(self) -> AsyncGenerator[Step, None]:
        """Start all choices with one request; those that it does not finish continue alone."""
        choices = self._choices
        if choices[0].remaining <= 0:
            for choice in choices:
                yield choice.end_by_length()[0]
            return
        first = self._make_request(choices[0], self._seed)
        shared = msgspec.structs.replace(first, choices=len(choices))
        async with aclosing(self._run_request(shared, choices)) as steps:
            async for step in steps:
                yield step
        for choice in choices:
            seed = self._seed
            while choice.finish is None:
                seed += SEED_STRIDE
                request = self._make_request(choice, seed)
                async with aclosing(self._continue_choice(request, choice)) as steps:
                    async for step in steps:
                        yield step

    def _make_request(self, choice: ChoiceProgress, seed: int) -> NativeRequest:
        """Return the next request for a choice, from where it is now."""
        min_tokens = self._job.sampling.min_tokens or 0
        owed = min(min_tokens - len(choice.ids), choice.remaining)
        spare = 0 if self._job.grammar is None else SPARE_TOKENS
        prompt = self._prompt + choice.ids
        is_full = len(prompt) >= self._engine.context
        if is_full and not self._job.media:  # the context was shifted, as the server does it
            prompt = prompt[-(self._engine.context // 2) :]
        return NativeRequest(
            prompt=prompt,
            max_tokens=owed if owed > 0 else choice.remaining + spare,
            seed=seed + choice.choice,
            forbid_end=owed > 0,
        )

    async def _continue_choice(
        self, request: NativeRequest, choice: ChoiceProgress
    ) -> AsyncGenerator[Step, None]:
        """Continue after a request that ended before its choice did."""
        job, engine = self._job, self._engine
        if not await engine.can_continue(job, request.prompt):
            yield choice.end_by_length(min(choice.lost_tokens, choice.remaining))[0]
        elif choice.lost_tokens and job.grammar is None and engine.vocabulary.pieces is not None:
            ids = await self._repeat_tokens(request, min(choice.lost_tokens, choice.remaining))
            logprobs = await engine.logprobs.complete(job, request.prompt, ids, [], self._lease)
            choice.start_request(len(ids))
            for step in choice.add_tokens(ids, logprobs):
                yield step
        elif choice.lost_tokens or choice.has_ended_early:  # the context is full
            yield choice.end_by_length(min(choice.lost_tokens, choice.remaining))[0]
        else:
            async with aclosing(self._run_request(request, [choice])) as steps:
                async for step in steps:
                    yield step

    async def _repeat_tokens(self, request: NativeRequest, count: int) -> list[int]:
        """Generate tokens without streaming, which reports the ids of all of them."""
        job = msgspec.structs.replace(self._job, logprobs=None)
        request = msgspec.structs.replace(request, max_tokens=count)
        body = self._engine.build_body(job, request, self._lease) | {"stream": False}
        return (await self._engine.complete(body, self._lease)).tokens

    async def _run_request(
        self, request: NativeRequest, choices: Sequence[ChoiceProgress]
    ) -> AsyncGenerator[Step, None]:
        """Run one request until it has no more tokens for any choice."""
        for choice in choices:
            choice.start_request(request.max_tokens)
        body = self._engine.build_body(self._job, request, self._lease)
        async with self._engine.stream(body, self._lease) as response:
            while events := await response.read_events():
                for event in map(event_decoder.decode, events):
                    for step in await self._read_event(request, choices, event):
                        yield step
                if all(choice.has_request_ended for choice in choices):
                    _log_drafts(choices)
                    return
        raise EngineFailed(ENGINE_ENDED_EARLY)

    async def _read_event(
        self, request: NativeRequest, choices: Sequence[ChoiceProgress], event: NativeEvent
    ) -> list[Step]:
        """Return the steps of an event: new tokens, or none for progress and ends."""
        if event.error is not None:
            raise self._engine.convert_error(event.error)
        choice = choices[event.index]
        if event.timings is not None:
            choice.drafts = event.timings
        if event.prompt_progress is not None:
            self._engine.speed.add(event.prompt_progress)
            if choice.prompt_tokens is not None and choice.cached_tokens is None:
                cached = event.prompt_progress.cache - self._lease.computed_prefix
                choice.cached_tokens = max(0, cached)
            return []
        if event.stop or choice.has_request_ended:
            choice.end_request(event)
            return []
        count = choice.count_new_tokens(event)
        if count < 1:
            return []
        ids = self._engine.find_ids(event, count)
        if ids is None:
            return choice.add_text(event.content, count, event.tokens[-1])
        if choice.grammar is not None:
            check_tokens_allowed(choice.grammar, ids, choice.stop_ids)
        logprobs = await self._complete_logprobs(request.prompt + choice.ids, ids, event)
        return choice.add_tokens(ids, logprobs)

    async def _complete_logprobs(
        self, before: list[int], ids: list[int], event: NativeEvent
    ) -> list[Logprob]:
        top = self._job.logprobs
        if top is None:
            return []
        known = [convert_logprob(native, top) for native in event.completion_probabilities[-1:]]
        prober = self._engine.logprobs
        return await prober.complete(self._job, before, ids, known, self._lease)


def _log_drafts(choices: Sequence[ChoiceProgress]) -> None:
    for choice in choices:
        if choice.drafts is not None:
            drafts = choice.drafts
            log.debug("drafted %d tokens, %d accepted", drafts.draft_n, drafts.draft_n_accepted)
