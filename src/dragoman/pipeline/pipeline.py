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

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import cast

from msgspec.structs import replace

from dragoman.errors import BadRequest, EngineDown, Unsupported
from dragoman.events import Completion, Delta
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.pipeline.answer import AnswerReader, Deliver
from dragoman.pipeline.best_of import select_best
from dragoman.pipeline.constrain import EngineRefusals, constrain, get_call_limits
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.merge import JobRunner
from dragoman.pipeline.plan import (
    OutputReading,
    Plan,
    PreparedPrompt,
    make_job,
    make_job_id,
    warn_about_cache,
    warn_about_trace,
)
from dragoman.pipeline.reader import ChatReader, Reader, ReaderOptions, ReleaseAtEnd
from dragoman.pipeline.reading.token_ids import TokenIdReader
from dragoman.pipeline.reasoning_budget import extend_prompt, generate_within_budget
from dragoman.pipeline.relay.delta_reader import RelayReader
from dragoman.pipeline.relay.request import prepare_relay
from dragoman.pipeline.render import (
    adapt_chat,
    count_public_tokens,
    encode_raw_prompt,
    load_media,
    load_request_media,
    make_replay_scope,
    prepend_context,
    render_with_replay,
)
from dragoman.pipeline.rendering.media_prompt import (
    count_prompt,
    count_reused_tokens,
    warn_about_text,
)
from dragoman.pipeline.rendering.request_template import use_template
from dragoman.pipeline.sampling import resolve_tokens, warn_about_unused
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import (
    check_context_length,
    check_echo_length,
    check_total_length,
    get_reasoning_budget,
    validate_chat,
    validate_request,
)
from dragoman.pipeline.watch import DeliverSteps, admit, deliver_steps, read_steps
from dragoman.presets.apply import apply_sampling
from dragoman.telemetry.access_log import log_parameters
from dragoman.telemetry.raw_output import RawOutputs, collect_steps, format_prompt
from dragoman.telemetry.record import RequestRecord, get_record
from dragoman.types import Chat, Job, Prompt, Request, Step
from dragoman.types.cache_scope import set_cache_scope
from dragoman.types.limits import get_priority
from dragoman.types.loop_share import LoopShare
from dragoman.types.worker_threads import run_in_worker

PLAIN_TEXT = OutputFormat()


async def prepare(request: Request, services: Services, already_admitted: bool = False) -> Plan:
    """Do everything that can be the client's fault, before any header is sent.

    With `already_admitted` the request continues an answer that has started, and a full queue does
    not reject it.
    """
    record, share = get_record(), LoopShare()
    priority = get_priority(request.priority)
    if priority != request.priority:
        request = replace(request, priority=priority)
    is_first = record.request is None  # and not a later round of the same response
    record.set_request(request)
    set_cache_scope(request.owner)
    with record.measure("resolve"):
        owner = "" if already_admitted else request.owner
        lease = await services.models.acquire(
            request.model, owner=owner, keep_alive=request.keep_alive
        )
    try:
        model = lease.model
        record.model = model.id
        if is_first:
            log_parameters(record)
        with record.measure("validate"):
            validate_request(request, model, services.limiter.find_limits(request.owner))
            sent, request = request, apply_sampling(request, model.preset)
            request = await resolve_tokens(request, model)
            gate = services.admission.get_gate(model)
            ticket = gate.enter(request.owner, request.priority, already_admitted)
    except BaseException:
        lease.release()
        raise
    plan = Plan(request, lease, model, [], [], ticket, services.replay)
    try:
        if share.is_used_up:
            await share.yield_if_due()
        if not gate.is_open:
            await ticket.wait_until_open()
        plan.request = await load_request_media(request, model, services)
        try:
            await prepare_jobs(plan, sent, services)
        except EngineDown:
            if not ticket.others_were_running:
                raise
            await ticket.wait_until_open()
            plan.jobs, plan.prompts = [], []
            await prepare_jobs(plan, sent, services)
        if request.owner:  # without keys there are no limits
            plan.reserve_tokens(services.limiter, already_admitted=already_admitted)
    except BaseException:
        plan.close()
        raise
    return plan


async def prepare_jobs(plan: Plan, sent: Request, services: Services) -> None:
    """Render the prompts and make the jobs; `sent` is the request as the client sent it."""
    request, model, record = plan.request, plan.model, get_record()
    total, share = 0, LoopShare()
    for prompt in request.prompts:
        if plan.jobs and share.is_used_up:
            await share.yield_if_due()
        prepared = await render_prompt(prompt, model, request, services)
        param = "messages" if isinstance(prompt, Chat) else "prompt"
        total += (tokens := prepared.tokens) or 0
        tokens_left = check_context_length(tokens, model, param)
        check_total_length(total, model, param)
        check_echo_length(total, model, request)
        if model.public_prompts:
            prepared.public_tokens = await count_public_tokens(prepared.content, model)
        job_id = make_job_id(request, len(plan.jobs))
        job = make_job(job_id, request, prepared, model, tokens_left, record)
        with EngineRefusals(request), record.measure("admit"):
            await admit(job, model)
        prepared.warnings += warn_about_unused(sent, job.sampling)
        prepared.warnings += warn_about_trace(job, record) + warn_about_cache(request, job)
        plan.jobs.append(job)
        plan.prompts.append(prepared)


def record_prompts(plan: Plan, record: RequestRecord) -> None:
    """Add the prompts of a request to its record, for logs and reports that include them."""
    for job in plan.jobs:
        record.prompts.append(format_prompt(job.prompt, get_pieces(plan.model)))
        record.prompt_ids.append(job.prompt if isinstance(job.prompt, list) else [])


async def render_prompt(
    prompt: Chat | Prompt, model: Model, request: Request, services: Services
) -> PreparedPrompt:
    """Render a prompt and compile the grammar of its answer."""
    if model.relays_chat:
        return prepare_relay(prompt, model, request)
    if isinstance(prompt, Chat):
        return await render_chat(prompt, model, request, services)
    grammar = await constrain(None, request, model, AnswerStart(), services.compiler)
    with get_record().measure("render"):
        content, warnings = await encode_raw_prompt(prompt, model, request)
    if not content:
        raise BadRequest("The prompt is empty.", param="prompt")
    echo = ""
    if request.echo and isinstance(prompt.content, str) and request.logprobs is None:
        echo = prompt.content
    elif request.echo:
        decode = make_detokenizer(model).decode
        echo = content if isinstance(content, str) else await run_in_worker(decode, content)
    return PreparedPrompt(content, echo, grammar=grammar, warnings=warnings)


async def render_chat(
    chat: Chat, model: Model, request: Request, services: Services
) -> PreparedPrompt:
    """Render a chat. The rendered prompt decides whether the answer starts in reasoning."""
    replay = services.replay
    if chat.template is not None:
        model, replay = await use_template(chat.template, model), None
    chat, warnings = adapt_chat(chat, model)
    output_format = model.output_format.for_chat(chat)
    budget = get_reasoning_budget(chat, model, request)
    scope = make_replay_scope(model, request)
    limit = model.get_prompt_limit("messages")
    replayed = await render_with_replay(chat, scope, replay, limit)
    rendered = replayed.rendered
    content = rendered.text if rendered.ids is None else rendered.ids
    start = AnswerStart()
    if output_format:
        start = await output_format.find_answer_start(chat, rendered, model.renderer)
    if start.in_reasoning and budget == 0:
        content, start = await extend_prompt(content, (), model), AnswerStart(in_reasoning=False)
    warnings += warn_about_text(rendered)
    prepared = PreparedPrompt(content, warnings=warnings, answer_start=rendered.answer_start)
    prepared.media = rendered.media
    count = await count_prompt(content, rendered.media, model)
    prepared.media_tokens = 0 if count is None else count.tokens - len(content)
    prepared.stop = model.template_stops
    if chat.context:
        prepared.content = prepend_context(chat.context, content, model)
        prepared.answer_start = None
    elif replay is not None and isinstance(content, list):
        reuse = replay.measure_reuse(content, replayed, scope)
        prepared.reuse = count_reused_tokens(reuse, content, count)
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


async def generate(plan: Plan, deliver: Deliver) -> None:
    """Run the jobs and deliver the answer. Cancelling this cancels the engine at once."""
    request = plan.request
    with EngineRefusals(request):
        if request.prefill_only:
            completion = Completion()
            await run_jobs(plan, completion.add)
            usage = replace(completion.usage, completion=0, reasoning=0)
            await await_delivery(deliver(Delta(finish="length", usage=usage)))
        elif (request.best_of or 0) > request.n:
            completion = Completion()
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
    """Run the jobs, as soon as the request is admitted, and read what they generate."""
    readers = await make_readers(plan)
    runner = JobRunner(plan.model.engine, plan.jobs, plan.ticket, readers)
    record = get_record()
    with plan.ticket, ReleaseAtEnd(readers):
        with record.measure("queue"):
            await runner.acquire_first()
        plan.count_used_tokens = lambda: sum(
            reader.prompt_tokens + reader.completion_tokens for reader in readers
        )
        if record.wants_prompt:
            record_prompts(plan, record)
        with record.measure_generation(readers) as generation:
            answer = AnswerReader(plan, runner, readers, deliver, generation)
            deliver_to, job = find_deliverer(plan, record), runner.get_single_job()
            if deliver_to is not None and job is not None:
                await deliver_steps(deliver_to, job, plan, answer)
            else:
                # In its own task, so that a step does not resume all coroutines above this one.
                # The task starts the jobs: if it is cancelled before it begins, there are none.
                await asyncio.create_task(
                    read_steps(lambda: start_jobs(plan, runner, readers, record), plan, answer)
                )
            answer.check_complete()


def find_deliverer(plan: Plan, record: RequestRecord) -> DeliverSteps | None:
    """Return the engine's method that calls a reader with the steps of a job, if it can be used.

    Steps that are collected, or continued by other jobs, are yielded instead.
    """
    reading = plan.prompts[0].reading
    has_budget = reading is not None and reading.budget is not None
    if has_budget or wants_raw_steps(record):
        return None
    deliverer: DeliverSteps | None = getattr(plan.model.engine, "deliver_steps", None)
    return deliverer


def wants_raw_steps(record: RequestRecord) -> bool:
    return record.wants_output or record.options.trace is not None


def start_jobs(
    plan: Plan, runner: JobRunner, readers: list[Reader], record: RequestRecord
) -> AsyncGenerator[Step, None]:
    """Start the jobs, within the reasoning budget if the request has one."""
    reading, reader = plan.prompts[0].reading, readers[0]
    if reading is not None and reading.budget is not None and isinstance(reader, ChatReader):
        steps = generate_within_budget(
            plan.model, plan.jobs[0], reader, reading.grammar_after_reasoning
        )
    else:
        steps = runner.generate()
    if wants_raw_steps(record):
        return collect_steps(steps, RawOutputs(record, get_pieces(plan.model)))
    return steps


def get_pieces(model: Model) -> Sequence[bytes] | None:
    return None if model.tokenizer is None else model.tokenizer.pieces


async def make_readers(plan: Plan) -> list[Reader]:
    """Make one reader for each choice, prompt by prompt."""
    readers: list[Reader] = []
    share = LoopShare()
    for job, prepared in zip(plan.jobs, plan.prompts, strict=True):
        if readers and share.is_used_up:
            await share.yield_if_due()
        for choice in range(job.n):
            readers.append(make_reader(plan, job, prepared, len(readers), first=choice == 0))
    return readers


def make_reader(
    plan: Plan, job: Job, prepared: PreparedPrompt, index: int, *, first: bool
) -> Reader:
    """Make the reader of choice `index`; the `first` choice of a prompt also counts the prompt."""
    model, reading = plan.model, prepared.reading
    if model.relays_chat:
        with_reasoning = plan.request.include_reasoning
        return RelayReader(index, job, include_reasoning=with_reasoning, first=first)
    stops = () if prepared.grammar.decides_end else (*plan.request.stop, *prepared.stop)
    if reading is None:
        detokenizer = make_detokenizer(model, stops, job.logprobs is not None)
        reader = TokenIdReader if plan.request.returns_token_ids else Reader
        return reader(index, job, detokenizer, prepared.echo, first=first)
    output_format = reading.output_format
    options = ReaderOptions(
        parser=output_format.make_parser(reading.chat, reading.start),
        include_reasoning=plan.request.include_reasoning,
        parser_only_tokens=model.get_token_visibility(output_format).parser_only,
        has_grammar=job.grammar is not None,
        strip_leading_space=prepared.grammar.constrains_content,
        budget=reading.budget,
        reasoning_close=output_format.reasoning_close or "",
        call_limits=get_call_limits(reading.chat, model, plan.request.constraint),
    )
    # Without logprobs: the reader aligns those itself with the text that the parser emits.
    detokenizer = make_detokenizer(model, stops, output_format=output_format)
    return ChatReader(index, job, detokenizer, options, first=first)


async def count_prompt_tokens(request: Request, services: Services) -> int:
    """Return how many tokens the prompt of a chat has."""
    chat = cast(Chat, request.prompts[0])
    record = get_record()
    record.set_request(request)
    set_cache_scope(request.owner)
    with await services.models.acquire(request.model, owner=request.owner) as model:
        record.model = model.id
        limit = model.make_count_limit("messages")
        limit.check_chat(chat)
        validate_chat(chat, model, services.limiter.find_limits(request.owner))
        chat = await load_media(chat, model, services, request.owner, limit)
        chat, _ = adapt_chat(chat, model)
        scope = make_replay_scope(model, request)
        rendered = (await render_with_replay(chat, scope, services.replay, limit)).rendered
        if rendered.ids is None:
            raise Unsupported("Tokens cannot be counted: this model's tokenizer is unknown.")
        count = await count_prompt(rendered.ids, rendered.media, model)
    return 0 if count is None else count.tokens
