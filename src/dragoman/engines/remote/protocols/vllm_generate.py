"""vLLM's `/inference/v1/generate`: token ids in, token ids out, without a tokenizer in between.

vLLM 0.32 serves it with `--enable-scale-out` or `--tokens-only`, and answers 403 otherwise.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman.engines.remote.answer import AnswerParts, clamp
from dragoman.engines.remote.protocols.api import FrameReader, UpstreamRequest
from dragoman.engines.remote.protocols.vllm_stream import (
    StreamFrame,
    VllmApi,
    VllmReader,
    make_vllm_request,
)
from dragoman.types import Job, Logprob

PATH = "/inference/v1/generate"


class RankedLogprob(Struct):
    token_id: int
    logprob: float | None = None
    rank: int | None = None
    top_logprobs: list[RankedLogprob] = []


class RankedLogprobs(Struct):
    content: list[RankedLogprob] | None = None


decoder = msgspec.json.Decoder(StreamFrame[RankedLogprobs])


class VllmGenerateApi(VllmApi):
    """The API that needs no tokenizer."""

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        params = self.build_params(job) | {"detokenize": False}
        if job.logprobs is not None:  # the sampled token takes the place of one alternative
            params["logprobs"] = min(job.logprobs + 1, self._upstream.max_logprobs)
        body = {
            "request_id": job.id,
            "model": self.get_model_name(job),
            "token_ids": job.prompt,
            "sampling_params": params,
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_ended": True,  # a grammar of ours begins with the first token
        }
        if job.cache_scope:
            body["cache_salt"] = job.cache_scope
        return [make_vllm_request(PATH, body, job)]

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return VllmReader(parts, request, decoder.decode, convert_logprobs)


def convert_logprobs(logprobs: RankedLogprobs, top: int) -> list[Logprob]:
    return [_convert(entry, top) for entry in logprobs.content or ()]


def _convert(entry: RankedLogprob, top: int) -> Logprob:
    """Convert the logprobs of one token; the sampled one comes first, whatever its rank."""
    ranked = sorted(entry.top_logprobs, key=lambda other: other.rank or 0)
    others = tuple(Logprob(other.token_id, clamp(other.logprob)) for other in ranked[:top])
    return Logprob(entry.token_id, clamp(entry.logprob), others)
