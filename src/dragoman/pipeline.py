"""One request, start to finish. Read this file first.

`prepare` does all that can be the client's fault (find the model, render the prompt, check what
the engine can do, take a place in the queue) before any header is sent. `generate` runs the jobs
and yields what the answer gained, delta by delta. A whole answer is `Completion` fed with that very
stream. Whoever holds a `Plan` must close it; closing `generate` cancels the engine.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from msgspec import Struct

from dragoman.admission import Ticket
from dragoman.detokenize import Detokenizer, Released
from dragoman.errors import BadRequest, ContextOverflow, EngineFailed, Unsupported
from dragoman.events import Completion, Delta, Token, Usage
from dragoman.fanin import run_together
from dragoman.models import Lease, Model, Models
from dragoman.types import DEFAULT_SAMPLING, Chat, Embedder, Job, Prompt, Request, Sampling, Step


class Plan(Struct):
    """A request that is ready to run."""

    request: Request
    lease: Lease
    jobs: list[Job]
    texts: list[str]  # the prompts as text, for `echo`
    ticket: Ticket

    @property
    def model(self) -> Model:
        return self.lease.model

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return self.request.n * len(self.jobs)

    def close(self) -> None:
        self.ticket.release()
        self.lease.release()


async def prepare(request: Request, models: Models) -> Plan:
    """Do all that can be the client's fault, before any header is sent."""
    lease = await models.acquire(request.model)
    try:
        model = lease.model
        check(request, model)
        jobs, texts = [], []
        for prompt in request.prompts:
            content, text = await render(prompt, model, request)
            room = fit(content, model, "messages" if isinstance(prompt, Chat) else "prompt")
            job = make_job(request, content, model, room)
            await model.engine.admit(job)
            jobs.append(job)
            texts.append(text)
        ticket = model.gate.enter(sum(job.n for job in jobs))
    except BaseException:
        lease.release()
        raise
    return Plan(request, lease, jobs, texts, ticket)


async def render(prompt: object, model: Model, request: Request) -> tuple[list[int] | str, str]:
    """What goes to the engine, and the same as text when the client wants it echoed."""
    if isinstance(prompt, Chat):
        rendered = await model.prompt.render(prompt)
        return rendered.text if rendered.ids is None else rendered.ids, ""
    content = await model.prompt.encode(prompt)
    if not content:
        raise BadRequest("The prompt is empty.", param="prompt")
    if not request.echo:
        return content, ""
    if isinstance(content, str):
        return content, content
    return content, detokenizer(model).text(content)


def detokenizer(model: Model, stops: Sequence[str] = (), logprobs: bool = False) -> Detokenizer:
    vocabulary = model.tokenizer
    if vocabulary is None:
        return Detokenizer(None, frozenset(), stops, logprobs)
    return Detokenizer(vocabulary.pieces, vocabulary.control, stops, logprobs)


def make_job(request: Request, content: list[int] | str, model: Model, room: int | None) -> Job:
    """What the engine must do: the request's wishes over the model's over ours."""
    sampling = request.sampling.over(model.defaults.over(DEFAULT_SAMPLING))
    if room is not None:
        wanted = sampling.max_tokens
        longest = room if wanted is None else min(wanted, room)
        sampling = Sampling(max_tokens=longest).over(sampling)
    n = max(request.n, request.best_of or 0)
    logprobs = request.logprobs
    if n > request.n and logprobs is None:
        logprobs = 0  # the best are picked by them
    return Job(
        id=uuid.uuid4().hex,
        prompt=content,
        sampling=sampling,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=request.grammar,
        lora=request.lora or (),
        cache_prompt=request.cache_prompt,
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
    if request.grammar is not None and not can.grammars:
        raise Unsupported("This model's engine cannot follow a grammar.", param="grammar")
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


class Reader:
    """Reads one choice: steps in, deltas out."""

    def __init__(self, plan: Plan, job: int, choice: int) -> None:
        request, want = plan.request, plan.jobs[job]
        self.index = job * want.n + choice
        self.done = False
        self._prompt = want.prompt
        self._first = choice == 0
        self._echo = plan.texts[job]
        self._text = detokenizer(plan.model, request.stop, want.logprobs is not None)
        self._completion = self._cached = 0
        self._counted: int | None = None

    def feed(self, step: Step) -> Delta | None:
        """What the choice gained, if anything; a choice that is done gains nothing."""
        if self.done:
            return None
        self._count(step)
        released = self._text.feed(step)
        if self._echo or step.prompt_logprobs:
            released = self._with_prompt(step, released)
        if released.stop is not None or step.finish is not None:
            return self._finish(step, released)
        if released.text or released.tokens:
            return Delta(self.index, released.text, tokens=released.tokens)
        return None

    def _finish(self, step: Step, released: Released) -> Delta:
        """A stop string that was met wins over whatever else ended the choice."""
        self.done = True
        text, tokens = released.text, released.tokens
        stop: str | int | None = released.stop
        finish = step.finish or "stop"
        if stop is None:
            rest = self._text.close()
            text, tokens, stop = text + rest.text, tokens + rest.tokens, step.stop_id
        else:
            finish = "stop"
        return Delta(self.index, text, tokens=tokens, finish=finish, stop=stop, usage=self._usage())

    def _with_prompt(self, step: Step, released: Released) -> Released:
        """Put the echoed prompt before the first text."""
        echo, self._echo = self._echo, ""
        tokens = tuple(map(self._text.token, step.prompt_logprobs))
        return Released(echo + released.text, tokens + released.tokens, released.stop)

    def _count(self, step: Step) -> None:
        self._completion += step.tokens or len(step.ids)
        self._cached = step.cached_tokens or self._cached
        self._counted = step.prompt_tokens or self._counted

    def _usage(self) -> Usage:
        """A prompt is counted once, with its first choice."""
        if not self._first:
            return Usage(completion=self._completion)
        prompt = self._counted
        if prompt is None:
            prompt = len(self._prompt) if isinstance(self._prompt, list) else 0
        return Usage(prompt, self._completion, min(self._cached, prompt))


def generate(plan: Plan) -> AsyncGenerator[Delta, None]:
    """The answer as it grows. Closing this cancels the job at once."""
    best_of = plan.request.best_of or 0
    return likeliest(plan) if best_of > plan.request.n else run(plan)


async def run(plan: Plan) -> AsyncGenerator[Delta, None]:
    """Run the jobs and read their steps until every choice is done."""
    readers = [Reader(plan, at, i) for at, job in enumerate(plan.jobs) for i in range(job.n)]
    left = len(readers)
    await plan.ticket.wait()
    async with aclosing(run_together(plan.model.engine, plan.jobs)) as steps:
        async for step in steps:
            if not 0 <= step.choice < len(readers):
                raise EngineFailed("The engine answered with a choice nobody asked for.")
            delta = readers[step.choice].feed(step)
            if delta is None:
                continue
            yield delta
            if delta.finish is not None:
                left -= 1
                if not left:
                    return
    raise EngineFailed("The engine stopped before the answer was finished.")


async def likeliest(plan: Plan) -> AsyncGenerator[Delta, None]:
    """Run more choices than were asked for and keep the likeliest of each prompt."""
    whole = Completion()
    async with aclosing(run(plan)) as deltas:
        async for delta in deltas:
            whole.add(delta)
    many, keep, index = plan.jobs[0].n, plan.request.n, 0
    everything = whole.choices()
    usage = whole.usage
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
