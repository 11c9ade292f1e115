"""One request, start to finish. Read this file first.

`prepare` does all that can be the client's fault (find the model, render the prompt, check what
the engine can do, take a place in the queue) before any header is sent. `generate` runs the jobs
and hands out what the answer gained, delta by delta, in one loop with plain calls inside. A stream
writes each delta down, a whole answer is a `Completion` that adds them up: the same deltas, another
hand. Earlier turns of a chat are looked up in the `memory`, which then hears the answer, too.
Whoever holds a `Plan` must close it; cancelling `generate` cancels the engine.
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
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.models.registry import Lease, Model, ModelRegistry
from dragoman.pipeline.admission import Ticket
from dragoman.pipeline.best_of import select_best
from dragoman.pipeline.constrain import UNCONSTRAINED, attribute_grammar_errors, constrain
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.merge import close_at_end, generate_merged
from dragoman.pipeline.reader import ChatReader, Reader, ReaderOptions
from dragoman.pipeline.reasoning_budget import extend_prompt, generate_within_budget
from dragoman.pipeline.unsupported import drop_unsupported
from dragoman.pipeline.validate import (
    check_context_length,
    get_reasoning_budget,
    validate_media,
    validate_request,
)
from dragoman.replay import PromptReuse, ReplayedPrompt, ReplayRecorder, ReplayScope, ReplayService
from dragoman.types import DEFAULT_SAMPLING, Chat, Job, Prompt, Request, Sampling, Step

PLAIN = OutputFormat()
# takes a delta; what it returns, if anything, is awaited before the next one
Deliver: TypeAlias = Callable[[Delta], Awaitable[None] | None]


class OutputReading(Struct):
    """What to listen for in the answer to a chat."""

    chat: Chat
    output_format: OutputFormat
    start: AnswerStart
    budget: int | None = None  # most tokens of thoughts, where we must see to it
    grammar_after_reasoning: str | None = (
        None  # the grammar of what follows thoughts that were cut short
    )


class PreparedPrompt(Struct):
    """A prompt as the engine takes it."""

    content: list[int] | str
    echo: str = ""  # the same as text, when the client wants it back
    reading: OutputReading | None = None
    grammar: CompiledGrammar = UNCONSTRAINED
    warnings: tuple[str, ...] = ()  # wishes that were not granted, a sentence each
    answer_start: int | None = None  # where among its tokens the answer is opened, if that is known
    reuse: PromptReuse | None = None  # how much of it was there before


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
        """What the model is called in the answer: the alias it was asked by, else its id."""
        asked = self.request.model.strip()
        return asked if asked in self.model.aliases else self.model.id

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was asked for and is not kept to, a sentence each."""
        return (
            *self.request.warnings,
            *(said for one in self.prompts for said in (*one.warnings, *one.grammar.warnings)),
        )

    @property
    def reuse(self) -> PromptReuse | None:
        """How much of a chat's prompt was there before, where that is known."""
        return self.prompts[0].reuse if self.prompts else None

    @property
    def choice_count(self) -> int:
        """How many choices the answer has."""
        return self.request.n * len(self.jobs)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens of prompts the model reads, as far as that is known."""
        return sum(len(job.prompt) for job in self.jobs if isinstance(job.prompt, list))

    def close(self) -> None:
        self.ticket.release()
        self.lease.release()


async def prepare(request: Request, models: ModelRegistry, already_admitted: bool = False) -> Plan:
    """Do all that can be the client's fault, before any header is sent.

    What goes on with an answer that has begun comes `again`: no queue is too long for it.
    """
    lease = await models.acquire(request.model)
    try:
        model = lease.model
        validate_request(request, model)
        ticket = model.gate.enter(count_choices(request) * len(request.prompts), already_admitted)
    except BaseException:
        lease.release()
        raise
    plan = Plan(request, lease, [], [], ticket, models.memory)
    try:
        for prompt in request.prompts:
            ready = await render_prompt(prompt, model, request, models)
            room = check_context_length(
                ready.content, model, "messages" if isinstance(prompt, Chat) else "prompt"
            )
            job = make_job(request, ready, model, room)
            with attribute_grammar_errors(request):
                await model.engine.admit(job)
            plan.jobs.append(job)
            plan.prompts.append(ready)
    except BaseException:
        plan.close()
        raise
    return plan


def count_choices(request: Request) -> int:
    """How many choices the engine makes for each prompt."""
    return max(request.n, request.best_of or 0)


async def render_prompt(
    prompt: Chat | Prompt, model: Model, request: Request, models: ModelRegistry
) -> PreparedPrompt:
    """What goes to the engine, and what to do with the answer."""
    if isinstance(prompt, Chat):
        return await render_chat(prompt, model, request, models)
    made = await constrain(None, request, model, AnswerStart(), models.workshop)
    content = await model.renderer.encode_prompt(prompt)
    if not content:
        raise BadRequest("The prompt is empty.", param="prompt")
    if not request.echo or isinstance(content, str):
        return PreparedPrompt(content, content if request.echo else "", grammar=made)
    return PreparedPrompt(content, make_detokenizer(model).text(content), grammar=made)


async def render_chat(
    chat: Chat, model: Model, request: Request, models: ModelRegistry
) -> PreparedPrompt:
    """Where the answer begins, in thoughts or not, is decided by this very prompt."""
    chat, unkept = drop_unsupported(chat, model)
    speech = model.output_format.for_chat(chat)
    budget = get_reasoning_budget(chat, model, request)
    voice = make_replay_scope(model, request)
    recalled = await render_with_replay(chat, voice, models.memory)
    rendered = recalled.rendered
    content = rendered.text if rendered.ids is None else rendered.ids
    begins = (
        await speech.find_answer_start(chat, rendered, model.renderer) if speech else AnswerStart()
    )
    if begins.in_reasoning and budget == 0:
        content, begins = await extend_prompt(content, (), model), AnswerStart(in_reasoning=False)
    ready = PreparedPrompt(content, warnings=unkept, answer_start=rendered.answer_start)
    if models.memory is not None and isinstance(content, list):
        ready.reuse = models.memory.reuse(content, recalled, voice)
    if not speech:
        ready.grammar = await constrain(chat, request, model, begins, models.workshop)
        return ready
    shop = models.workshop
    ready.grammar = await constrain(
        chat, request, model, begins, shop, without_reasoning=budget == 0
    )
    ready.reading = OutputReading(chat, speech, begins, budget)
    if budget is not None and ready.grammar.grammar is not None:
        closed = await constrain(chat, request, model, AnswerStart(), shop, without_reasoning=True)
        ready.reading.grammar_after_reasoning = closed.grammar
    return ready


async def render_with_replay(
    chat: Chat, voice: ReplayScope, memory: ReplayService | None
) -> ReplayedPrompt:
    """The prompt of a chat, with earlier turns as the model wrote them where that is known."""
    if memory is None:
        return ReplayedPrompt(await voice.model.renderer.render(chat))
    return await memory.render(chat, voice)


def make_replay_scope(model: Model, request: Request) -> ReplayScope:
    return ReplayScope(model, request.owner, request.lora or ())


def make_detokenizer(
    model: Model, stops: Sequence[str] = (), logprobs: bool = False, speech: OutputFormat = PLAIN
) -> Detokenizer:
    if model.tokenizer is None:
        return Detokenizer(None, frozenset(), stops, logprobs)
    return Detokenizer(
        model.tokenizer.pieces, model.get_special_tokens(speech).hidden, stops, logprobs
    )


def make_job(request: Request, ready: PreparedPrompt, model: Model, room: int | None) -> Job:
    """What the engine must do: the request's wishes over the model's over ours."""
    sampling = request.sampling.with_defaults(model.defaults.with_defaults(DEFAULT_SAMPLING))
    if room is not None:
        wanted = sampling.max_tokens
        longest = room if wanted is None else min(wanted, room)
        sampling = Sampling(max_tokens=longest).with_defaults(sampling)
    if request.prefill_only:
        sampling = Sampling(max_tokens=1).with_defaults(sampling)
    n = count_choices(request)
    cached = request.cache_prompt
    if cached is None:  # numbers differ in their last bits when part of a prompt was read before
        cached = request.sampling.seed is None
    logprobs = request.logprobs
    if n > request.n and logprobs is None:
        logprobs = 0  # the best are picked by them
    return Job(
        id=uuid.uuid4().hex,
        prompt=ready.content,
        sampling=sampling,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=ready.grammar.grammar,
        lora=request.lora or (),
        cache_prompt=cached,
    )


async def generate(plan: Plan, deliver: Deliver) -> None:
    """Run the answer and hand out what it gains. Cancelling this cancels the engine at once."""
    with attribute_grammar_errors(plan.request):
        whole = Completion()
        if plan.request.prefill_only:
            await run_jobs(plan, whole.add)
            spent = replace(whole.usage, completion=0, reasoning=0)
            await await_delivery(deliver(Delta(finish="length", usage=spent)))
        elif (plan.request.best_of or 0) > plan.request.n:
            await run_jobs(plan, whole.add)
            told = plan.request.logprobs is not None
            for delta in select_best(whole, plan.jobs[0].n, plan.request.n, told):
                await await_delivery(deliver(delta))
        else:
            await run_jobs(plan, deliver)


async def await_delivery(waiting: Awaitable[None] | None) -> None:
    if waiting is not None:
        await waiting


async def run_jobs(plan: Plan, deliver: Deliver) -> None:
    """Run the jobs and read their steps until every choice is done."""
    readers = make_readers(plan)
    notes = make_recorder(plan)
    left = len(readers)
    await plan.ticket.wait()
    async with close_at_end(start_jobs(plan, readers)) as steps:
        async for step in steps:
            if not 0 <= step.choice < len(readers):
                raise EngineFailed("The engine answered with a choice nobody asked for.")
            if step.prompt_tokens is not None or step.prompt_logprobs:
                share_prompt_counts(step, readers, plan.jobs[0].n)
            for delta in readers[step.choice].feed(step):
                if notes is not None:
                    record_delta(notes, delta, readers[delta.choice])
                waiting = deliver(delta)
                if waiting is not None:
                    await waiting
                left -= delta.finish is not None
            if not left:
                return
    raise EngineFailed("The engine stopped before the answer was finished.")


def start_jobs(plan: Plan, readers: list[Reader]) -> AsyncGenerator[Step, None]:
    """Start the jobs; one that may think only so long is watched."""
    hearing, reader = plan.prompts[0].reading, readers[0]
    if hearing is not None and hearing.budget is not None and isinstance(reader, ChatReader):
        return generate_within_budget(
            plan.model, plan.jobs[0], reader, hearing.grammar_after_reasoning
        )
    return generate_merged(plan.model.engine, plan.jobs)


def make_recorder(plan: Plan) -> ReplayRecorder | None:
    """What listens to the answer of a chat for the memory; the best of many is not kept."""
    memory, request = plan.replay, plan.request
    if memory is None or plan.reuse is None or (request.best_of or 0) > request.n:
        return None
    notes, first = (
        ReplayRecorder(
            memory, make_replay_scope(plan.model, request), request.store, request.response_id
        ),
        0,
    )
    for job, ready in zip(plan.jobs, plan.prompts, strict=True):
        if ready.reuse is not None:
            notes.start(range(first, first + job.n), ready.reuse, ready.answer_start)
        first += job.n
    return None if request.prefill_only else notes  # the prompt is known then, and that is all


def record_delta(notes: ReplayRecorder, delta: Delta, reader: Reader) -> None:
    notes.add(delta)
    if delta.finish is not None:
        notes.finish(delta.choice, reader.exact_ids, reader.generated_call_ids)


def make_readers(plan: Plan) -> list[Reader]:
    """One for each choice, prompt by prompt."""
    readers: list[Reader] = []
    for job, ready in zip(plan.jobs, plan.prompts, strict=True):
        for choice in range(job.n):
            readers.append(make_reader(plan, job, ready, len(readers), first=choice == 0))
    return readers


def make_reader(plan: Plan, job: Job, ready: PreparedPrompt, index: int, *, first: bool) -> Reader:
    model, hearing = plan.model, ready.reading
    stops = () if ready.grammar.decides_end else plan.request.stop
    if hearing is None:
        text = make_detokenizer(model, stops, job.logprobs is not None)
        return Reader(index, job, text, ready.echo, first=first)
    speech = hearing.output_format
    how = ReaderOptions(
        speech.make_parser(hearing.chat, hearing.start),
        plan.request.include_reasoning,
        model.get_special_tokens(speech).shown - speech.find_visible_marker_tokens(model.tokenizer),
        job.grammar is not None,
        ready.grammar.constrains_content,
        hearing.budget,
        speech.reasoning_close or "",
    )
    text = make_detokenizer(
        model, stops, speech=speech
    )  # logprobs go with what the parser makes of it
    return ChatReader(index, job, text, how, first=first)


def share_prompt_counts(step: Step, readers: list[Reader], choices: int) -> None:
    """What is told of a prompt, with any of its choices, is for all of them."""
    first = step.choice - step.choice % choices
    readers[first].count_prompt(step)
    for reader in readers[first : first + choices]:
        reader.set_prompt_logprobs(step.prompt_logprobs)


async def count_prompt_tokens(request: Request, models: ModelRegistry) -> int:
    """How many tokens the prompt of a chat would have."""
    chat = cast(Chat, request.prompts[0])
    with await models.acquire(request.model) as model:
        validate_media(chat, model)
        asked, _ = drop_unsupported(chat, model)
        rendered = (
            await render_with_replay(asked, make_replay_scope(model, request), models.memory)
        ).rendered
    if rendered.ids is None:
        raise Unsupported("This model's tokens cannot be counted without its tokenizer.")
    return len(rendered.ids)
