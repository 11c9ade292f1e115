"""What the engine needs of a server's API: requests for a job, and a reader of their frames.

A job becomes one or several requests, each for some of its choices. A reader gets the frames of one
request, and returns the steps that they hold. It does no input or output, so that it is tested with
recorded frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.settings import Upstream
from dragoman.errors import Unsupported
from dragoman.types import Capabilities, Job, Json, Step


class UpstreamRequest(Struct, frozen=True, kw_only=True):
    """One request of a job."""

    path: str
    body: dict[str, Json]
    choices: Sequence[int]  # that it answers
    copies: Sequence[int] = ()  # choices with the same answer as the first


class FrameReader(Protocol):
    """Reads the frames of one request."""

    @property
    def is_complete(self) -> bool:
        """Whether all of its choices have finished."""
        ...

    def read(self, frame: bytes) -> list[Step]:
        """Return the steps that a frame holds, or raise an `UpstreamFailure`.

        What follows a complete answer is dropped.
        """
        ...


class UpstreamApi(Protocol):
    """One server's API, for one model there."""

    def make_capabilities(self) -> Capabilities:
        """Return what jobs may ask of this server; sampling fields that it lacks are left out."""
        ...

    def check_job(self, job: Job) -> None:
        """Reject a job with a value that this server does not honour."""
        ...

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        """Return the requests of a job, with every field that affects the answer."""
        ...

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader: ...

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json] | None:
        """Return the path and the body of a request for the tokens of a text, if there is one.

        Only llama-server can read the texts of special tokens as plain text.
        """
        ...


def make_token_capabilities(
    upstream: Upstream, sampling: frozenset[str], *, cache_scopes: bool
) -> Capabilities:
    """Return what a server that takes token ids can do, if it honours these sampling fields."""
    return Capabilities(
        context=upstream.context,
        slots=upstream.slots,
        token_prompts=True,
        sampling=sampling,
        sampling_defaults=True,
        logprobs=upstream.max_logprobs,
        lora=tuple(upstream.adapters),
        tokenize=True,
        cache_scopes=cache_scopes,
    )


def build_prompt_tokenize(model: str, text: str) -> tuple[str, Json]:
    """Return the request for tokens that vLLM and SGLang have in common."""
    return "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}


def check_single_adapter(job: Job) -> None:
    if len(job.lora) > 1 or any(adapter.scale != 1.0 for adapter in job.lora):
        raise Unsupported(
            "This model's server applies one adapter at a time, without a scale.", param="lora"
        )
