"""Checks that only this engine can make: against its vocabulary and its native server."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.engines.limits import (
    check_adapters,
    check_generates,
    check_grammar_sampling,
    check_logprobs,
    check_media,
    check_prompt_length,
    check_token_ids,
)
from dragoman.engines.llamacpp.media.media_prompts import INEXACT
from dragoman.engines.llamacpp.params import DOMINANT_BIAS, NativeRequest
from dragoman.engines.llamacpp.slots import SlotLease
from dragoman.errors import BadRequest, InvalidGrammar, Unsupported
from dragoman.types import Job, Sampling
from dragoman.types.bounded_cache import BoundedCache
from dragoman.types.media_ids import PromptCount

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

MAX_CHOICES = 128
MAX_INFILL_TOKENS = 256
VERIFIED_GRAMMARS = 1024  # how many verified grammars are remembered


def check_samplers(sampling: Sampling) -> None:
    """Reject an `infill` sampler over many tokens: it compares all pairs, which takes minutes."""
    names = sampling.samplers or ()
    if "infill" not in names:
        return
    is_narrow = "top_k" in names[: names.index("infill")]
    if not is_narrow or not 1 <= (sampling.top_k or 0) <= MAX_INFILL_TOKENS:
        raise BadRequest(
            f"In `samplers`, `infill` needs `top_k` before it, and `top_k` from 1 to "
            f"{MAX_INFILL_TOKENS}.",
            param="samplers",
        )


def check_job(job: Job, ids: Sequence[int], count: PromptCount, engine: LlamaCppEngine) -> None:
    """Reject a job that this engine cannot run."""
    size = engine.vocabulary.size
    check_generates(engine.capabilities)
    if not ids:
        raise BadRequest("The prompt is empty.", param="prompt")
    if job.media:
        check_media_prompt(job, ids, count)
    check_token_ids([token for token in ids if token >= 0] if job.media else ids, size, "prompt")
    check_prompt_length(count.tokens, engine.capabilities)
    if not 1 <= job.n <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    check_logprobs(job.logprobs, engine.capabilities.logprobs)
    check_logprobs(job.prompt_logprobs, engine.capabilities.logprobs)
    check_adapters(job.lora, engine.adapters)
    check_samplers(job.sampling)
    check_token_ids(job.sampling.logit_bias or (), size, "logit_bias")
    check_token_ids(job.sampling.stop_token_ids or (), size, "stop_token_ids")
    if job.grammar is not None:
        # between two requests the server loses its place in a grammar, and where a grammar allows
        # nothing it ends the process
        check_grammar_sampling(job.sampling)


def check_media_prompt(job: Job, ids: Sequence[int], count: PromptCount) -> None:
    """Reject a prompt that would crash the server, or that it would read differently."""
    check_media(job, ids)
    if not count.is_exact:
        raise BadRequest(INEXACT, param="messages")
    if job.sampling.min_tokens:  # it takes two requests, and the second one continues a text
        raise Unsupported(
            "`min_tokens` cannot be combined with pictures or sound.", param="min_tokens"
        )


class GrammarVerifier:
    """Verifies that the server enforces a grammar.

    It silently drops a grammar that it cannot parse. So it is asked for a control token, which a
    grammar never allows unless it names it: if the token comes, the grammar is not enforced. Each
    grammar is verified once in each cache scope.
    """

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine
        self._verified = BoundedCache[bytes, bool](max_entries=VERIFIED_GRAMMARS)

    def has_verified(self, job: Job) -> bool:
        """Whether the grammar of a job need not be verified again."""
        return bool(self._verified.get(_hash_grammar(job)))

    async def verify(self, job: Job, lease: SlotLease) -> None:
        """Verify the grammar of a job in its slot, unless that is done."""
        if job.grammar is None or self.has_verified(job):
            return
        await lease.vacate()
        await self._verify(job.grammar, lease)
        self._verified.put(_hash_grammar(job), True)

    async def _verify(self, grammar: str, lease: SlotLease) -> None:
        """Ask for two control tokens; a grammar may name one of them, but hardly both."""
        vocabulary = self._engine.vocabulary
        control_ids = [
            token for token in vocabulary.control_ids if token not in vocabulary.eos_ids
        ][:2]
        for token in control_ids or [vocabulary.ordinary_id]:
            if await self._generate_first(grammar, token, lease) != token:
                return
        if control_ids:
            raise InvalidGrammar("The grammar is invalid.", param="grammar")

    async def _generate_first(self, grammar: str, token: int, lease: SlotLease) -> int | None:
        """Return the first token under the grammar when this token is strongly preferred."""
        job = Job(id="grammar", prompt=[], sampling=Sampling(temperature=0.0), grammar=grammar)
        prompt = [self._engine.vocabulary.ordinary_id]
        request = NativeRequest(prompt=prompt, max_tokens=1, seed=0)
        body = self._engine.build_body(job, request, lease)
        body |= {"stream": False, "logit_bias": [[token, DOMINANT_BIAS]]}
        tokens = (await self._engine.complete(body, lease)).tokens
        return tokens[0] if tokens else None


def _hash_grammar(job: Job) -> bytes:
    return hashlib.sha256(f"{job.cache_scope}\n{job.grammar}".encode()).digest()
