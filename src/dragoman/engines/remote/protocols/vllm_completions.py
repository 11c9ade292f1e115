"""vLLM's `/v1/completions` with token ids, for servers without `/inference/v1/generate`.

The prompt is a list of ids, and `return_token_ids` asks for those of the answer. A version that
does not know the field ignores it, which is noticed in the first frame.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Struct

from dragoman.engines.remote.answer import AnswerParts, clamp
from dragoman.engines.remote.failures import InvalidFrame
from dragoman.engines.remote.protocols.api import FrameReader, UpstreamRequest
from dragoman.engines.remote.protocols.vllm_stream import (
    StreamFrame,
    VllmApi,
    VllmReader,
    make_vllm_request,
)
from dragoman.types import Job, Logprob

PATH = "/v1/completions"
ID_PREFIX = "token_id:"
UNSUPPORTED_PARAMS = ("skip_reading_prefix_cache", "prompt_logprobs")


class TextLogprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


decoder = msgspec.json.Decoder(StreamFrame[TextLogprobs])


class VllmCompletionsApi(VllmApi):
    """The API of text completions, used with ids."""

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        params = self.build_params(job)
        for name in UNSUPPORTED_PARAMS:
            params.pop(name, None)
        body = params | {
            "request_id": job.id,
            "model": self.get_model_name(job),
            "prompt": job.prompt,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        salt = job.cache_scope
        if not job.cache_prompt:
            salt = f"{salt}{secrets.token_hex(8)}"  # which no cached prompt has
        if salt:
            body["cache_salt"] = salt
        return [make_vllm_request(PATH, body, job)]

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return VllmReader(parts, request, decoder.decode, convert_logprobs)


def convert_logprobs(logprobs: TextLogprobs, top: int) -> list[Logprob]:
    """Convert logprobs whose tokens are written as `token_id:N`."""
    alternatives = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return [
        Logprob(_parse_id(token), clamp(value), _rank(others or {}, top))
        for token, value, others in zip(
            logprobs.tokens, logprobs.token_logprobs, alternatives, strict=False
        )
    ]


def _rank(others: dict[str, float], top: int) -> tuple[Logprob, ...]:
    ranked = sorted(others.items(), key=lambda item: -item[1])
    return tuple(Logprob(_parse_id(token), clamp(value)) for token, value in ranked[:top])


def _parse_id(token: str) -> int:
    number = token.removeprefix(ID_PREFIX)
    if number == token or not number.isdecimal():
        raise InvalidFrame("logprobs name no token ids: this server ignores the field for them")
    return int(number)
