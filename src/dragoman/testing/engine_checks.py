"""The checks of an engine, one function each, in the order they are run.

The first line of a check's docstring is the promise it checks, as docs and reports show it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import BadRequest, ContextOverflow
from dragoman.testing.subject import (
    PROMPTS,
    CheckSkipped,
    EngineUnderTest,
    count_tokens,
    get_finish,
    get_output,
    get_prompt_tokens,
)
from dragoman.types import Adapter, Job, Logprob, Step

Check: TypeAlias = Callable[[EngineUnderTest], Coroutine[Any, Any, None]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check; its docstring's first line is what docs show."""
    CHECKS.append(function)
    return function


@check
async def admits_an_ordinary_job(on: EngineUnderTest) -> None:
    """`admit` lets an ordinary job pass, and returns nothing."""
    admit: Any = on.engine.admit
    answer = await on.wait(admit(await on.make_job()), "`admit` did not return")
    assert answer is None, f"`admit` returned {answer!r}; it raises or returns nothing"


@check
async def generates_an_async_generator(on: EngineUnderTest) -> None:
    """`generate` returns an async generator at once, without being awaited."""
    stream: Any = on.engine.generate(await on.make_job())
    if inspect.isawaitable(stream):
        if inspect.iscoroutine(stream):
            stream.close()
        raise AssertionError("`generate` must be called without `await`: write it with `yield`")
    closable = hasattr(stream, "__anext__") and hasattr(stream, "aclose")
    assert closable, f"`generate` returned {type(stream).__name__}, which cannot be closed"
    await on.wait(stream.aclose(), "closing a job that has not begun did not return")


@check
async def yields_steps(on: EngineUnderTest) -> None:
    """Every job yields at least one thing, and all are `Step`s with fields of the right type."""
    steps = await on.collect(await on.make_job())
    assert steps, "nothing was yielded; even an empty answer has a step with a `finish`"
    for step in steps:
        assert isinstance(step, Step), f"yielded {type(step).__name__} instead of `Step`"
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise AssertionError(f"a step has a field of the wrong type: {error}") from None


BASIC_CHECKS = frozenset(CHECKS)  # an engine that fails one of these cannot be asked anything else


@check
async def finishes_each_choice_once(on: EngineUnderTest) -> None:
    """Every choice says `finish` exactly once, and nothing of it follows."""
    for n in (1, 2):
        done: set[int] = set()
        steps = await on.collect(await on.make_job(n=n))
        for step in steps:
            assert step.choice not in done, (
                f"choice {step.choice} was finished and then got another step"
            )
            if step.finish is not None:
                done.add(step.choice)
        silent = {step.choice for step in steps} - done
        assert not silent, f"choices {sorted(silent)} ended without a `finish`"


@check
async def numbers_choices_from_zero(on: EngineUnderTest) -> None:
    """A job of n choices answers with choices 0 … n-1, all of them."""
    for n in (1, 3):
        seen = {step.choice for step in await on.collect(await on.make_job(n=n))}
        assert seen == set(range(n)), f"n={n} was answered with choices {sorted(seen)}"


@check
async def respects_max_tokens(on: EngineUnderTest) -> None:
    """An answer cut by `max_tokens` has so many tokens and says `length`."""
    whole = await on.collect(await on.make_job())
    natural = count_tokens(whole)
    assert natural <= 8, f"max_tokens=8 was answered with {natural} tokens"
    if natural == 8:
        assert get_finish(whole) == "length", f"8 of 8 tokens ended as {get_finish(whole)!r}"
    if natural < 2 or not on.deterministic:
        raise CheckSkipped("needs an answer of two tokens that comes out the same twice")
    cut = await on.collect(await on.make_job(max_tokens=natural // 2))
    count, finish = count_tokens(cut), get_finish(cut)
    assert count == natural // 2, f"max_tokens={natural // 2} was answered with {count} tokens"
    assert finish == "length", f"an answer cut by max_tokens said {finish!r} instead of 'length'"


@check
async def repeats_a_greedy_answer(on: EngineUnderTest) -> None:
    """Temperature 0 gives the same answer twice."""
    if not on.deterministic:
        raise CheckSkipped("the engine does not claim it")
    first, second = [get_output(await on.collect(await on.make_job())) for _ in range(2)]
    assert first == second, f"two greedy runs differ: {first!r} and {second!r}"


@check
async def repeats_a_seeded_answer(on: EngineUnderTest) -> None:
    """The same seed gives the same answer twice."""
    honours = on.capabilities.sampling is None or "seed" in on.capabilities.sampling
    if not on.deterministic or not honours:
        raise CheckSkipped("the engine does not claim it")
    runs = [await on.collect(await on.make_job(temperature=1.0, seed=11, n=2)) for _ in range(2)]
    for choice in range(2):
        first, second = (get_output(run, choice) for run in runs)
        assert first == second, f"choice {choice} of two runs with one seed differs"


@check
async def counts_tokens(on: EngineUnderTest) -> None:
    """Steps count their tokens, and the prompt's tokens are said once for the job."""
    steps = await on.collect(await on.make_job(n=2))
    for step in steps:
        assert step.tokens >= 0, f"a step counts {step.tokens} tokens"
        if step.ids:
            assert step.tokens == len(step.ids), (
                f"a step with {len(step.ids)} ids counts {step.tokens} tokens"
            )
    for choice in range(2):
        said = any(get_output(steps, choice))
        assert count_tokens(steps, choice) or not said, f"choice {choice} has text but no tokens"
    prompts = [step.prompt_tokens for step in steps if step.prompt_tokens is not None]
    assert len(prompts) == 1, f"`prompt_tokens` was said {len(prompts)} times, not once"
    assert prompts[0] > 0, f"`prompt_tokens` is {prompts[0]}"
    cached = max((step.cached_tokens or 0 for step in steps), default=0)
    assert cached <= prompts[0], f"{cached} cached tokens of a prompt of {prompts[0]}"


@check
async def reports_logprobs_on_request(on: EngineUnderTest) -> None:
    """One logprob for each token when asked, none otherwise."""
    plain = await on.collect(await on.make_job())
    assert not any(step.logprobs for step in plain), "logprobs came though nobody asked"
    if on.capabilities.logprobs < 0:
        raise CheckSkipped("the engine has no logprobs")
    top = min(2, on.capabilities.logprobs)
    steps = await on.collect(await on.make_job(logprobs=top))
    marks = [mark for step in steps for mark in step.logprobs]
    count = count_tokens(steps)
    assert len(marks) == count, f"{len(marks)} logprobs for {count} tokens"
    for mark in marks:
        _check_mark(mark, top)
        if mark.logprob is None:
            raise AssertionError("a token of the answer has no logprob")


def _check_mark(mark: Logprob, top: int) -> None:
    assert len(mark.top) <= top, f"{len(mark.top)} alternatives where {top} were asked for"
    for one in (mark, *mark.top):
        value = one.logprob
        sound = value is None or (not math.isnan(value) and value <= 1e-4)
        assert sound, f"{value} is not the logarithm of a probability"


@check
async def reports_prompt_logprobs_on_request(on: EngineUnderTest) -> None:
    """A prompt's own tokens are reported with their logprobs; the first one has none."""
    if not on.capabilities.prompt_logprobs:
        raise CheckSkipped("the engine has no prompt logprobs")
    steps = await on.collect(await on.make_job(prompt_logprobs=1, logprobs=1))
    marks = [mark for step in steps for mark in step.prompt_logprobs]
    count = get_prompt_tokens(steps)
    assert len(marks) == count, f"{len(marks)} prompt logprobs for {count} prompt tokens"
    assert marks[0].logprob is None, "the first token of a prompt cannot have a logprob"
    for mark in marks:
        _check_mark(mark, 1)


@check
async def isolates_jobs(on: EngineUnderTest) -> None:
    """Jobs that run at once answer as they do alone."""
    alone = [await on.collect(await on.make_job(prompt)) for prompt in PROMPTS]
    jobs = [await on.make_job(prompt) for prompt in PROMPTS]
    together = await asyncio.gather(*map(on.collect, jobs))
    for prompt, first, second in zip(PROMPTS, alone, together, strict=True):
        counts = [get_prompt_tokens(steps) for steps in (first, second)]
        assert counts[0] == counts[1], (
            f"the prompt {prompt!r} has {counts[0]} tokens alone and {counts[1]} beside others"
        )
        if on.deterministic:
            texts = [get_output(steps) for steps in (first, second)]
            assert texts[0] == texts[1], f"{texts[0]!r} became {texts[1]!r} beside other jobs"


@check
async def stops_at_a_stop_token(on: EngineUnderTest) -> None:
    """A stop token ends the answer, is named in `stop_id`, and is not part of it."""
    honours = on.capabilities.sampling is None or "stop_token_ids" in on.capabilities.sampling
    if not on.capabilities.token_prompts or not honours or not on.deterministic:
        raise CheckSkipped("the engine does not claim it")
    ids = get_output(await on.collect(await on.make_job()))[1]
    at = next((at for at in range(1, len(ids)) if ids[at] not in ids[:at]), None)
    if at is None:
        raise CheckSkipped("needs an answer of two different tokens")
    steps = await on.collect(await on.make_job(stop_token_ids=(ids[at],)))
    said, finish = get_output(steps)[1], get_finish(steps)
    assert finish == "stop", f"an answer ended by a stop token said {finish!r}"
    assert said == ids[:at], f"with {ids[at]} as stop token {ids} became {said}"
    last = [step.stop_id for step in steps if step.finish is not None]
    assert last == [ids[at]], f"`stop_id` is {last[0]}, but {ids[at]} ended the answer"


@check
async def closing_cancels(on: EngineUnderTest) -> None:
    """Closing a job half way ends it at once, and the engine goes on to answer others."""
    stream = on.engine.generate(await on.make_job(max_tokens=256))
    await on.read_step(stream)
    await on.wait(stream.aclose(), "closing a job half way did not return")
    assert await on.read_step(stream) is None, "a step came after the job was closed"
    assert get_finish(await on.collect(await on.make_job())), (
        "after a closed job the next was not finished"
    )


@check
async def cancelling_the_task_cancels(on: EngineUnderTest) -> None:
    """Cancelling the task that reads a job ends the job, before its first step and after it."""
    for steps in (0, 1):
        begun = asyncio.Event()
        job = await on.make_job(max_tokens=256)
        task = asyncio.create_task(_read(on, job, steps, begun))
        await begun.wait()
        await asyncio.sleep(0)  # let the reader get to its wait
        running = not task.done()
        task.cancel()
        await asyncio.wait({task}, timeout=on.patience)
        assert task.done(), f"the job went on for {on.patience:g} s after its reader was cancelled"
        if running:
            assert task.cancelled(), "the cancellation was swallowed; let CancelledError through"
        assert get_finish(await on.collect(await on.make_job())), (
            "after a cancelled job the next failed"
        )


async def _read(on: EngineUnderTest, job: Job, steps: int, begun: asyncio.Event) -> None:
    """Read a job to its end; tell when so many steps have come."""
    async with aclosing(on.engine.generate(job)) as stream:
        if not steps:
            begun.set()
        async for _ in stream:
            begun.set()


@check
async def rejects_long_prompts(on: EngineUnderTest) -> None:
    """`admit` refuses a prompt that fills the context, with `ContextOverflow`."""
    if on.capabilities.context is None:
        raise CheckSkipped("the engine has no context length")
    job = await on.make_job()
    prompt: list[int] | str = "so " * (on.capabilities.context + 1)
    if isinstance(job.prompt, list):
        prompt = job.prompt * (on.capabilities.context // len(job.prompt) + 1)
    too_long = msgspec.structs.replace(job, prompt=prompt)
    try:
        await on.wait(on.engine.admit(too_long), "`admit` did not return")
    except ContextOverflow:
        return
    raise AssertionError(
        f"a prompt longer than the context of {on.capabilities.context} was admitted"
    )


@check
async def rejects_unknown_adapters(on: EngineUnderTest) -> None:
    """`admit` refuses an adapter it does not have, with `BadRequest`."""
    if not on.capabilities.lora:
        raise CheckSkipped("the engine has no adapters")
    job = await on.make_job(lora=(Adapter("no such adapter"),))
    try:
        await on.wait(on.engine.admit(job), "`admit` did not return")
    except BadRequest:
        return
    raise AssertionError("an adapter that does not exist was admitted")


@check
async def embeds(on: EngineUnderTest) -> None:
    """One vector of the promised length for each input, in order, the same for the same input."""
    if not on.capabilities.embeddings:
        raise CheckSkipped("the engine does not embed")
    embed = getattr(on.engine, "embed", None)
    assert embed is not None, "`capabilities` promise embeddings, but there is no `embed`"
    inputs = [await on.make_prompt(PROMPTS[at]) for at in (0, 1, 0)]
    vectors = await on.wait(embed(inputs), "`embed` did not return")
    lengths = [len(vector) for vector in vectors]
    assert lengths == [on.capabilities.embeddings] * 3, (
        f"3 inputs gave vectors of {lengths} numbers; promised were {on.capabilities.embeddings}"
    )
    assert all(math.isfinite(value) for vector in vectors for value in vector), (
        "a vector holds something that is not a finite number"
    )
    near = [math.dist(vectors[0], vector) for vector in vectors]
    assert near[2] < 1e-2 * max(near[1], 1e-6), "one input twice gave two different vectors"


@check
async def tokenizes(on: EngineUnderTest) -> None:
    """`tokenize` gives the ids of a text."""
    if not on.capabilities.tokenize:
        raise CheckSkipped("the engine does not tokenize")
    tokenize = getattr(on.engine, "tokenize", None)
    assert tokenize is not None, "`capabilities` promise tokens, but there is no `tokenize`"
    ids = await on.wait(tokenize(PROMPTS[0], False), "`tokenize` did not return")
    sound = isinstance(ids, list) and ids and all(type(id_) is int and id_ >= 0 for id_ in ids)
    assert sound, f"`tokenize` gave {ids!r}; it gives a list of ids"


@check
async def closes_twice(on: EngineUnderTest) -> None:
    """`aclose` can be called twice."""
    aclose = getattr(on.engine, "aclose", None)
    if aclose is None:
        raise CheckSkipped("the engine has nothing to close")
    for _ in range(2):
        await on.wait(aclose(), "`aclose` did not return")
