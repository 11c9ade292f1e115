"""One request from start to finish. Read this file first.

`prepare` does everything that can be the client's fault, before any header is sent: it acquires the
model, checks what model and engine can do, takes a place in the queue, renders the prompt and
compiles the grammar. `generate` runs the jobs and delivers what the answer gains, delta by delta,
in one loop with plain calls inside. A streamed response encodes each delta; a whole response is a
`Completion` that adds up the same deltas. The replay service supplies the tokens of earlier turns
of a chat and records the answer.

The owner of a `Plan` must close it. Cancelling `generate` cancels the engine.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, EngineFailed, Unsupported
from dragoman.events import Completion, Delta
from dragoman.grammar.grammar_spec import CompiledGrammar
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.models.registry import Lease
from dragoman.pipeline.admission import Ticket
from dragoman.pipeline.best_of import select_best
from dragoman.pipeline.constrain import UNCONSTRAINED, attribute_grammar_errors, constrain
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.merge import close_at_end, generate_merged
from dragoman.pipeline.reader import ChatReader, Reader, ReaderOptions
from dragoman.pipeline.reasoning_budget import extend_prompt, generate_within_budget
from dragoman.pipeline.render import make_replay_scope, render_with_replay
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import (
    check_context_length,
    drop_unsupported,
    get_reasoning_budget,
    validate_media,
    validate_request,
)
from dragoman.replay import PromptReuse, ReplayRecorder, ReplayService
from dragoman.types import DEFAULT_SAMPLING, Chat, Job, Prompt, Request, Sampling, Step

PLAIN_TEXT = OutputFormat()
# Takes a delta; the awaitable it may return is awaited before the next delta.
Deliver: TypeAlias = Callable[[Delta], Awaitable[None] | None]


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


class Plan(Struct):
    """A request that is ready to run."""

    request: Request
    lease: Lease
    jobs: list[Job]
    prompts: list[PreparedPrompt]
    ticket: Ticket
    replay: ReplayService | None = None

    @property
    def model(self) -> Model:
        return self.lease.model

    @property
    def model_name(self) -> str:
        """The name of the model in the response: the alias the client used, else its id."""
        requested = self.request.model.strip()
        return requested if requested in self.model.aliases else self.model.id

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each field of the request that has no effect."""
        warnings = list(self.request.warnings)
        for prompt in self.prompts:
            warnings += (*prompt.warnings, *prompt.grammar.warnings)
        return tuple(warnings)

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
        return sum(len(job.prompt) for job in self.jobs if isinstance(job.prompt, list))

    def close(self) -> None:
        self.ticket.release()
        self.lease.release()


async def prepare(request: Request, services: Services, already_admitted: bool = False) -> Plan:
    """Do everything that can be the client's fault, before any header is sent.

    With `already_admitted` the request continues an answer that has started, and a full queue does
    not reject it.
    """
    lease = await services.models.acquire(request.model)
    try:
        model = lease.model
        validate_request(request, model)
        choices = count_choices(request) * len(request.prompts)
        ticket = services.admission.get_gate(model).enter(choices, already_admitted)
    except BaseException:
        lease.release()
        raise
    plan = Plan(request, lease, [], [], ticket, services.replay)
    try:
        for prompt in request.prompts:
            prepared = await render_prompt(prompt, model, request, services)
            param = "messages" if isinstance(prompt, Chat) else "prompt"
            tokens_left = check_context_length(prepared.content, model, param)
            job = make_job(request, prepared, model, tokens_left)
            with attribute_grammar_errors(request):
                await model.engine.admit(job)
            plan.jobs.append(job)
            plan.prompts.append(prepared)
    except BaseException:
        plan.close()
        raise
    return plan


def count_choices(request: Request) -> int:
    """Return how many choices the engine generates for each prompt."""
    return max(request.n, request.best_of or 0)


async def render_prompt(
    prompt: Chat | Prompt, model: Model, request: Request, services: Services
) -> PreparedPrompt:
    """Render a prompt and compile the grammar of its answer."""
    if isinstance(prompt, Chat):
        return await render_chat(prompt, model, request, services)
    grammar = await constrain(None, request, model, AnswerStart(), services.compiler)
    content = await model.renderer.encode_prompt(prompt)
    if not content:
        raise BadRequest("The prompt is empty.", param="prompt")
    echo = ""
    if request.echo:
        echo = content if isinstance(content, str) else make_detokenizer(model).decode(content)
    return PreparedPrompt(content, echo, grammar=grammar)


async def render_chat(
    chat: Chat, model: Model, request: Request, services: Services
) -> PreparedPrompt:
    """Render a chat. The rendered prompt decides whether the answer starts in reasoning."""
    chat, warnings = drop_unsupported(chat, model)
    output_format = model.output_format.for_chat(chat)
    budget = get_reasoning_budget(chat, model, request)
    scope = make_replay_scope(model, request)
    replayed = await render_with_replay(chat, scope, services.replay)
    rendered = replayed.rendered
    content = rendered.text if rendered.ids is None else rendered.ids
    start = AnswerStart()
    if output_format:
        start = await output_format.find_answer_start(chat, rendered, model.renderer)
    if start.in_reasoning and budget == 0:
        content, start = await extend_prompt(content, (), model), AnswerStart(in_reasoning=False)
    prepared = PreparedPrompt(content, warnings=warnings, answer_start=rendered.answer_start)
    if services.replay is not None and isinstance(content, list):
        prepared.reuse = services.replay.measure_reuse(content, replayed, scope)
    compiler = services.compiler
    if not output_format:
        prepared.grammar = await constrain(chat, request, model, start, compiler)
        return prepared
    prepared.grammar = await constrain(
        chat, request, model, start, compiler, without_reasoning=budget == 0
    )
    prepared.reading = OutputReading(chat, output_format, start, budget)
    if budget is not None and prepared.grammar.grammar is not None:
        rest = await constrain(
            chat, request, model, AnswerStart(), compiler, without_reasoning=True
        )
        prepared.reading.grammar_after_reasoning = rest.grammar
    return prepared


def make_detokenizer(
    model: Model,
    stops: Sequence[str] = (),
    logprobs: bool = False,
    output_format: OutputFormat = PLAIN_TEXT,
) -> Detokenizer:
    if model.tokenizer is None:
        return Detokenizer(None, frozenset(), stops, logprobs)
    hidden = model.get_token_visibility(output_format).hidden
    return Detokenizer(model.tokenizer.pieces, hidden, stops, logprobs)


def make_job(
    request: Request, prepared: PreparedPrompt, model: Model, tokens_left: int | None
) -> Job:
    """Make the engine's job. Sampling comes from the request, else the model, else our defaults."""
    sampling = request.sampling.with_defaults(model.defaults.with_defaults(DEFAULT_SAMPLING))
    if tokens_left is not None:
        max_tokens = (
            tokens_left if sampling.max_tokens is None else min(sampling.max_tokens, tokens_left)
        )
        sampling = Sampling(max_tokens=max_tokens).with_defaults(sampling)
    if request.prefill_only:
        sampling = Sampling(max_tokens=1).with_defaults(sampling)
    n = count_choices(request)
    cache_prompt = request.cache_prompt
    if cache_prompt is None:
        # A cached prefix changes the last bits of the logits, so a seeded answer would not repeat.
        cache_prompt = request.sampling.seed is None
    logprobs = request.logprobs
    if n > request.n and logprobs is None:
        logprobs = 0  # `best_of` ranks choices by their logprobs
    return Job(
        id=uuid.uuid4().hex,
        prompt=prepared.content,
        sampling=sampling,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=prepared.grammar.grammar,
        lora=request.lora or (),
        cache_prompt=cache_prompt,
    )


async def generate(plan: Plan, deliver: Deliver) -> None:
    """Run the jobs and deliver the answer. Cancelling this cancels the engine at once."""
    request = plan.request
    with attribute_grammar_errors(request):
        completion = Completion()
        if request.prefill_only:
            await run_jobs(plan, completion.add)
            usage = replace(completion.usage, completion=0, reasoning=0)
            await await_delivery(deliver(Delta(finish="length", usage=usage)))
        elif (request.best_of or 0) > request.n:
            await run_jobs(plan, completion.add)
            with_logprobs = request.logprobs is not None
            for delta in select_best(completion, plan.jobs[0].n, request.n, with_logprobs):
                await await_delivery(deliver(delta))
        else:
            await run_jobs(plan, deliver)


async def await_delivery(pending: Awaitable[None] | None) -> None:
    if pending is not None:
        await pending


async def run_jobs(plan: Plan, deliver: Deliver) -> None:
    """Run the jobs and read their steps until every choice has finished."""
    readers = make_readers(plan)
    recorder = make_recorder(plan)
    unfinished = len(readers)
    await plan.ticket.wait()
    async with close_at_end(start_jobs(plan, readers)) as steps:
        async for step in steps:
            if not 0 <= step.choice < len(readers):
                raise EngineFailed("The engine answered with a choice that was not requested.")
            if step.prompt_tokens is not None or step.prompt_logprobs:
                share_prompt_counts(step, readers, plan.jobs[0].n)
            for delta in readers[step.choice].feed(step):
                if recorder is not None:
                    record_delta(recorder, delta, readers[delta.choice])
                pending = deliver(delta)
                if pending is not None:
                    await pending
                unfinished -= delta.finish is not None
            if not unfinished:
                return
    raise EngineFailed("The engine stopped before the answer was finished.")


def start_jobs(plan: Plan, readers: list[Reader]) -> AsyncGenerator[Step, None]:
    """Start the jobs, within the reasoning budget if the request has one."""
    reading, reader = plan.prompts[0].reading, readers[0]
    if reading is not None and reading.budget is not None and isinstance(reader, ChatReader):
        return generate_within_budget(
            plan.model, plan.jobs[0], reader, reading.grammar_after_reasoning
        )
    return generate_merged(plan.model.engine, plan.jobs)


def make_recorder(plan: Plan) -> ReplayRecorder | None:
    """Make the recorder that stores a chat's answer for replay; `best_of` is not stored."""
    replay, request = plan.replay, plan.request
    if replay is None or plan.reuse is None or (request.best_of or 0) > request.n:
        return None
    scope = make_replay_scope(plan.model, request)
    recorder = ReplayRecorder(replay, scope, request.store, request.response_id)
    first = 0
    for job, prepared in zip(plan.jobs, plan.prompts, strict=True):
        if prepared.reuse is not None:
            recorder.start(range(first, first + job.n), prepared.reuse, prepared.answer_start)
        first += job.n
    return None if request.prefill_only else recorder  # prefilling records the prompt only


def record_delta(recorder: ReplayRecorder, delta: Delta, reader: Reader) -> None:
    recorder.add(delta)
    if delta.finish is not None:
        recorder.finish(delta.choice, reader.exact_ids, reader.generated_call_ids)


def make_readers(plan: Plan) -> list[Reader]:
    """Make one reader for each choice, prompt by prompt."""
    readers: list[Reader] = []
    for job, prepared in zip(plan.jobs, plan.prompts, strict=True):
        for choice in range(job.n):
            readers.append(make_reader(plan, job, prepared, len(readers), first=choice == 0))
    return readers


def make_reader(
    plan: Plan, job: Job, prepared: PreparedPrompt, index: int, *, first: bool
) -> Reader:
    model, reading = plan.model, prepared.reading
    stops = () if prepared.grammar.decides_end else plan.request.stop
    if reading is None:
        detokenizer = make_detokenizer(model, stops, job.logprobs is not None)
        return Reader(index, job, detokenizer, prepared.echo, first=first)
    output_format = reading.output_format
    visible = output_format.find_visible_marker_tokens(model.tokenizer)
    options = ReaderOptions(
        parser=output_format.make_parser(reading.chat, reading.start),
        include_reasoning=plan.request.include_reasoning,
        parser_only_tokens=model.get_token_visibility(output_format).shown - visible,
        has_grammar=job.grammar is not None,
        strip_leading_space=prepared.grammar.constrains_content,
        budget=reading.budget,
        reasoning_close=output_format.reasoning_close or "",
    )
    # Without logprobs: the reader keeps those itself, beside the text that the parser emits.
    detokenizer = make_detokenizer(model, stops, output_format=output_format)
    return ChatReader(index, job, detokenizer, options, first=first)


def share_prompt_counts(step: Step, readers: list[Reader], choices: int) -> None:
    """Hand the prompt's counts and logprobs, sent with any choice, to all choices of the prompt."""
    first = step.choice - step.choice % choices
    readers[first].count_prompt(step)
    for reader in readers[first : first + choices]:
        reader.set_prompt_logprobs(step.prompt_logprobs)


async def count_prompt_tokens(request: Request, services: Services) -> int:
    """Return how many tokens the prompt of a chat has."""
    chat = cast(Chat, request.prompts[0])
    with await services.models.acquire(request.model) as model:
        validate_media(chat, model)
        chat, _ = drop_unsupported(chat, model)
        scope = make_replay_scope(model, request)
        rendered = (await render_with_replay(chat, scope, services.replay)).rendered
    if rendered.ids is None:
        raise Unsupported("Tokens cannot be counted: this model's tokenizer is unknown.")
    return len(rendered.ids)
