"""A job as the native server's JSON, and the server's events as Structs.

The server has defaults of its own for everything, which are not ours. So every field that affects
the answer is sent with every request, from the job's resolved sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from dragoman.engines.limits import make_context_overflow
from dragoman.errors import ENGINE_FAILURE, DragomanError, EngineFailed, InvalidGrammar
from dragoman.types import DEFAULT_SAMPLING, Job, Json, Logprob, Sampling

FORBIDDING_BIAS = -100.0  # a bias of this or less forbids the token
SEED_COUNT = 0xFFFFFF00  # the server's seeds have 32 bits; the very last one means "at random"
SEED_STRIDE = 0x9E3779B1  # between the seeds of an answer's successive requests
MIN_LOGPROB = -9999.0
DOMINANT_BIAS = 1e6  # no other token can beat it

# the order in which the server narrows down the candidates
SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")
FINAL_FIELDS = ("index", "tokens", "stop", "stop_type", "tokens_predicted")
FIXED_FIELDS: dict[str, Json] = {
    "stream": True,
    "return_tokens": True,
    "return_progress": True,  # a write after every batch: a closed connection is noticed in prefill
    "sse_ping_interval": -1,
    "samplers": SAMPLERS,
    "stop": [],
    "response_fields": FINAL_FIELDS,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "top_n_sigma": -1.0,
    "min_keep": 0,
    "n_keep": 0,
    "n_discard": 0,
    "n_cache_reuse": 0,
    "n_indent": 0,
    "t_max_predict_ms": -1,
    "timings_per_token": False,
    "post_sampling_probs": False,
    "backend_sampling": False,
}


class NativeRequest(Struct, frozen=True, kw_only=True):
    """One request to the server; a job may take several."""

    prompt: list[int]
    max_tokens: int
    seed: int
    choices: int = 1
    forbid_end: bool = False  # no token that ends an answer is allowed


class NativeLogprob(Struct, gc=False):
    id: int
    logprob: float | None
    top_logprobs: list[NativeLogprob] = []


class PromptProgress(Struct, gc=False):
    cache: int = 0


class NativeError(Struct):
    code: int = 500
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0


class NativeEvent(Struct):
    """New tokens of a choice, the progress of its prompt, or its end."""

    index: int = 0
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = 0
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[NativeLogprob] = []
    error: NativeError | None = None


event_decoder: msgspec.json.Decoder[NativeEvent] = msgspec.json.Decoder(NativeEvent)


def build_payload(
    job: Job, request: NativeRequest, context: int, adapters: Mapping[str, int]
) -> dict[str, Json]:
    """Return the body of a request, with every field that affects the answer."""
    sampling = job.sampling.with_defaults(DEFAULT_SAMPLING)
    body = FIXED_FIELDS | {
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "n_cmpl": request.choices,
        "seed": request.seed % SEED_COUNT,
        "cache_prompt": job.cache_prompt,
        "n_probs": 0 if job.logprobs is None else max(1, job.logprobs),
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_k": max(0, sampling.top_k or 0),
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": get_penalty_window(sampling, context),
        "ignore_eos": bool(sampling.ignore_eos) or request.forbid_end,
        "logit_bias": build_logit_bias(
            sampling, request.forbid_end, has_grammar=job.grammar is not None
        ),
        "lora": build_lora(job, adapters),
    }
    if job.grammar is not None:
        body["grammar"] = job.grammar
    return body


def get_penalty_window(sampling: Sampling, context: int) -> int:
    """Return how many of the last tokens the penalties look at."""
    last_n = sampling.repeat_last_n
    return context if last_n is None or last_n < 0 else min(last_n, context)


def build_logit_bias(
    sampling: Sampling, forbid_end: bool, *, has_grammar: bool
) -> list[list[float | bool]]:
    """Return pairs of a token and its bias, where `False` forbids the token.

    Under a grammar no token is forbidden completely: if it were the only token that the grammar
    allows, the server would end the whole process.
    """
    biases = dict(sampling.logit_bias or {})
    if forbid_end:
        biases |= dict.fromkeys(sampling.stop_token_ids or (), FORBIDDING_BIAS)
    return [
        [token, False]
        if not has_grammar and bias <= FORBIDDING_BIAS
        else [token, min(max(bias, FORBIDDING_BIAS), -FORBIDDING_BIAS)]
        for token, bias in biases.items()
    ]


def build_lora(job: Job, adapters: Mapping[str, int]) -> list[dict[str, float]]:
    """Return the scale of every adapter, 0 for those that the job does not name."""
    scales = {adapter.name: adapter.scale for adapter in job.lora}
    return [{"id": number, "scale": scales.get(name, 0.0)} for name, number in adapters.items()]


def build_forcing_grammar(ids: Sequence[int]) -> str:
    """Return a grammar that allows these tokens, in this order, and nothing else."""
    return "%llguidance {}\nstart: " + " ".join(f"<[{token}]>" for token in ids)


def convert_logprob(native: NativeLogprob, top: int) -> Logprob:
    others = tuple(
        Logprob(other.id, _clamp_logprob(other.logprob)) for other in native.top_logprobs[:top]
    )
    return Logprob(native.id, _clamp_logprob(native.logprob), others)


def _clamp_logprob(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


def convert_error(error: NativeError, context: int) -> DragomanError:
    if error.type == "exceed_context_size_error":
        return make_context_overflow(error.n_prompt_tokens, context)
    if error.code == 400 and "grammar" in error.message:
        return InvalidGrammar("The grammar is invalid.", param="grammar")
    return EngineFailed(ENGINE_FAILURE)
