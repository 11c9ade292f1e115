"""The engine itself: what a job may ask for, and its choices from start to end."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from dragoman.engines.limits import check_logprobs, check_prompt_length
from dragoman.engines.logits.batches import BatchRunner, LogitsModel
from dragoman.engines.logits.choice import LogitsChoice, LogitsJob
from dragoman.engines.logits.sampling import SAMPLING_FIELDS, TokenSampler
from dragoman.engines.token_mask import GrammarState, TokenMasker
from dragoman.errors import BadRequest, Unsupported
from dragoman.types import Capabilities, Job, Step

MAX_LOGPROBS = 20


class LogitsTokenizer(Protocol):
    """What must be known of the tokens; a `dragoman.tokens` tokenizer has it all."""

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
        """Ids of plain text."""
        ...


class LogitsEngine:
    """An engine around a `LogitsModel`.

    `slots` is how many choices take part in a forward pass. Models that have one vocabulary can
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
        self._ends = frozenset(tokenizer.eos_ids)
        self._rounds = BatchRunner(model, slots)
        self._masker = masker or TokenMasker(tokenizer.pieces, self._ends, tokenizer.control)
        known = sorted(map(re.escape, tokenizer.specials), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(known)})") if known else None
        self.capabilities = Capabilities(
            context=context,
            slots=slots,
            token_prompts=True,
            sampling=SAMPLING_FIELDS,
            logprobs=MAX_LOGPROBS,
            prompt_logprobs=True,
            grammars=find_spec("llguidance") is not None,
            tokenize=True,
        )
        if self.capabilities.grammars:
            self._masker.prepare()

    async def admit(self, job: Job) -> None:
        ids = await self._ids(job)
        if not ids:
            raise BadRequest("The prompt is empty.", param="prompt")
        self._check_tokens(ids, "prompt")
        self._check_tokens(job.sampling.logit_bias or (), "logit_bias")
        self._check_tokens(job.sampling.stop_token_ids or (), "stop_token_ids")
        self._room(ids)
        check_logprobs(job.logprobs, MAX_LOGPROBS)
        check_logprobs(job.prompt_logprobs, MAX_LOGPROBS)
        if job.lora:
            raise Unsupported("This model's engine has no adapters.", param="lora")
        if job.grammar is not None:
            self._check_grammar(job)
            await asyncio.to_thread(self._masker.start_grammar, job.grammar)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        ids = await self._ids(job)
        budgets = [self._room(ids), job.sampling.max_tokens]
        budget = min((most for most in budgets if most is not None), default=None)
        stops = frozenset(job.sampling.stop_token_ids or ())
        seed = random.getrandbits(63) if job.sampling.seed is None else job.sampling.seed
        answer = LogitsJob(job, ids, len(self.tokenizer.pieces))
        choices = [
            LogitsChoice(
                answer,
                number,
                budget,
                self._ends | stops,
                TokenSampler(job.sampling, seed + number, ids, self._ends),
                await self._following(job, stops),
            )
            for number in range(job.n)
        ]
        self._rounds.add(choices)
        try:
            while steps := await answer.mailbox.take():
                for step in steps:
                    yield step
        finally:
            for choice in choices:
                choice.dropped = True

    async def tokenize(self, text: str, special: bool) -> list[int]:
        if not special or self._specials is None:
            return await self.tokenizer.encode(text)
        ids: list[int] = []
        for part in filter(None, self._specials.split(text)):
            known = self.tokenizer.specials.get(part)
            ids += await self.tokenizer.encode(part) if known is None else [known]
        return ids

    async def aclose(self) -> None:
        await self._rounds.aclose()

    async def _following(self, job: Job, stops: frozenset[int]) -> GrammarState | None:
        if job.grammar is None:
            return None
        return await asyncio.to_thread(self._masker.start_grammar, job.grammar, stops)

    async def _ids(self, job: Job) -> list[int]:
        if isinstance(job.prompt, list):
            return job.prompt
        ids = await self.tokenize(job.prompt, True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.add_bos and bos is not None else ids

    def _room(self, ids: list[int]) -> int | None:
        """How many tokens the answer may have, as far as that is known; none is an error."""
        context = self.capabilities.context
        if context is None:
            return None
        check_prompt_length(len(ids), context)
        return context - len(ids)

    def _check_tokens(self, ids: Collection[int], param: str) -> None:
        size = len(self.tokenizer.pieces)
        for token in ids:
            if not 0 <= token < size:
                raise BadRequest(
                    f"{token} is not a token of this model: it has {size}.", param=param
                )

    def _check_grammar(self, job: Job) -> None:
        if not self.capabilities.grammars:
            raise Unsupported("This model's engine cannot follow a grammar.", param="grammar")
        for name in ("min_tokens", "ignore_eos"):  # a grammar ends where it ends
            if getattr(job.sampling, name):
                raise Unsupported(f"`{name}` cannot be combined with a grammar.", param=name)
