"""Converts jobs to the native server's JSON, and defines the server's events as Structs.

The server's defaults differ from ours. So every field that affects the answer is sent with every
request, from the job's resolved sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from dragoman.engines.limits import UNREADABLE_MEDIA, make_context_overflow
from dragoman.errors import (
    ENGINE_FAILURE,
    BadRequest,
    DragomanError,
    EngineFailed,
    InvalidGrammar,
)
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Job, Json, Logprob, Sampling
from dragoman.types.sampling import FORBIDDING_BIAS, MIN_LOGPROB, MIN_XTC_THRESHOLD

SEED_COUNT = 0xFFFFFF00  # the server's seeds have 32 bits; the very last one means "at random"
SEED_STRIDE = 0x9E3779B1  # between the seeds of an answer's successive requests
DOMINANT_BIAS = 1e6  # no other token can beat it

# The order in which the server narrows down the candidates; `adaptive_p` picks the token itself.
NARROWING_SAMPLERS = ("top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc")
SAMPLERS = ("penalties", "dry", *NARROWING_SAMPLERS, "temperature")
# samplers that are left out where the field that turns them on is not set
OPTIONAL_SAMPLERS = {
    "dry": "dry_multiplier",
    "top_n_sigma": "top_n_sigma",
    "xtc": "xtc_probability",
}
SERVER_NAMES = {"typical_p": "typ_p"}  # our names of samplers -> the server's
# errors of the server that only media can cause
MEDIA_ERRORS = ("Failed to tokenize prompt", "Failed to load image or audio", "Invalid token")
FINAL_FIELDS = ("index", "tokens", "stop", "stop_type", "tokens_predicted")
FIXED_FIELDS: dict[str, Json] = {
    "stream": True,
    "return_tokens": True,
    "return_progress": True,  # a write after every batch: a closed connection is noticed in prefill
    "sse_ping_interval": -1,
    "stop": [],
    "response_fields": FINAL_FIELDS,
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
    processed: int = 0  # with the cached tokens
    time_ms: float = 0.0


class NativeError(Struct):
    code: int = 500
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0


class DraftTimings(Struct):
    """How many tokens of an answer were drafted, and how many of those were right."""

    draft_n: int = 0
    draft_n_accepted: int = 0


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
    timings: DraftTimings | None = None  # only where tokens are drafted


class TokenEvent(Struct, gc=False):
    """The fields of a `NativeEvent` that show whether it is one token and nothing else."""

    tokens: list[int] = []
    stop: bool = False
    tokens_predicted: int = 0
    error: Json = None


# Fields that are sent as they are, with the values of those that a job leaves unset.
OPTIONAL_FIELDS: dict[str, Json] = {
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "min_keep": 0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
}

token_decoder: msgspec.json.Decoder[TokenEvent] = msgspec.json.Decoder(TokenEvent)
event_decoder: msgspec.json.Decoder[NativeEvent] = msgspec.json.Decoder(NativeEvent)


def build_payload(
    job: Job, request: NativeRequest, context: int, adapters: Mapping[str, int]
) -> dict[str, Json]:
    """Return the body of a request, with every field that affects the answer."""
    sampling = job.sampling.with_defaults(DEFAULT_SAMPLING)
    body = FIXED_FIELDS | _build_optional_fields(sampling, context)
    body |= {
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "n_cmpl": request.choices,
        "seed": request.seed % SEED_COUNT,
        "cache_prompt": job.cache_prompt,
        "n_probs": 0 if job.logprobs is None else max(1, job.logprobs),
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_k": max(0, sampling.top_k or 0),
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": limit_window(sampling.repeat_last_n, context),
        "ignore_eos": bool(sampling.ignore_eos) or request.forbid_end,
        "logit_bias": build_logit_bias(
            sampling, request.forbid_end, has_grammar=job.grammar is not None
        ),
        "lora": build_lora(job, adapters),
    }
    if job.grammar is not None:
        body["grammar"] = job.grammar
    return body


def _build_optional_fields(sampling: Sampling, context: int) -> dict[str, Json]:
    fields = {
        name: default if (value := getattr(sampling, name)) is None else value
        for name, default in OPTIONAL_FIELDS.items()
    }
    # at 0 it could pick a token that a grammar or a bias forbids
    fields["xtc_threshold"] = max(fields["xtc_threshold"], MIN_XTC_THRESHOLD)
    fields["dry_penalty_last_n"] = limit_window(fields["dry_penalty_last_n"], context)
    fields["samplers"] = list_samplers(sampling)
    return fields


def list_samplers(sampling: Sampling) -> list[str]:
    """Return the server's names of the samplers to apply, in their order.

    The server applies `adaptive_p` only if it is named, so it is named where a target is set.
    """
    if sampling.samplers is not None:
        return [SERVER_NAMES.get(name, name) for name in sampling.samplers]
    names = [
        name
        for name in SAMPLERS
        if name not in OPTIONAL_SAMPLERS or getattr(sampling, OPTIONAL_SAMPLERS[name])
    ]
    is_adaptive = sampling.adaptive_target is not None and sampling.adaptive_target >= 0
    return [*names, "adaptive_p"] if is_adaptive else names


def limit_window(last_n: int | None, context: int) -> int:
    """Return how many of the last tokens a penalty looks at; the server rejects -1."""
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


def convert_error(error: NativeError, capabilities: Capabilities) -> DragomanError:
    if error.type == "exceed_context_size_error":
        trained = capabilities.trained_context
        return make_context_overflow(error.n_prompt_tokens, capabilities.context or 0, trained)
    if error.code == 400 and "grammar" in error.message:
        return InvalidGrammar("The grammar is invalid.", param="grammar")
    if error.code == 400 and error.message.startswith(MEDIA_ERRORS):
        return BadRequest(UNREADABLE_MEDIA, param="messages")
    return EngineFailed(ENGINE_FAILURE)
