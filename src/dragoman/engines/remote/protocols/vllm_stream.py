"""The stream that both token APIs of vLLM send.

Frames carry what a choice gained. After the last one comes a frame with the usage, and `[DONE]`.
The end of a choice is held back until then: the usage tells how many tokens there were, and an
answer with fewer ids than that is not a shorter answer but a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.grammar import allow_ends
from dragoman.engines.remote.answer import AnswerParts, ChoiceSteps
from dragoman.engines.remote.failures import NO_IDS, InvalidFrame, make_stream_error
from dragoman.engines.remote.http.frames import DONE, decode_frame
from dragoman.engines.remote.protocols.api import (
    UpstreamRequest,
    build_prompt_tokenize,
    check_single_adapter,
    make_token_capabilities,
)
from dragoman.engines.remote.settings import Upstream
from dragoman.engines.vllm import SAMPLING_FIELDS
from dragoman.engines.vllm.failures import make_finish_error
from dragoman.engines.vllm.outputs import FINISHES
from dragoman.engines.vllm.sampling import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    build_request,
)
from dragoman.errors import Unsupported
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Capabilities, Job, Json, Logprob, Step

L = TypeVar("L")


class PromptDetails(Struct):
    cached_tokens: int | None = None


class StreamUsage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class StreamChoice(Struct, Generic[L]):
    index: int
    token_ids: list[int] | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: L | None = None
    unnamed_tokens: int = 0  # of the text, beside `token_ids`; only Dragoman has them


class StreamFrame(Struct, Generic[L]):
    choices: list[StreamChoice[L]] = []
    usage: StreamUsage | None = None
    error: Json = None


class VllmReader(Generic[L]):
    """Reads the frames of one request."""

    def __init__(
        self,
        parts: AnswerParts,
        request: UpstreamRequest,
        decode: Callable[[bytes], StreamFrame[L]],
        convert_logprobs: Callable[[L, int], list[Logprob]],
    ) -> None:
        self._parts = parts
        self._decode = decode
        self._convert_logprobs = convert_logprobs
        self._drops_token = parts.job.sampling.max_tokens == 0
        self._choices = [ChoiceSteps(parts, choice) for choice in request.choices]
        self._copies = request.copies
        self.held: list[Step] = []  # the ends of choices
        self._usage: StreamUsage | None = None
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def read(self, frame: bytes) -> list[Step]:
        if self._is_complete:
            return []
        if frame == DONE:
            return self._end()
        decoded = decode_frame(self._decode, frame)
        if decoded.error is not None:
            raise make_stream_error(decoded.error)
        if decoded.usage is not None:
            self._usage = decoded.usage
        choices = decoded.choices
        if len(choices) == 1:  # the usual case
            return self._read_choice(choices[0])
        steps = [step for choice in choices for step in self._read_choice(choice)]
        if decoded.usage is not None and not decoded.choices:
            steps += self._end()
        return steps

    def check_count(self, total: int, counted: int) -> None:
        """Raise `InvalidFrame` unless the server counts as many tokens as have come."""
        if total != counted:
            raise InvalidFrame(f"{counted} ids came, but the server counts {total} tokens")

    def _read_choice(self, new: StreamChoice[L]) -> list[Step]:
        if not 0 <= new.index < len(self._choices):
            raise InvalidFrame(f"there is no choice {new.index}")
        finish = None
        if new.finish_reason is not None:
            finish = FINISHES.get(new.finish_reason)
            if finish is None:
                raise make_finish_error(new.finish_reason)
        choice, ids, logprobs = self._choices[new.index], new.token_ids, []
        if choice.finish is not None and not ids:
            return []  # it ends once more
        if ids is None:
            if new.text or finish is None or not choice.counted:
                raise InvalidFrame(NO_IDS)
            ids = []
        if self._parts.job.logprobs is not None and new.logprobs is not None:
            logprobs = self._convert_logprobs(new.logprobs, self._parts.job.logprobs)
            is_stop = finish == "stop" and bool(ids) and choice.is_stop_id(ids[-1])
            if not len(ids) - is_stop <= len(logprobs) <= len(ids):
                raise InvalidFrame(f"{len(logprobs)} logprobs for {len(ids)} tokens")
        step = choice.add(ids, logprobs, finish)
        if new.unnamed_tokens > 0:
            choice.counted += new.unnamed_tokens
            step = replace(step, text=new.text or "", tokens=step.tokens + new.unnamed_tokens)
        if self._drops_token:
            step = replace(step, ids=[], tokens=0, logprobs=[], stop_id=None)
            step = replace(step, finish=finish and "length")
        if step.finish is None:
            return self._copy(step)
        self.held += self._copy(step)  # a reader ends the answer at its last token
        return []

    def _copy(self, step: Step) -> list[Step]:
        """Return the step of every choice that has this answer."""
        if not self._copies:
            return [step]
        others = [
            replace(step, choice=choice, prompt_tokens=None, cached_tokens=None)
            for choice in self._copies
        ]
        return [step, *others]

    def _end(self) -> list[Step]:
        """Return the ends of all choices, once the counts agree."""
        if any(choice.finish is None for choice in self._choices):
            raise InvalidFrame("the stream ended before its choices")
        usage, counted = self._usage, sum(choice.counted for choice in self._choices)
        if usage is not None:
            total = usage.completion_tokens
            if total is not None:
                self.check_count(total, counted)
            if usage.prompt_tokens_details is not None and self.held:
                cached = usage.prompt_tokens_details.cached_tokens
                # the prompt itself was reported with the first step: once, as the contract says
                self.held[0] = replace(self.held[0], cached_tokens=cached)
        self._is_complete = True
        return self.held


def make_vllm_request(path: str, body: dict[str, Json], job: Job) -> UpstreamRequest:
    """Make the request of a job; vLLM refuses several greedy choices, which are all the same."""
    count = 1 if job.sampling.is_greedy else job.n
    return UpstreamRequest(path=path, body=body, choices=range(count), copies=range(count, job.n))


class VllmApi:
    """What both token APIs of vLLM have in common."""

    def __init__(self, upstream: Upstream, vocabulary: Vocabulary) -> None:
        self._upstream = upstream
        self._vocabulary = vocabulary

    def make_capabilities(self) -> Capabilities:
        return make_token_capabilities(self._upstream, SAMPLING_FIELDS, cache_scopes=True)

    def check_job(self, job: Job) -> None:
        """Reject values that vLLM refuses, or changes without saying so."""
        temperature = 0.0 if job.sampling.is_greedy else job.sampling.temperature or 0.0
        if temperature > MAX_TEMPERATURE or (0 < temperature < MIN_TEMPERATURE):
            raise Unsupported(
                f"This model's server takes a `temperature` of 0, or from {MIN_TEMPERATURE:g} to "
                f"{MAX_TEMPERATURE:g}.",
                param="temperature",
            )
        check_single_adapter(job)

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json]:
        return build_prompt_tokenize(self._upstream.model, text)

    def build_params(self, job: Job) -> dict[str, Json]:
        """Return the sampling fields of a request."""
        params = build_request(job, self._vocabulary.eos_ids).params
        if params["max_tokens"] is None and self._upstream.context is not None:
            params["max_tokens"] = self._upstream.context - len(job.prompt)
        if job.grammar is not None:
            grammar = allow_ends(job.grammar, self._vocabulary.eos_ids, job.cache_scope)
            params["structured_outputs"] = {"grammar": grammar}
        return params

    def get_model_name(self, job: Job) -> str:
        """Return the name that selects the model, or the adapter of a job."""
        return job.lora[0].name if job.lora else self._upstream.model
