"""What can be wrong with a job, found before anything is generated."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.engines.limits import check_adapters, check_logprobs, check_prompt_length
from dragoman.engines.llamacpp.choice import GgufVocabulary
from dragoman.engines.llamacpp.params import NativeRequest
from dragoman.errors import BadRequest, Unsupported
from dragoman.types import Job, Sampling

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

MAX_CHOICES = 128
REMEMBERED = 1024  # grammars that were found to be sound
SURELY = 1e6


def check_job(job: Job, ids: Sequence[int], engine: LlamaCppEngine) -> None:
    """Refuse a job that cannot be done here, by name."""
    if not ids:
        raise BadRequest("The prompt is empty.", param="prompt")
    check_tokens(ids, engine.vocabulary, "prompt")
    check_prompt_length(len(ids), engine.context)
    if not 1 <= job.n <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    check_logprobs(job.logprobs, engine.capabilities.logprobs)
    check_logprobs(job.prompt_logprobs, engine.capabilities.logprobs)
    check_adapters(job.lora, engine.adapters)
    _check_sampling(job, engine.vocabulary)


def check_tokens(ids: Sequence[int], vocabulary: GgufVocabulary, param: str) -> None:
    for token in ids:
        if not 0 <= token < vocabulary.size:
            raise BadRequest(
                f"{token} is not a token of this model: it has {vocabulary.size}.", param=param
            )


def _check_sampling(job: Job, vocabulary: GgufVocabulary) -> None:
    sampling = job.sampling
    check_tokens(tuple(sampling.logit_bias or ()), vocabulary, "logit_bias")
    check_tokens(sampling.stop_token_ids or (), vocabulary, "stop_token_ids")
    if job.grammar is None:
        return
    # the server forgets where it was in a grammar, and ends the process when nothing is allowed
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            raise Unsupported(f"`{name}` cannot be combined with a grammar.", param=name)


class GrammarVerifier:
    """Proves that the server will keep to a grammar.

    One that it cannot read it silently forgets. So it is asked for a control token, which a grammar
    never allows unless it names it: if the token comes, the grammar is not in force. A grammar is
    proved once.
    """

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine
        self._sound: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, grammar: str) -> None:
        name = hashlib.sha256(grammar.encode()).digest()
        if name not in self._sound:
            await self._prove(grammar)
        self._sound[name] = None
        self._sound.move_to_end(name)
        if len(self._sound) > REMEMBERED:
            self._sound.popitem(last=False)

    async def _prove(self, grammar: str) -> None:
        """Ask for each of a few control tokens; a grammar may name one of them, hardly all."""
        vocabulary = self._engine.vocabulary
        never = [token for token in vocabulary.control_ids if token not in vocabulary.eos_ids][:2]
        for token in never or [vocabulary.ordinary_id]:
            if await self._first(grammar, token) != token:
                return
        if never:
            raise BadRequest("The grammar cannot be read.", param="grammar", code="invalid_grammar")

    async def _first(self, grammar: str, token: int) -> int | None:
        """What comes first under the grammar when this token is asked for."""
        job = Job(id="grammar", prompt=[], sampling=Sampling(temperature=0.0), grammar=grammar)
        body = self._engine.build_body(
            job, NativeRequest(prompt=[self._engine.vocabulary.ordinary_id], max_tokens=1, seed=0)
        )
        asked = body | {"stream": False, "logit_bias": [[token, SURELY]]}
        tokens = (await self._engine.complete(asked)).tokens
        return tokens[0] if tokens else None
