"""SGLang's `/generate`.

Streams are cumulative by default, and incremental with `--incremental-streaming-output`. Frames
count the tokens so far, so each frame shows by itself which kind it is: it has either all ids up to
now or the new ones. Ids that are neither are missing some.

`n` choices share one seed there, so each choice is a request of its own.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.engines.grammar import allow_ends
from dragoman.engines.remote.answer import AnswerParts, ChoiceSteps, clamp
from dragoman.engines.remote.failures import NO_IDS, InvalidFrame, StatusFailure, make_stream_error
from dragoman.engines.remote.http.frames import DONE, decode_frame
from dragoman.engines.remote.protocols.api import (
    FrameReader,
    UpstreamRequest,
    build_prompt_tokenize,
    check_single_adapter,
    make_token_capabilities,
)
from dragoman.engines.remote.settings import Upstream
from dragoman.errors import Unsupported
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Job, Json, Logprob, Sampling, Step
from dragoman.types import StepFinish as Finish

PATH = "/generate"
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
    }
)
MAX_REPETITION_PENALTY = 2.0
REMAINING_CONTEXT = 1 << 30  # more than any server has: the context ends the answer
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}


class FinishReason(Struct):
    type: str = ""
    matched: Any = None  # a token id, or text
    message: str = ""
    status_code: int | None = None


class MetaInfo(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    output_top_logprobs: list[list[tuple[float | None, int, Any]] | None] | None = None


class SglangFrame(Struct):
    output_ids: list[int] | None = None
    text: str | None = None
    meta_info: MetaInfo | None = None
    error: Json = None


decoder = msgspec.json.Decoder(SglangFrame)


class SglangApi:
    """SGLang's own API."""

    def __init__(self, upstream: Upstream, vocabulary: Vocabulary) -> None:
        self._upstream = upstream
        self._vocabulary = vocabulary

    def make_capabilities(self) -> Capabilities:
        seeds = {"seed"} if self._upstream.deterministic_seeds else set()
        return make_token_capabilities(self._upstream, SAMPLING_FIELDS | seeds, cache_scopes=True)

    def check_job(self, job: Job) -> None:
        check_single_adapter(job)
        penalty = job.sampling.repetition_penalty or 1.0
        if not 0 < penalty <= MAX_REPETITION_PENALTY:
            raise Unsupported(
                "This model's server takes a `repetition_penalty` above 0 and up to "
                f"{MAX_REPETITION_PENALTY:g}.",
                param="repetition_penalty",
            )

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        return [
            UpstreamRequest(path=PATH, body=self._build_body(job, choice), choices=[choice])
            for choice in range(job.n)
        ]

    def _build_body(self, job: Job, choice: int) -> dict[str, Json]:
        body: dict[str, Json] = {
            "rid": f"{job.id}-{choice}-{secrets.token_hex(4)}",  # must differ from all others
            "input_ids": job.prompt,
            "sampling_params": self._build_params(job, choice),
            "stream": True,
            "return_logprob": job.logprobs is not None,
            "logprob_start_len": -1,
            "top_logprobs_num": job.logprobs or 0,
        }
        key = job.cache_scope
        if not job.cache_prompt:
            key = f"{key}{secrets.token_hex(8)}"  # which no cached prompt has
        if key:
            body["extra_key"] = key
        if job.lora:
            body["lora_path"] = job.lora[0].name
        return body

    def _build_params(self, job: Job, choice: int) -> dict[str, Json]:
        sampling = job.sampling.with_defaults(DEFAULT_SAMPLING)
        limit = sampling.max_tokens
        if limit is None:
            context = self._upstream.context
            limit = REMAINING_CONTEXT if context is None else context - len(job.prompt)
        params = _build_samplers(sampling) | {
            "max_new_tokens": limit,
            "min_new_tokens": min(sampling.min_tokens or 0, limit),
            "ignore_eos": bool(sampling.ignore_eos),
            "stop_token_ids": self._list_stop_ids(sampling),
            "skip_special_tokens": False,
            "n": 1,
        }
        if sampling.seed is not None and self._upstream.deterministic_seeds:
            params["sampling_seed"] = sampling.seed + choice
        if sampling.logit_bias:
            params["logit_bias"] = {str(key): value for key, value in sampling.logit_bias.items()}
        if job.grammar is not None:
            params["ebnf"] = allow_ends(job.grammar, self._vocabulary.eos_ids, job.cache_scope)
        return params

    def _list_stop_ids(self, sampling: Sampling) -> list[int]:
        own = set(sampling.stop_token_ids or ())
        return sorted(own if sampling.ignore_eos else own | self._vocabulary.eos_ids)

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return SglangReader(parts, request.choices[0])

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json]:
        return build_prompt_tokenize(self._upstream.model, text)


def _build_samplers(sampling: Sampling) -> dict[str, Json]:
    """Return the sampling fields under their names there; 0 is not their way to say "off"."""
    top_p, top_k = sampling.top_p or 0.0, max(0, sampling.top_k or 0)
    return {
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_p": top_p or 1.0,
        "top_k": 1 if not top_p else top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }


class SglangReader:
    """Reads the frames of one choice."""

    def __init__(self, parts: AnswerParts, choice: int) -> None:
        self._job = parts.job
        self._steps = ChoiceSteps(parts, choice)
        self._reports_cache = choice == 0

    @property
    def is_complete(self) -> bool:
        return self._steps.finish is not None

    def read(self, frame: bytes) -> list[Step]:
        if self.is_complete:
            return []
        if frame == DONE:
            raise InvalidFrame("the stream ended before its choice")
        decoded = decode_frame(decoder.decode, frame)
        if decoded.error is not None:
            raise make_stream_error(decoded.error)
        if decoded.meta_info is None or decoded.output_ids is None:
            raise InvalidFrame(NO_IDS)
        return self._read_output(decoded.output_ids, decoded.meta_info)

    def _read_output(self, output: list[int], meta: MetaInfo) -> list[Step]:
        finish, matched = self._read_finish(meta.finish_reason)
        ids = self._take_new(output, meta.completion_tokens)
        if not ids and finish is None:
            return []
        if self._reports_cache:
            self._steps.cached_tokens, self._reports_cache = meta.cached_tokens, False
        return [self._steps.add(ids, self._convert_logprobs(ids, meta), finish, matched)]

    def _read_finish(self, reason: FinishReason | None) -> tuple[Finish | None, int | None]:
        if reason is None:
            return None, None
        finish = FINISHES.get(reason.type)
        if finish is None:  # aborted; the frame may have only the last id
            body = msgspec.json.encode({"error": {"message": reason.message}})
            raise StatusFailure(reason.status_code or 500, body, {})
        return finish, reason.matched if type(reason.matched) is int else None

    def _take_new(self, output: list[int], total: int | None) -> list[int]:
        """Return the ids that are new."""
        seen = self._steps.counted
        if total is None:
            raise InvalidFrame("a frame does not count its tokens")
        if len(output) == total and total >= seen:
            return output[seen:]
        if len(output) == total - seen:
            return output
        raise InvalidFrame(f"{len(output)} ids came where {total - seen} of {total} are new")

    def _convert_logprobs(self, ids: list[int], meta: MetaInfo) -> list[Logprob]:
        top = self._job.logprobs
        if top is None or not ids:
            return []
        entries = (meta.output_token_logprobs or [])[-len(ids) :]
        if [token for _, token, _ in entries] != ids:
            raise InvalidFrame("logprobs and token ids differ")
        others = (meta.output_top_logprobs or [])[-len(ids) :] or [None] * len(ids)
        return [
            Logprob(
                token,
                clamp(value),
                tuple(Logprob(other, clamp(each)) for each, other, _ in (ranked or ())[:top]),
            )
            for (value, token, _), ranked in zip(entries, others, strict=False)
        ]
