"""A request that is ready to run: the jobs of the engine, and how to read the answer."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dragoman.grammar.grammar_spec import CompiledGrammar
from dragoman.keys.rate_limits import NO_RESERVATION, RateLimiter, TokenReservation
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.models.residency import Lease
from dragoman.pipeline.admission import Ticket
from dragoman.pipeline.constrain import UNCONSTRAINED
from dragoman.pipeline.sampling import add_stop_tokens
from dragoman.replay import PromptReuse, ReplayService
from dragoman.telemetry.record import RequestRecord
from dragoman.types import DEFAULT_SAMPLING, Chat, Job, MediaItem, Request
from dragoman.types.cache_scope import make_cache_scope

log = logging.getLogger("dragoman.pipeline")

CHARACTERS_PER_TOKEN = 4  # of texts, where the tokenizer is unknown


class OutputReading(Struct):
    """How to read the answer to a chat."""

    chat: Chat
    output_format: OutputFormat
    start: AnswerStart
    budget: int | None = None  # maximum number of reasoning tokens, if the pipeline enforces it
    grammar_after_reasoning: str | None = None  # for the rest, once reasoning is cut short


class PreparedPrompt(Struct):
    """A prompt as the engine takes it."""

    content: list[int] | str
    echo: str = ""  # the prompt as text, when the client wants it back
    reading: OutputReading | None = None
    grammar: CompiledGrammar = UNCONSTRAINED
    warnings: tuple[str, ...] = ()  # one sentence for each field that has no effect
    answer_start: int | None = None  # index of the token where the template opens the answer
    reuse: PromptReuse | None = None
    stop: tuple[str, ...] = ()  # stop strings of the chat template, besides those of the request
    public_tokens: int = 0  # tokens at the beginning that all API keys may reuse
    media: tuple[MediaItem, ...] = ()  # pictures and sound, in the order of the prompt
    media_tokens: int = 0  # tokens of media, less the ids that stand for them in the content

    @property
    def tokens(self) -> int | None:
        """How many tokens the prompt has; None for a text."""
        return None if isinstance(self.content, str) else len(self.content) + self.media_tokens


class Plan(Struct):
    """A request that is ready to run."""

    request: Request
    lease: Lease
    model: Model  # that of the lease
    jobs: list[Job]
    prompts: list[PreparedPrompt]
    ticket: Ticket
    replay: ReplayService | None = None
    reservation: TokenReservation = NO_RESERVATION  # of the tokens that the request may use
    count_used_tokens: Callable[[], int] = int  # of prompts and answers; 0 until it runs

    @property
    def model_name(self) -> str:
        """The name of the model in the response."""
        return self.lease.model_name

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each field of the request that has no effect."""
        warnings = list(self.request.warnings)
        for prompt in self.prompts:
            warnings += (*prompt.warnings, *prompt.grammar.warnings)
        return tuple(dict.fromkeys(warnings))

    @property
    def reuse(self) -> PromptReuse | None:
        """How much of a chat's prompt earlier requests have sent, where that is known."""
        return self.prompts[0].reuse if self.prompts else None

    @property
    def choice_count(self) -> int:
        """How many choices the answer has."""
        return self.request.n * len(self.jobs)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens all prompts have, as far as that is known."""
        tokens = 0
        for prompt in self.prompts:
            tokens += prompt.tokens or 0
        return tokens

    @property
    def prompt_ids(self) -> list[list[int]]:
        """The tokens of all prompts, if the client wants them."""
        if not self.request.returns_token_ids:
            return []
        return [job.prompt if isinstance(job.prompt, list) else [] for job in self.jobs]

    @property
    def estimated_prompt_tokens(self) -> int:
        """How many tokens all prompts have; texts are estimated."""
        tokens = 0
        for prompt in self.prompts:
            tokens += estimate_tokens(prompt.content) + prompt.media_tokens
        return tokens

    @property
    def max_answer_tokens(self) -> int | None:
        """How many tokens all choices may have; None if neither client nor operator limits them."""
        request = self.request
        is_limited = request.prefill_only or request.sampling.max_tokens is not None
        if not is_limited and self.model.defaults.max_tokens is None:
            return None
        tokens = 0
        for job in self.jobs:
            tokens += job.n * (job.sampling.max_tokens or 0)
        return tokens

    def reserve_tokens(self, limiter: RateLimiter, *, already_admitted: bool) -> None:
        """Reserve the tokens that the request may use, or raise `Overloaded`."""
        self.reservation = limiter.reserve_tokens(
            self.request.owner,
            self.estimated_prompt_tokens,
            self.max_answer_tokens,
            choices=sum(job.n for job in self.jobs),
            already_admitted=already_admitted,
        )

    def close(self) -> None:
        self.reservation.settle(self.count_used_tokens())
        self.ticket.release()
        self.lease.release()


def estimate_tokens(prompt: list[int] | str) -> int:
    """Return how many tokens a prompt has; of a text, about how many."""
    return len(prompt) if isinstance(prompt, list) else len(prompt) // CHARACTERS_PER_TOKEN + 1


def count_choices(request: Request) -> int:
    """Return how many choices the engine generates for each prompt."""
    return max(request.n, request.best_of or 0)


def make_job_id(request: Request, prompt: int) -> str:
    """Return the id of the response, numbered where a response takes several jobs."""
    job_id = request.response_id or uuid.uuid4().hex
    if request.round:
        job_id += f"-r{request.round}"
    return job_id if len(request.prompts) == 1 else f"{job_id}-{prompt}"


def may_reuse(scope: str, model: Model) -> bool:
    """Whether a job with this cache scope may reuse what the engine has cached."""
    if not scope or model.capabilities.cache_scopes:
        return True
    if not model.warned_about_scopes:
        model.warned_about_scopes = True
        log.warning(
            "%s: its engine does not keep the cached prompts of API keys apart, so requests with a "
            "key reuse none; --shared-cache lets all keys reuse them",
            model.id,
        )
    return False


def warn_about_cache(request: Request, job: Job) -> tuple[str, ...]:
    if not request.cache_prompt or job.cache_prompt:
        return ()
    return ("`cache_prompt` has no effect: this engine does not keep API keys apart.",)


def make_job(
    job_id: str,
    request: Request,
    prepared: PreparedPrompt,
    model: Model,
    tokens_left: int | None,
    record: RequestRecord,
) -> Job:
    """Make the engine's job. Sampling comes from the request, else the model, else our defaults.

    An engine that did not ask for defaults gets only what client or operator have set.
    """
    defaults = model.get_defaults(request.sampling)
    if model.capabilities.sampling_defaults:
        defaults = defaults.with_defaults(DEFAULT_SAMPLING)
    sampling = request.sampling.with_defaults(defaults)
    max_tokens = sampling.max_tokens
    if tokens_left is not None and (max_tokens is None or max_tokens > tokens_left):
        sampling = replace(sampling, max_tokens=tokens_left)
    if request.prefill_only:
        sampling = replace(sampling, max_tokens=1)
    sampling = add_stop_tokens(sampling, prepared.stop, model)
    n = count_choices(request)
    trace = record.options.trace
    cache_prompt = request.cache_prompt
    owner = "" if model.shares_cache else request.owner
    scope = make_cache_scope(owner, request.cache_salt)
    if cache_prompt is None:
        # A cached prefix changes the last bits of the logits, so a seeded answer would not repeat.
        cache_prompt = request.sampling.seed is None
    logprobs = request.logprobs
    if n > request.n and logprobs is None:
        logprobs = 0  # `best_of` ranks choices by their logprobs
    return Job(
        id=job_id,
        prompt=prepared.content,
        media=prepared.media,
        sampling=sampling,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=prepared.grammar.grammar,
        lora=request.lora or (),
        cache_prompt=cache_prompt and may_reuse(scope, model),
        cache_scope=scope,
        public_prefix=prepared.public_tokens,
        priority=request.priority,
        trace=trace if trace is not None and model.can_trace(trace) else None,
    )


def warn_about_trace(job: Job, record: RequestRecord) -> tuple[str, ...]:
    level = record.options.trace
    if level in (None, "step", job.trace):
        return ()
    return (f"`{level}` trace: this engine does not trace itself, so only stages are reported.",)
