"""Logprobs that the server does not give by itself.

It reports, for each token it tells of, the probability under the plain model, before sampling or
grammars change anything. For a token that it kept silent about, the same number is read off from
one step at the same place: the step is forced to be some ordinary token, which is told of, with
the likeliest tokens beside it, as many as it takes to have the missing one among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dragoman.engines.llamacpp.client import EventStream
from dragoman.engines.llamacpp.params import (
    MIN_LOGPROB,
    NativeEvent,
    NativeRequest,
    build_forcing_grammar,
    convert_logprob,
    event_decoder,
)
from dragoman.types import Job, Logprob, Sampling

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

PART = 256  # prompt tokens that are gone through in one request
WIDER = (64, 2048)  # how many of the likeliest tokens to ask for, before all of them
SURELY = 1e6  # a bias that no other token can beat


class LogprobProber:
    """Finds logprobs by asking the server again."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine

    async def complete(
        self, job: Job, before: Sequence[int], ids: Sequence[int], known: Sequence[Logprob]
    ) -> list[Logprob]:
        """A logprob for each of the ids, of which only the last few are known."""
        if job.logprobs is None:
            return []
        missing = len(ids) - len(known)
        found = [
            await self.probe_token(job, [*before, *ids[:at]], ids[at], job.logprobs)
            for at in range(missing)
        ]
        return [*found, *known]

    async def probe_token(self, job: Job, before: list[int], token: int, top: int) -> Logprob:
        """How likely the token was after these."""
        probe = self._plain(job)
        vocabulary = self._engine.vocabulary
        body = self._engine.build_body(probe, NativeRequest(prompt=before, max_tokens=1, seed=0))
        body |= {"stream": False, "logit_bias": [[vocabulary.ordinary_id, SURELY]]}
        body["response_fields"] = ["completion_probabilities"]
        for wide in (*WIDER, vocabulary.size):
            answer = await self._engine.complete(body | {"n_probs": max(wide, top)})
            (prob,) = answer.completion_probabilities
            for other in prob.top_logprobs:
                if other.id == token:
                    prob.id, prob.logprob = token, other.logprob
                    return convert_logprob(prob, top)
        return Logprob(token, MIN_LOGPROB)

    async def probe_prompt(self, job: Job, ids: list[int]) -> list[Logprob]:
        """A logprob for each token of the prompt; the first has none."""
        top = job.prompt_logprobs or 0
        probe = self._plain(job)
        found: dict[int, Logprob] = {0: Logprob(ids[0], None)}
        at = 1
        while at < len(ids):
            part = self._part(ids, at)
            for event in await self._force(probe, ids[:at], part, max(1, top)):
                place = at + event.tokens_predicted - 1
                if event.completion_probabilities and event.tokens[-1] == ids[place]:
                    found[place] = convert_logprob(event.completion_probabilities[-1], top)
            at += len(part)
        for place in reversed(range(1, len(ids))):  # backwards: what is before is in memory
            if place not in found:
                found[place] = await self.probe_token(job, ids[:place], ids[place], top)
        return [found[place] for place in range(len(ids))]

    def _part(self, ids: list[int], at: int) -> list[int]:
        """What can be gone through at once: up to a token that ends an answer."""
        part = ids[at : at + PART]
        for count, token in enumerate(part, 1):
            if token in self._engine.vocabulary.eos_ids:
                return part[:count]
        return part

    async def _force(
        self, job: Job, before: list[int], ids: list[int], top: int
    ) -> list[NativeEvent]:
        """The events of generating just these ids."""
        body = self._engine.build_body(job, NativeRequest(prompt=before, max_tokens=len(ids), seed=0))
        body |= {"grammar": build_forcing_grammar(ids), "n_probs": top}
        found: list[NativeEvent] = []
        async with self._engine.client.stream("/completion", body) as stream:
            if not isinstance(stream, EventStream):
                raise self._engine.parse_error(stream)
            while events := await stream.read_events():
                for event in map(event_decoder.decode, events):
                    if event.error is not None:
                        raise self._engine.convert_error(event.error)
                    if event.tokens_predicted and not event.stop:
                        found.append(event)
        return found

    @staticmethod
    def _plain(job: Job) -> Job:
        """The same model and adapters, and nothing that bends the choice of tokens."""
        return msgspec.structs.replace(
            job, sampling=Sampling(temperature=0.0), logprobs=0, grammar=None, cache_prompt=True
        )
