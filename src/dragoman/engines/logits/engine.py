"""The engine around a `LogitsModel`: checks jobs and runs their choices from start to end."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from dragoman.engines.limits import (
    check_grammar_sampling,
    check_logprobs,
    check_prompt_length,
    check_token_ids,
)
from dragoman.engines.logits.batches import BatchRunner, LogitsModel
from dragoman.engines.logits.choice import LogitsChoice, LogitsJob
from dragoman.engines.logits.sampling import SAMPLING_FIELDS, TokenSampler
from dragoman.engines.token_mask import GrammarState, TokenMasker
from dragoman.errors import BadRequest, Unsupported
from dragoman.types import Capabilities, Job, Step

MAX_LOGPROBS = 20


class LogitsTokenizer(Protocol):
    """The part of a tokenizer that the engine needs; `dragoman.tokenizers` implements it."""

    @property
    def pieces(self) -> Sequence[bytes]: ...  # the bytes of each token
    @property
    def specials(self) -> Mapping[str, int]: ...
    @property
    def control(self) -> Collection[int]: ...
    @property
    def eos_ids(self) -> Collection[int]: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...

    async def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        ...


class LogitsEngine:
    """An engine around a `LogitsModel`.

    `slots` is how many choices take part in a forward pass. Models with the same vocabulary can
    share a `masker`.
    """

    def __init__(
        self,
        model: LogitsModel,
        tokenizer: LogitsTokenizer,
        *,
        context: int | None = None,
        slots: int = 16,
        masker: TokenMasker | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._eos_ids = frozenset(tokenizer.eos_ids)
        self._runner = BatchRunner(model, slots)
        self._masker = masker or TokenMasker(tokenizer.pieces, self._eos_ids, tokenizer.control)
        specials = sorted(map(re.escape, tokenizer.specials), key=len, reverse=True)
        self._special_pattern = re.compile(f"({'|'.join(specials)})") if specials else None
        self.capabilities = Capabilities(
            context=context,
            slots=slots,
            token_prompts=True,
            sampling=SAMPLING_FIELDS,
            sampling_defaults=True,
            logprobs=MAX_LOGPROBS,
            prompt_logprobs=True,
            grammars=find_spec("llguidance") is not None,
            tokenize=True,
            cache_scopes=True,  # it caches no prompts
        )
        if self.capabilities.grammars:
            self._masker.prepare()

    async def admit(self, job: Job) -> None:
        ids = await self._encode_prompt(job)
        if not ids:
            raise BadRequest("The prompt is empty.", param="prompt")
        size = len(self.tokenizer.pieces)
        check_token_ids(ids, size, "prompt")
        check_token_ids(job.sampling.logit_bias or (), size, "logit_bias")
        check_token_ids(job.sampling.stop_token_ids or (), size, "stop_token_ids")
        self._count_free_tokens(ids)
        check_logprobs(job.logprobs, MAX_LOGPROBS)
        check_logprobs(job.prompt_logprobs, MAX_LOGPROBS)
        if job.lora:
            raise Unsupported("This model's engine has no adapters.", param="lora")
        if job.grammar is not None:
            if not self.capabilities.grammars:
                raise Unsupported("This model's engine cannot follow a grammar.", param="grammar")
            check_grammar_sampling(job.sampling)
            scope = job.cache_scope
            await asyncio.to_thread(self._masker.start_grammar, job.grammar, (), scope)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        ids = await self._encode_prompt(job)
        limits = [self._count_free_tokens(ids), job.sampling.max_tokens]
        max_tokens = min((limit for limit in limits if limit is not None), default=None)
        stop_ids = frozenset(job.sampling.stop_token_ids or ())
        seed = random.getrandbits(63) if job.sampling.seed is None else job.sampling.seed
        logits_job = LogitsJob(job, ids, len(self.tokenizer.pieces))
        choices = [
            LogitsChoice(
                logits_job,
                number,
                max_tokens,
                self._eos_ids | stop_ids,
                TokenSampler(job.sampling, seed + number, ids, self._eos_ids),
                await self._start_grammar(job, stop_ids),
            )
            for number in range(job.n)
        ]
        self._runner.add(choices)
        try:
            while steps := await logits_job.queue.take():
                for step in steps:
                    yield step
        finally:
            for choice in choices:
                choice.is_cancelled = True

    async def tokenize(self, text: str, special: bool) -> list[int]:
        if not special or self._special_pattern is None:
            return await self.tokenizer.encode(text)
        ids: list[int] = []
        for part in filter(None, self._special_pattern.split(text)):
            special_id = self.tokenizer.specials.get(part)
            ids += await self.tokenizer.encode(part) if special_id is None else [special_id]
        return ids

    async def aclose(self) -> None:
        await self._runner.aclose()

    async def _start_grammar(self, job: Job, stop_ids: frozenset[int]) -> GrammarState | None:
        if job.grammar is None:
            return None
        return await asyncio.to_thread(
            self._masker.start_grammar, job.grammar, stop_ids, job.cache_scope
        )

    async def _encode_prompt(self, job: Job) -> list[int]:
        if isinstance(job.prompt, list):
            return job.prompt
        ids = await self.tokenize(job.prompt, True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.add_bos and bos is not None else ids

    def _count_free_tokens(self, ids: list[int]) -> int | None:
        """Return how many tokens fit after the prompt; None without a limit. Raise if none fits."""
        context = self.capabilities.context
        if context is None:
            return None
        check_prompt_length(len(ids), self.capabilities)
        return context - len(ids)
