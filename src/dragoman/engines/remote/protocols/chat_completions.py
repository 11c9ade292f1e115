"""`/v1/chat/completions` of any OpenAI-compatible server.

The prompt of a job is the JSON of the fields that `pipeline.relay` writes (messages, tools…), and
the text of its steps is the JSON of each delta, one in a line, which `pipeline.relay` reads. So
this file knows neither conversations nor tools.
"""

from __future__ import annotations

import msgspec

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.http.frames import replace_half_characters
from dragoman.engines.remote.protocols.api import FrameReader, UpstreamRequest
from dragoman.engines.remote.protocols.openai_stream import (
    EMPTY,
    TextChoice,
    TextReader,
    build_sampling,
    make_text_capabilities,
)
from dragoman.engines.remote.settings import Upstream
from dragoman.errors import BadRequest
from dragoman.types import Capabilities, Job, Json

PATH = "/v1/chat/completions"


class ChatCompletionsApi:
    """Chat completions."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def make_capabilities(self) -> Capabilities:
        return make_text_capabilities(self._upstream)

    def check_job(self, job: Job) -> None:
        """Reject a prompt that is not a conversation."""
        decode_fields(job)

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        fields = decode_fields(job) | {"model": self._upstream.model}
        return [
            UpstreamRequest(path=PATH, body=build_sampling(job, choice) | fields, choices=[choice])
            for choice in range(job.n)
        ]

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return TextReader(request.choices[0], get_delta, parts.job.sampling.max_tokens)

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json] | None:
        return None


def decode_fields(job: Job) -> dict[str, Json]:
    """Return the fields of a request that the prompt of a job holds."""
    try:
        return msgspec.json.decode(job.prompt, type=dict[str, Json])  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError):
        raise BadRequest("This model's server takes conversations only.", param="prompt") from None


def get_delta(choice: TextChoice) -> str:
    """Return the JSON of a delta as one line."""
    data = bytes(choice.delta)
    if data in EMPTY:
        return ""
    return replace_half_characters(data).decode().replace("\n", " ") + "\n"
