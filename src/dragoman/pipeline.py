"""One request, start to finish. Read this file first.

`prepare` does all that can be the client's fault (find the model, render the prompt, check what
the engine can do, take a place in the queue) before any header is sent. `generate` runs the jobs
and hands out what the answer gained, delta by delta, in one loop with plain calls inside. A stream
writes each delta down, a whole answer is a `Completion` that adds them up: the same deltas, another
hand. Whoever holds a `Plan` must close it; cancelling `generate` cancels the engine.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias, cast

from msgspec import Struct

from dragoman.admission import Ticket
from dragoman.constraint.order import Made
from dragoman.constraint.workshop import Workshop
from dragoman.detokenize import Detokenizer
from dragoman.errors import BadRequest, ContextOverflow, EngineFailed, Unsupported
from dragoman.events import Completion, Delta, Token, Usage
from dragoman.fanin import closing, run_together
from dragoman.models.registry import Lease, Model, Models
from dragoman.models.speech import Beginning, Speech
from dragoman.ordering import FREE, blaming, constrain
from dragoman.reader import ChatReader, Listening, Reader
from dragoman.thinking import extended, within_budget
from dragoman.types import DEFAULT_SAMPLING, Chat, Embedder, Job, Prompt, Request, Sampling, Step
from dragoman.wishes import granted

PLAIN = Speech()
# takes a delta; what it returns, if anything, is awaited before the next one
Deliver: TypeAlias = Callable[[Delta], Awaitable[None] | None]


class Hearing(Struct):
    """What to listen for in the answer to a chat."""

    chat: Chat
    speech: Speech
    begins: Beginning
    budget: int | None = None  # most tokens of thoughts, where we must see to it
    after: str | None = None  # the grammar of what follows thoughts that were cut short


class Ready(Struct):
    """A prompt as the engine takes it."""

    content: list[int] | str
    echo: str = ""  # the same as text, when the client wants it back
    hearing: Hearing | None = None
    made: Made = FREE
    unkept: tuple[str, ...] = ()  # wishes that were not granted, a sentence each


class Plan(Struct):
    """A request that is ready to run."""

    request: Request
    lease: Lease
    jobs: list[Job]
    prompts: list[Ready]
    ticket: Ticket

    @property
    def model(self) -> Model:
        return self.lease.model

    @property
    def name(self) -> str:
        """What the model is called in the answer: the alias it was asked by, else its id."""
        asked = self.request.model.strip()
        return asked if asked in self.model.aliases else self.model.id

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was asked for and is not kept to, a sentence each."""
        return (
            *self.request.warnings,
            *(said for one in self.prompts for said in (*one.unkept, *one.made.warnings)),
        )

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return self.request.n * len(self.jobs)

    @property
    def read(self) -> int:
        """How many tokens of prompts the model reads, as far as that is known."""
        return sum(len(job.prompt) for job in self.jobs if isinstance(job.prompt, list))

    def close(self) -> None:
        self.ticket.release()
        self.lease.release()


async def prepare(request: Request, models: Models) -> Plan:
    """Do all that can be the client's fault, before any header is sent."""
    lease = await models.acquire(request.model)
    try:
        model = lease.model
        check(request, model)
        ticket = model.gate.enter(choices(request) * len(request.prompts))
    except BaseException:
        lease.release()
        raise
    plan = Plan(request, lease, [], [], ticket)
    try:
        for prompt in request.prompts:
            ready = await render(prompt, model, request, models.workshop)
            room = fit(ready.content, model, "messages" if isinstance(prompt, Chat) else "prompt")
            job = make_job(request, ready, model, room)
            with blaming(request):
                await model.engine.admit(job)
            plan.jobs.append(job)
            plan.prompts.append(ready)
    except BaseException:
        plan.close()
        raise
    return plan


def choices(request: Request) -> int:
    """How many choices the engine makes for each prompt."""
    return max(request.n, request.best_of or 0)


async def render(prompt: Chat | Prompt, model: Model, request: Request, shop: Workshop) -> Ready:
    """What goes to the engine, and what to do with the answer."""
    if isinstance(prompt, Chat):
        return await render_chat(prompt, model, request, shop)
    made = await constrain(None, request, model, Beginning(), shop)
    content = await model.prompt.encode(prompt)
    if not content:
        raise BadRequest("The prompt is empty.", param="prompt")
    if not request.echo or isinstance(content, str):
        return Ready(content, content if request.echo else "", made=made)
    return Ready(content, detokenizer(model).text(content), made=made)


async def render_chat(chat: Chat, model: Model, request: Request, shop: Workshop) -> Ready:
    """Where the answer begins, in thoughts or not, is decided by this very prompt."""
    chat, unkept = granted(chat, model)
    speech = model.speech.heard_in(chat)
    budget = budget_of(chat, model, request)
    rendered = await model.prompt.render(chat)
    content = rendered.text if rendered.ids is None else rendered.ids
    if not speech:
        made = await constrain(chat, request, model, Beginning(), shop)
        return Ready(content, made=made, unkept=unkept)
    begins = await speech.begins(chat, rendered, model.prompt)
    if begins.inside and budget == 0:
        content, begins = await extended(content, (), model), Beginning(inside=False)
    made = await constrain(chat, request, model, begins, shop)
    hearing = Hearing(chat, speech, begins, budget)
    if budget is not None and made.grammar is not None:
        closed = await constrain(chat, request, model, Beginning(inside=False), shop)
        hearing.after = closed.grammar
    return Ready(content, hearing=hearing, made=made, unkept=unkept)


def budget_of(chat: Chat, model: Model, request: Request) -> int | None:
    """Most tokens of thoughts, where the template does not see to it itself."""
    if chat.thinking_budget is None or model.prompt.keeps_budget:
        return None
    name = chat.name("thinking_budget")
    if model.speech.closing is None:
        raise Unsupported("This model's thinking cannot be limited.", param=name)
    if request.n > 1:
        raise Unsupported(f"`{name}` and `n` cannot be had together here.", param=name)
    return chat.thinking_budget


def detokenizer(
    model: Model, stops: Sequence[str] = (), logprobs: bool = False, speech: Speech = PLAIN
) -> Detokenizer:
    if model.tokenizer is None:
        return Detokenizer(None, frozenset(), stops, logprobs)
    return Detokenizer(model.tokenizer.pieces, model.control(speech).hidden, stops, logprobs)


def make_job(request: Request, ready: Ready, model: Model, room: int | None) -> Job:
    """What the engine must do: the request's wishes over the model's over ours."""
    sampling = request.sampling.over(model.defaults.over(DEFAULT_SAMPLING))
    if room is not None:
        wanted = sampling.max_tokens
        longest = room if wanted is None else min(wanted, room)
        sampling = Sampling(max_tokens=longest).over(sampling)
    n = choices(request)
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
        grammar=ready.made.grammar,
        lora=request.lora or (),
        cache_prompt=cached,
    )


def fit(content: list[int] | str, model: Model, param: str) -> int | None:
    """How many tokens are left for the answer, if that is known; none is an error."""
    context = model.capabilities.context
    if context is None or isinstance(content, str):
        return None
    room = context - len(content)
    if room <= 0:
        raise ContextOverflow(
            f"This model's maximum context length is {context} tokens. However, your {param} "
            f"resulted in {len(content)} tokens. Please shorten it.",
            param=param,
        )
    return room


def check(request: Request, model: Model) -> None:
    """Refuse by name what this model's engine cannot do."""
    can = model.capabilities
    if request.logprobs is not None and request.logprobs > can.logprobs:
        raise Unsupported(
            "This model's engine cannot report logprobs."
            if can.logprobs < 0
            else f"This model's engine reports at most {can.logprobs} alternatives a token.",
            param="logprobs" if can.logprobs < 0 else "top_logprobs",
        )
    if request.echo and request.logprobs is not None and not can.prompt_logprobs:
        raise Unsupported("This model's engine cannot report logprobs of a prompt.", param="echo")
    for adapter in request.lora or ():
        if adapter.name not in can.lora:
            known = ", ".join(can.lora) or "none"
            raise BadRequest(
                f"There is no adapter `{adapter.name}` for this model. It has: {known}.",
                param="lora",
                code="adapter_not_found",
            )
    if can.sampling is not None:
        for name in Sampling.__struct_fields__:
            said = getattr(request.sampling, name) is not None
            if said and name not in can.sampling:
                raise Unsupported(f"This model's engine cannot honour `{name}`.", param=name)


async def generate(plan: Plan, deliver: Deliver) -> None:
    """Run the answer and hand out what it gains. Cancelling this cancels the engine at once."""
    with blaming(plan.request):
        if (plan.request.best_of or 0) > plan.request.n:
            whole = Completion()
            await run(plan, whole.add)
            for delta in likeliest(plan, whole):
                await done(deliver(delta))
        else:
            await run(plan, deliver)


async def done(waiting: Awaitable[None] | None) -> None:
    if waiting is not None:
        await waiting


async def run(plan: Plan, deliver: Deliver) -> None:
    """Run the jobs and read their steps until every choice is done."""
    readers = make_readers(plan)
    left = len(readers)
    await plan.ticket.wait()
    async with closing(start(plan, readers)) as steps:
        async for step in steps:
            if not 0 <= step.choice < len(readers):
                raise EngineFailed("The engine answered with a choice nobody asked for.")
            if step.prompt_tokens is not None or step.prompt_logprobs:
                share(step, readers, plan.jobs[0].n)
            for delta in readers[step.choice].feed(step):
                waiting = deliver(delta)
                if waiting is not None:
                    await waiting
                left -= delta.finish is not None
            if not left:
                return
    raise EngineFailed("The engine stopped before the answer was finished.")


def start(plan: Plan, readers: list[Reader]) -> AsyncGenerator[Step, None]:
    """Start the jobs; one that may think only so long is watched."""
    hearing, reader = plan.prompts[0].hearing, readers[0]
    if hearing is not None and hearing.budget is not None and isinstance(reader, ChatReader):
        return within_budget(plan.model, plan.jobs[0], reader, hearing.after)
    return run_together(plan.model.engine, plan.jobs)


def make_readers(plan: Plan) -> list[Reader]:
    """One for each choice, prompt by prompt."""
    readers: list[Reader] = []
    for job, ready in zip(plan.jobs, plan.prompts, strict=True):
        for choice in range(job.n):
            readers.append(make_reader(plan, job, ready, len(readers), first=choice == 0))
    return readers


def make_reader(plan: Plan, job: Job, ready: Ready, index: int, *, first: bool) -> Reader:
    model, hearing = plan.model, ready.hearing
    stops = () if ready.made.ends else plan.request.stop
    if hearing is None:
        text = detokenizer(model, stops, job.logprobs is not None)
        return Reader(index, job, text, ready.echo, first=first)
    speech = hearing.speech
    how = Listening(
        speech.parser(hearing.chat, hearing.begins),
        plan.request.include_reasoning,
        model.control(speech).shown - speech.kept(model.tokenizer),
        job.grammar is not None,
        ready.made.shaped,
        hearing.budget,
        speech.closing or "",
    )
    text = detokenizer(model, stops, speech=speech)  # logprobs go with what the parser makes of it
    return ChatReader(index, job, text, how, first=first)


def share(step: Step, readers: list[Reader], choices: int) -> None:
    """What is told of a prompt, with any of its choices, is for all of them."""
    first = step.choice - step.choice % choices
    readers[first].count_prompt(step)
    for reader in readers[first : first + choices]:
        reader.echo(step.prompt_logprobs)


def likeliest(plan: Plan, whole: Completion) -> Iterator[Delta]:
    """Of more choices than were asked for, the likeliest of each prompt."""
    many, keep, index = plan.jobs[0].n, plan.request.n, 0
    everything, usage = whole.choices(), whole.usage
    for at in range(0, len(everything), many):
        ranked = sorted(everything[at : at + many], key=lambda c: -likelihood(c.tokens))
        for choice in ranked[:keep]:
            tokens = tuple(choice.tokens) if plan.request.logprobs is not None else ()
            yield Delta(
                index,
                choice.text,
                tokens=tokens,
                finish=choice.finish,
                stop=choice.stop,
                usage=usage,
            )
            index, usage = index + 1, Usage()


def likelihood(tokens: list[Token]) -> float:
    """Mean logprob of a choice; one that said nothing is the least likely."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else float("-inf")


async def embed(
    name: str, inputs: Sequence[str | list[int]], models: Models
) -> tuple[str, list[list[float]], Usage]:
    """Vectors of the inputs, the model that made them, and what they cost."""
    with await models.acquire(name) as model:
        if not model.capabilities.embeddings:
            raise Unsupported("This model's engine cannot embed.", param="model")
        contents = []
        for one in inputs:
            try:
                content = await model.prompt.encode(Prompt(content=one))
            except BadRequest as error:
                error.param = "input"
                raise
            fit(content, model, "input")
            contents.append(content)
        embedder = cast(Embedder, model.engine)
        with model.gate.enter(1) as ticket:
            await ticket.wait()
            vectors = await embedder.embed(contents)
    spent = sum(len(content) for content in contents if isinstance(content, list))
    return model.id, vectors, Usage(prompt=spent)
