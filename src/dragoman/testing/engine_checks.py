"""The checks of an engine, one function each, in the order they run.

The first line of a check's docstring is the promise that it checks, as docs and reports show it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from dragoman.engines.invalid_steps import NO_FINISH, find_problem
from dragoman.engines.plain_jobs import MAX_TEMPERATURE, is_accepted
from dragoman.errors import BadRequest, ContextOverflow
from dragoman.testing.cache_checks import keeps_cache_scopes_apart
from dragoman.testing.delivery_checks import delivers_what_it_yields
from dragoman.testing.pooling_checks import embeds, scores
from dragoman.testing.subject import (
    PROMPTS,
    CheckSkipped,
    EngineUnderTest,
    count_tokens,
    get_finish,
    get_output,
    get_prompt_tokens,
)
from dragoman.types import Adapter, Job, Json, Logprob

# a value for each optional sampling field
SAMPLING_VALUES: dict[str, Json] = {
    "top_n_sigma": 1.0,
    "xtc_probability": 0.5,
    "dynatemp_range": 0.5,
    "mirostat": 2,
    "adaptive_target": 0.5,
    "samplers": ("top_k", "temperature"),
    "min_keep": 2,
    "dry_multiplier": 0.8,
    "dry_sequence_breakers": ("\n",),
    "typical_p": 0.9,
    "repetition_penalty": 1.1,
}
Check: TypeAlias = Callable[[EngineUnderTest], Coroutine[object, object, None]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check."""
    CHECKS.append(function)
    return function


@check
async def admits_an_ordinary_job(subject: EngineUnderTest) -> None:
    """`admit` accepts an ordinary job, and returns nothing."""
    admit: Callable[[Job], Coroutine[object, object, object]] = subject.engine.admit
    result = await subject.wait(admit(await subject.make_job()), "`admit` did not return")
    assert result is None, f"`admit` returned {result!r}; it must raise or return nothing"


@check
async def generates_an_async_generator(subject: EngineUnderTest) -> None:
    """`generate` returns an async generator at once, without being awaited."""
    generate: Callable[[Job], object] = subject.engine.generate
    stream = generate(await subject.make_job())
    if inspect.isawaitable(stream):
        if inspect.iscoroutine(stream):
            stream.close()
        raise AssertionError("`generate` must be called without `await`: write it with `yield`")
    close = getattr(stream, "aclose", None)
    is_closable = hasattr(stream, "__anext__") and close is not None
    assert is_closable, f"`generate` returned {type(stream).__name__}, which cannot be closed"
    assert close is not None
    await subject.wait(close(), "closing a job that has not started did not return")


@check
async def yields_steps(subject: EngineUnderTest) -> None:
    """Every job yields at least one step, and all are `Step`s with fields of the right type."""
    steps = await subject.collect(await subject.make_job())
    assert steps, "nothing was yielded; even an empty answer has a step with a `finish`"
    for step in steps:
        problem = find_problem(step, vocabulary=_count_vocabulary(subject))
        assert problem is None, problem


def _count_vocabulary(subject: EngineUnderTest) -> int | None:
    """Return how many tokens the engine's tokenizer has; None if only its loader has one."""
    tokenizer = getattr(subject.engine, "tokenizer", None)
    if tokenizer is None:
        return None if subject.capabilities.token_prompts else 0
    return len(tokenizer.pieces)


BASIC_CHECKS = frozenset(CHECKS)  # an engine that fails one of these cannot run the others


@check
async def finishes_each_choice_once(subject: EngineUnderTest) -> None:
    """Every choice has exactly one step with `finish`, which is its last."""
    for n in (1, 2):
        finished: set[int] = set()
        steps = await subject.collect(await subject.make_job(n=n))
        for step in steps:
            assert step.choice not in finished, (
                f"choice {step.choice} was finished and then got another step"
            )
            if step.finish is not None:
                finished.add(step.choice)
        unfinished = {step.choice for step in steps} - finished
        assert not unfinished, f"choices {sorted(unfinished)}: {NO_FINISH}"


@check
async def numbers_choices_from_zero(subject: EngineUnderTest) -> None:
    """A job of n choices yields steps of choices 0 … n-1, all of them."""
    for n in (1, 3):
        choices = {step.choice for step in await subject.collect(await subject.make_job(n=n))}
        assert choices == set(range(n)), f"n={n} was answered with choices {sorted(choices)}"


@check
async def respects_max_tokens(subject: EngineUnderTest) -> None:
    """An answer that `max_tokens` ends has that many tokens and the finish reason `length`."""
    whole = await subject.collect(await subject.make_job())
    length = count_tokens(whole)
    assert length <= 8, f"max_tokens=8 was answered with {length} tokens"
    if length == 8:
        assert get_finish(whole) == "length", f"8 of 8 tokens ended as {get_finish(whole)!r}"
    if length < 2 or not subject.deterministic:
        raise CheckSkipped("needs an answer of two tokens that comes out the same twice")
    short = await subject.collect(await subject.make_job(max_tokens=length // 2))
    count, finish = count_tokens(short), get_finish(short)
    assert count == length // 2, f"max_tokens={length // 2} was answered with {count} tokens"
    assert finish == "length", f"an answer ended by max_tokens has finish {finish!r}, not 'length'"


@check
async def repeats_a_greedy_answer(subject: EngineUnderTest) -> None:
    """Temperature 0 gives the same answer twice."""
    if not subject.deterministic:
        raise CheckSkipped("the engine does not claim it")
    first, second = [get_output(await subject.collect(await subject.make_job())) for _ in range(2)]
    assert first == second, f"two greedy runs differ: {first!r} and {second!r}"


@check
async def repeats_a_seeded_answer(subject: EngineUnderTest) -> None:
    """The same seed gives the same answer twice."""
    if not subject.deterministic or "seed" not in subject.capabilities.sampling:
        raise CheckSkipped("the engine does not claim it")
    runs = [
        await subject.collect(await subject.make_job(temperature=1.0, seed=11, n=2))
        for _ in range(2)
    ]
    for choice in range(2):
        first, second = (get_output(run, choice) for run in runs)
        assert first == second, f"choice {choice} of two runs with the same seed differs"


@check
async def counts_tokens(subject: EngineUnderTest) -> None:
    """Steps count their tokens, and one step of the job counts those of the prompt."""
    steps = await subject.collect(await subject.make_job(n=2))
    for step in steps:
        assert step.tokens >= 0, f"a step counts {step.tokens} tokens"
        if step.ids:
            assert step.tokens == len(step.ids), (
                f"a step with {len(step.ids)} ids counts {step.tokens} tokens"
            )
    for choice in range(2):
        has_output = any(get_output(steps, choice))
        assert count_tokens(steps, choice) or not has_output, (
            f"choice {choice} has text but no tokens"
        )
    counts = [step.prompt_tokens for step in steps if step.prompt_tokens is not None]
    assert len(counts) == 1, f"`prompt_tokens` was reported {len(counts)} times, not once"
    assert counts[0] > 0, f"`prompt_tokens` is {counts[0]}"
    cached = max((step.cached_tokens or 0 for step in steps), default=0)
    assert cached <= counts[0], f"{cached} cached tokens of a prompt of {counts[0]}"


@check
async def reports_logprobs_on_request(subject: EngineUnderTest) -> None:
    """One logprob for each token on request, none otherwise."""
    plain = await subject.collect(await subject.make_job())
    assert not any(step.logprobs for step in plain), "logprobs came without being requested"
    if subject.capabilities.logprobs < 0:
        raise CheckSkipped("the engine has no logprobs")
    top = min(2, subject.capabilities.logprobs)
    steps = await subject.collect(await subject.make_job(logprobs=top))
    logprobs = [logprob for step in steps for logprob in step.logprobs]
    count = count_tokens(steps)
    assert len(logprobs) == count, f"{len(logprobs)} logprobs for {count} tokens"
    for logprob in logprobs:
        _check_logprob(logprob, top)
        assert logprob.logprob is not None, "a token of the answer has no logprob"


def _check_logprob(logprob: Logprob, top: int) -> None:
    count = len(logprob.top)
    assert count <= top, f"{count} alternatives where {top} were requested"
    for entry in (logprob, *logprob.top):
        value = entry.logprob
        is_valid = value is None or (not math.isnan(value) and value <= 1e-4)
        assert is_valid, f"{value} is not the logarithm of a probability"


@check
async def reports_prompt_logprobs_on_request(subject: EngineUnderTest) -> None:
    """The tokens of the prompt are reported with their logprobs; the first one has none."""
    if not subject.capabilities.prompt_logprobs:
        raise CheckSkipped("the engine has no prompt logprobs")
    steps = await subject.collect(await subject.make_job(prompt_logprobs=1, logprobs=1))
    logprobs = [logprob for step in steps for logprob in step.prompt_logprobs]
    count = get_prompt_tokens(steps)
    assert len(logprobs) == count, f"{len(logprobs)} prompt logprobs for {count} prompt tokens"
    assert logprobs[0].logprob is None, "the first token of a prompt cannot have a logprob"
    for logprob in logprobs:
        _check_logprob(logprob, 1)


@check
async def isolates_jobs(subject: EngineUnderTest) -> None:
    """Jobs that run at once give the same answers as alone."""
    alone = [await subject.collect(await subject.make_job(prompt)) for prompt in PROMPTS]
    jobs = [await subject.make_job(prompt) for prompt in PROMPTS]
    concurrent = await asyncio.gather(*map(subject.collect, jobs))
    for prompt, first, second in zip(PROMPTS, alone, concurrent, strict=True):
        counts = [get_prompt_tokens(steps) for steps in (first, second)]
        assert counts[0] == counts[1], (
            f"the prompt {prompt!r} has {counts[0]} tokens alone and {counts[1]} beside others"
        )
        if subject.deterministic:
            outputs = [get_output(steps) for steps in (first, second)]
            assert outputs[0] == outputs[1], (
                f"{outputs[0]!r} became {outputs[1]!r} beside other jobs"
            )


@check
async def runs_plain_jobs(subject: EngineUnderTest) -> None:
    """An engine with `vocabulary_size` runs every plain job that fits, without `admit`."""
    size = subject.capabilities.vocabulary_size
    if size is None:
        raise CheckSkipped("the engine has no `vocabulary_size`")
    for token, temperature in ((0, 0.0), (size - 1, MAX_TEMPERATURE)):
        job = await subject.make_job(prompt=[token], temperature=temperature, max_tokens=1)
        assert is_accepted(job, subject.capabilities), "a prompt of one token is a plain job"
        assert get_finish(await subject.collect(job)), f"token {token} was not read"


check(delivers_what_it_yields)
check(keeps_cache_scopes_apart)


@check
async def takes_listed_sampling_fields(subject: EngineUnderTest) -> None:
    """A job with each of the listed sampling fields runs."""
    for name in sorted(subject.capabilities.sampling & SAMPLING_VALUES.keys()):
        steps = await subject.collect(await subject.make_job(**{name: SAMPLING_VALUES[name]}))
        assert get_finish(steps) is not None, f"a job with `{name}` does not finish"


@check
async def stops_at_a_stop_token(subject: EngineUnderTest) -> None:
    """A stop token ends the answer, is reported in `stop_id`, and is not part of the answer."""
    capabilities = subject.capabilities
    is_claimed = capabilities.token_prompts and "stop_token_ids" in capabilities.sampling
    if not is_claimed or not subject.deterministic:
        raise CheckSkipped("the engine does not claim it")
    ids = get_output(await subject.collect(await subject.make_job()))[1]
    position = next((index for index in range(1, len(ids)) if ids[index] not in ids[:index]), None)
    if position is None:
        raise CheckSkipped("needs an answer of two different tokens")
    stop_id = ids[position]
    steps = await subject.collect(await subject.make_job(stop_token_ids=(stop_id,)))
    output, finish = get_output(steps)[1], get_finish(steps)
    assert finish == "stop", f"an answer ended by a stop token has finish {finish!r}"
    assert output == ids[:position], f"with {stop_id} as stop token {ids} became {output}"
    reported = [step.stop_id for step in steps if step.finish is not None]
    assert reported == [stop_id], f"`stop_id` is {reported[0]}, but {stop_id} ended the answer"


@check
async def closing_cancels(subject: EngineUnderTest) -> None:
    """Closing a job half way ends it at once, and the engine still runs other jobs."""
    stream = subject.engine.generate(await subject.make_job(max_tokens=256))
    await subject.read_step(stream)
    await subject.wait(stream.aclose(), "closing a job half way did not return")
    assert await subject.read_step(stream) is None, "a step came after the job was closed"
    steps = await subject.collect(await subject.make_job())
    assert get_finish(steps), "after a closed job the next was not finished"


@check
async def cancelling_the_task_cancels(subject: EngineUnderTest) -> None:
    """Cancelling the task that reads a job ends the job, before its first step and after it."""
    for steps in (0, 1):
        started = asyncio.Event()
        job = await subject.make_job(max_tokens=256)
        task = asyncio.create_task(_read_job(subject, job, steps, started))
        await started.wait()
        await asyncio.sleep(0)  # let the reader get to its wait
        is_running = not task.done()
        task.cancel()
        await asyncio.wait({task}, timeout=subject.step_timeout)
        assert task.done(), (
            f"the job went on for {subject.step_timeout:g} s after its reader was cancelled"
        )
        if is_running:
            assert task.cancelled(), "the cancellation was swallowed; let CancelledError through"
        after = await subject.collect(await subject.make_job())
        assert get_finish(after), "after a cancelled job the next failed"


async def _read_job(subject: EngineUnderTest, job: Job, steps: int, started: asyncio.Event) -> None:
    """Read a job to its end; set the event after this many steps (0 or 1)."""
    async with aclosing(subject.engine.generate(job)) as stream:
        if not steps:
            started.set()
        async for _ in stream:
            started.set()


@check
async def rejects_long_prompts(subject: EngineUnderTest) -> None:
    """`admit` rejects a prompt that fills the context, with `ContextOverflow`."""
    context = subject.capabilities.context
    if context is None:
        raise CheckSkipped("the engine has no context length")
    job = await subject.make_job()
    prompt: list[int] | str = "so " * (context + 1)
    if isinstance(job.prompt, list):
        prompt = job.prompt * (context // len(job.prompt) + 1)
    too_long = msgspec.structs.replace(job, prompt=prompt)
    try:
        await subject.wait(subject.engine.admit(too_long), "`admit` did not return")
    except ContextOverflow:
        return
    raise AssertionError(f"a prompt longer than the context of {context} was admitted")


@check
async def rejects_unknown_adapters(subject: EngineUnderTest) -> None:
    """`admit` rejects an adapter that the engine does not have, with `BadRequest`."""
    if not subject.capabilities.lora:
        raise CheckSkipped("the engine has no adapters")
    job = await subject.make_job(lora=(Adapter("no such adapter"),))
    try:
        await subject.wait(subject.engine.admit(job), "`admit` did not return")
    except BadRequest:
        return
    raise AssertionError("an adapter that does not exist was admitted")


check(embeds)
check(scores)


@check
async def tokenizes(subject: EngineUnderTest) -> None:
    """`tokenize` returns the ids of a text."""
    if not subject.capabilities.tokenize:
        raise CheckSkipped("the engine does not tokenize")
    tokenize = getattr(subject.engine, "tokenize", None)
    assert tokenize is not None, "`capabilities` promise tokens, but there is no `tokenize`"
    ids = await subject.wait(tokenize(PROMPTS[0], False), "`tokenize` did not return")
    is_valid = (
        isinstance(ids, list) and ids and all(type(token) is int and token >= 0 for token in ids)
    )
    assert is_valid, f"`tokenize` returned {ids!r}; it must return a list of ids"


@check
async def closes_twice(subject: EngineUnderTest) -> None:
    """`aclose` can be called twice."""
    aclose = getattr(subject.engine, "aclose", None)
    if aclose is None:
        raise CheckSkipped("the engine has nothing to close")
    for _ in range(2):
        await subject.wait(aclose(), "`aclose` did not return")
