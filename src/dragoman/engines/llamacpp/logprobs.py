"""Finds logprobs that the server does not report by itself.

For each token that it reports, the server gives the probability under the plain model, before
sampling or grammars change anything. For a token that it does not report, the same number is read
from one step at the same position: the step is forced to be some ordinary token, which is reported
together with the most likely tokens, as many as it takes to include the missing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dragoman.engines.llamacpp.params import (
    DOMINANT_BIAS,
    NativeEvent,
    NativeRequest,
    build_forcing_grammar,
    convert_logprob,
    event_decoder,
)
from dragoman.engines.llamacpp.slots import SlotLease
from dragoman.types import Job, Logprob, Sampling
from dragoman.types.sampling import MIN_LOGPROB

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

SECTION = 256  # prompt tokens to probe in one request
PROBE_WIDTHS = (64, 2048)  # how many of the most likely tokens to request, before all of them


class LogprobProber:
    """Finds logprobs by further requests to the server."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine

    async def complete(
        self,
        job: Job,
        before: Sequence[int],
        ids: Sequence[int],
        known: Sequence[Logprob],
        lease: SlotLease,
    ) -> list[Logprob]:
        """Return a logprob for each of the ids, of which only the last few are known.

        The answer may still be running in the slot of the job, so another one is used if possible.
        """
        missing = len(ids) - len(known)
        if job.logprobs is None or not missing:
            return [*known]
        probed = []
        async with self._engine.slots.borrow(lease, [*before]) as free:
            if free is not lease:
                await self._engine.prepare_slot(job, [*before], free)
            for index in range(missing):
                position = [*before, *ids[:index]]
                probed.append(await self.probe_token(job, position, ids[index], free))
        return [*probed, *known]

    async def probe_token(
        self, job: Job, before: list[int], token: int, lease: SlotLease
    ) -> Logprob:
        """Return how likely the token was after the tokens before it."""
        probe, top = self._make_probe(job), job.logprobs or 0
        vocabulary = self._engine.vocabulary
        if not await self._engine.can_continue(job, before):  # inside a character, beside media
            return Logprob(token, MIN_LOGPROB)
        request = NativeRequest(prompt=before, max_tokens=1, seed=0)
        for width in (*PROBE_WIDTHS, vocabulary.size):
            body = self._engine.build_body(probe, request, lease)
            body |= {"stream": False, "logit_bias": [[vocabulary.ordinary_id, DOMINANT_BIAS]]}
            body["response_fields"] = ["completion_probabilities"]
            body["n_probs"] = max(width, top)
            event = await self._engine.complete(body, lease)
            (forced,) = event.completion_probabilities
            for other in forced.top_logprobs:
                if other.id == token:
                    forced.id, forced.logprob = token, other.logprob
                    return convert_logprob(forced, top)
        return Logprob(token, MIN_LOGPROB)

    async def probe_prompt(self, job: Job, ids: list[int], lease: SlotLease) -> list[Logprob]:
        """Return a logprob for each token of the prompt; the first has none."""
        top = job.prompt_logprobs or 0
        job = msgspec.structs.replace(job, logprobs=top)
        probe = self._make_probe(job)
        logprobs: dict[int, Logprob] = {0: Logprob(ids[0], None)}
        start = 1
        while start < len(ids):
            section = self._cut_section(ids, start)
            for event in await self._force(probe, ids[:start], section, max(1, top), lease):
                position = start + event.tokens_predicted - 1
                if event.completion_probabilities and event.tokens[-1] == ids[position]:
                    logprobs[position] = convert_logprob(event.completion_probabilities[-1], top)
            start += len(section)
        for position in reversed(range(1, len(ids))):  # backwards: the shorter prompt is cached
            if position not in logprobs:
                before, token = ids[:position], ids[position]
                logprobs[position] = await self.probe_token(job, before, token, lease)
        return [logprobs[position] for position in range(len(ids))]

    def _cut_section(self, ids: list[int], start: int) -> list[int]:
        """Return the tokens that one request can generate: up to one that ends an answer."""
        section = ids[start : start + SECTION]
        for count, token in enumerate(section, 1):
            if token in self._engine.vocabulary.eos_ids:
                return section[:count]
        return section

    async def _force(
        self, job: Job, before: list[int], ids: list[int], top: int, lease: SlotLease
    ) -> list[NativeEvent]:
        """Return the events of generating exactly these ids."""
        request = NativeRequest(prompt=before, max_tokens=len(ids), seed=0)
        body = self._engine.build_body(job, request, lease)
        body |= {"grammar": build_forcing_grammar(ids), "n_probs": top}
        forced: list[NativeEvent] = []
        async with self._engine.stream(body, lease) as response:
            while events := await response.read_events():
                for event in map(event_decoder.decode, events):
                    if event.error is not None:
                        raise self._engine.convert_error(event.error)
                    if event.tokens_predicted and not event.stop:
                        forced.append(event)
        lease.watch_answer(before, ids)
        return forced

    @staticmethod
    def _make_probe(job: Job) -> Job:
        """Return a job with the same model and adapters and without any sampling."""
        return msgspec.structs.replace(
            job, sampling=Sampling(temperature=0.0), logprobs=0, grammar=None, cache_prompt=True
        )
