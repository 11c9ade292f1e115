"""`/v1/completions` of any OpenAI-compatible server: text in, text out."""

from __future__ import annotations

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.protocols.api import FrameReader, UpstreamRequest
from dragoman.engines.remote.protocols.openai_stream import (
    TextChoice,
    TextReader,
    build_sampling,
    make_text_capabilities,
)
from dragoman.engines.remote.settings import Upstream
from dragoman.types import Capabilities, Job, Json

PATH = "/v1/completions"
DEFAULT_ANSWER = 2048  # tokens, where neither a limit nor the context is known
MIN_ANSWER = 256
MIN_CHARACTERS_PER_TOKEN = 2  # to leave room for the prompt, whose tokens are not known


class TextCompletionsApi:
    """Text completions."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def make_capabilities(self) -> Capabilities:
        return make_text_capabilities(self._upstream)

    def check_job(self, job: Job) -> None:
        """Accept every value: the server rejects what it does not take."""

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        limit = job.sampling.max_tokens
        fixed = {
            "model": self._upstream.model,
            "prompt": job.prompt,
            "max_tokens": self._estimate_room(job) if limit is None else limit,
        }
        return [
            UpstreamRequest(path=PATH, body=build_sampling(job, choice) | fixed, choices=[choice])
            for choice in range(job.n)
        ]

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        return TextReader(request.choices[0], get_text, parts.job.sampling.max_tokens)

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json] | None:
        return None

    def _estimate_room(self, job: Job) -> int:
        """Return how many tokens an answer may have: without a limit, servers stop at 16."""
        context = self._upstream.context
        if context is None:
            return DEFAULT_ANSWER
        return max(MIN_ANSWER, context - len(job.prompt) // MIN_CHARACTERS_PER_TOKEN - 1)


def get_text(choice: TextChoice) -> str:
    return choice.text or ""
