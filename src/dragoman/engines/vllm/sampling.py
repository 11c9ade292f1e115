"""A job as the arguments of vLLM's `SamplingParams`.

Everything here is plain data, so that it can be tested without vLLM. Where vLLM rejects or changes
a value that we accept, the value is expressed in another way, with the same effect:

- `n` greedy choices are one request whose steps are copied (`copies`).
- `max_tokens` 0 generates one token, which is dropped (`drops_token`).
- `top_p` 0 leaves the most likely token, as `top_k` 1 does.
- A temperature below 0.01 is set after vLLM has checked the arguments, or it would be 0.01.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from dragoman.types import DEFAULT_SAMPLING, Job, Json, Sampling
from dragoman.types.limits import PRIORITIES

MIN_TEMPERATURE = 0.01  # smaller ones are raised to it by vLLM
MAX_TEMPERATURE = 2.0
SEED_COUNT = 1 << 62  # vLLM takes 64 bits, and -1 is none
MAX_BIAS = 100.0


class VllmRequest(Struct, frozen=True, kw_only=True):
    """A request to vLLM."""

    params: dict[str, Json]  # arguments of `SamplingParams`
    temperature: float | None = None  # to be set after its checks
    copies: int = 1  # choices that have the same answer
    drops_token: bool = False
    priority: int = 0
    cache_salt: str | None = None


def build_request(job: Job, eos_ids: Collection[int]) -> VllmRequest:
    """Return the request of a job; `eos_ids` end an answer unless it ignores them."""
    sampling = job.sampling.with_defaults(DEFAULT_SAMPLING)
    is_greedy = sampling.is_greedy
    params = _build_limits(sampling, eos_ids) | _build_samplers(sampling, is_greedy)
    params |= {
        "n": 1 if is_greedy else job.n,
        "logprobs": job.logprobs,
        "prompt_logprobs": job.prompt_logprobs,
    }
    if not job.cache_prompt:
        params["skip_reading_prefix_cache"] = True
    temperature = params["temperature"]
    is_tiny = 0 < temperature < MIN_TEMPERATURE
    return VllmRequest(
        params=params | {"temperature": MIN_TEMPERATURE} if is_tiny else params,
        temperature=temperature if is_tiny else None,
        copies=job.n if is_greedy else 1,
        drops_token=sampling.max_tokens == 0,
        priority=PRIORITIES.index(job.priority),
        cache_salt=job.cache_scope or None,
    )


def _build_limits(sampling: Sampling, eos_ids: Collection[int]) -> dict[str, Json]:
    """Return what decides how long an answer is."""
    stop_ids = set(sampling.stop_token_ids or ())
    if not sampling.ignore_eos:
        stop_ids.update(eos_ids)  # vLLM knows one of them
    limit = sampling.max_tokens
    return {
        "max_tokens": 1 if limit == 0 else limit,
        "min_tokens": min(sampling.min_tokens or 0, limit if limit is not None else 1 << 30),
        "ignore_eos": bool(sampling.ignore_eos),
        "stop_token_ids": sorted(stop_ids),
    }


def _build_samplers(sampling: Sampling, is_greedy: bool) -> dict[str, Json]:
    top_p, top_k = sampling.top_p or 0.0, max(0, sampling.top_k or 0)
    samplers: dict[str, Json] = {
        "temperature": 0.0 if is_greedy else sampling.temperature,
        "top_p": top_p or 1.0,
        "top_k": top_k if top_p else 1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.seed is not None:
        samplers["seed"] = sampling.seed % SEED_COUNT
    if sampling.logit_bias:
        samplers["logit_bias"] = {
            token: min(max(bias, -MAX_BIAS), MAX_BIAS)
            for token, bias in sampling.logit_bias.items()
        }
    return samplers
