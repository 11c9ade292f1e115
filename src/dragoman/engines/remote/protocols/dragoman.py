"""Another Dragoman's `/v1/completions` with token ids, in vLLM's form.

All that a job asks for has a field there: every sampling field that its engine honours, adapters
with a scale, grammars for `llguidance`, and a salt that keeps cached prompts apart. A token that
its engine cannot name (half a character) comes as text, and is counted.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.protocols.api import (
    FrameReader,
    UpstreamRequest,
    make_token_capabilities,
)
from dragoman.engines.remote.protocols.vllm_completions import (
    PATH,
    TextLogprobs,
    convert_logprobs,
    decoder,
)
from dragoman.engines.remote.protocols.vllm_stream import VllmReader
from dragoman.engines.remote.settings import Upstream
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Job, Json

REMAINING_CONTEXT = 2**31 - 1  # as many tokens as fit


class DragomanReader(VllmReader[TextLogprobs]):
    """Reads the frames of one request."""

    def check_count(self, total: int, counted: int) -> None:
        """Engines count the tokens that end answers, or do not: here, too."""
        stops = [index for index, step in enumerate(self.held) if step.stop_id is not None]
        if total == counted - len(stops):
            return
        super().check_count(total, counted)
        for index in stops:
            step = self.held[index]
            self.held[index] = replace(step, tokens=step.tokens + 1)


class DragomanApi:
    """The API of text completions, used with ids."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def make_capabilities(self) -> Capabilities:
        fields = frozenset(self._upstream.sampling_fields)
        return make_token_capabilities(self._upstream, fields, cache_scopes=True)

    def check_job(self, job: Job) -> None:
        """Accept every value: the other server has the same ranges."""

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        body: dict[str, Json] = self._build_sampling(job) | {
            "model": self._upstream.model,
            "prompt": job.prompt,
            "n": job.n,
            "logprobs": job.logprobs,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_prompt": job.cache_prompt,
            "cache_salt": job.cache_scope or None,
            "lora": [{"name": each.name, "scale": each.scale} for each in job.lora],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if job.grammar is not None:
            body["grammar"] = {"type": "lark", "value": job.grammar}
        return [UpstreamRequest(path=PATH, body=body, choices=range(job.n))]

    def _build_sampling(self, job: Job) -> dict[str, Json]:
        """Return the sampling fields that the other engine honours, all of them explicitly."""
        sampling = job.sampling.with_defaults(DEFAULT_SAMPLING)
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=REMAINING_CONTEXT)
        values: dict[str, Json] = msgspec.to_builtins(sampling, str_keys=True)
        honoured = {*self._upstream.sampling_fields, "max_tokens"}
        return {
            name: value for name, value in values.items() if name in honoured and value is not None
        }

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return DragomanReader(parts, request, decoder.decode, convert_logprobs)

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json]:
        body = {"content": text, "add_special": False, "parse_special": special}
        return "/tokenize", {"model": self._upstream.model} | body
