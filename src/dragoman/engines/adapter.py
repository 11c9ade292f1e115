"""Bring your own engine.

`adapt` turns the object a user has into an `Engine`:

- An object with `admit` and `generate` is an engine already.
- One with only `generate` gets an `admit` that accepts every job, and one call for each choice.
- One with only `async generate_request(obj)` is wrapped by `request_engine`.

An engine that declares no `capabilities` is assumed to honour the sampling fields listed in
`engines.UNDECLARED_SAMPLING_FIELDS`; one with only `generate_request` is assumed to honour
`request_engine.SAMPLING_FIELDS`, those that its interface has a name for. Neither list grows with
`Sampling`: a field that is added there is rejected with a 400 until the engine's own `capabilities`
list it.

What can be wrong with an engine before it runs is a `TypeError` here, at start-up. What is wrong
with the steps that it yields is found while they are read, see `invalid_steps`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Protocol, cast

from msgspec.structs import replace

from dragoman.engines.invalid_steps import find_problem, reject
from dragoman.engines.merge import merge_streams
from dragoman.engines.request_engine import ChunkGenerator, RequestEngine
from dragoman.options import suggest
from dragoman.types import Capabilities, Engine, Job, Sampling, Step


class StepGenerator(Protocol):
    def generate(self, job: Job) -> AsyncGenerator[Step, None]: ...


def adapt(engine: object) -> Engine:
    """Return the object as an `Engine`, or raise a `TypeError` that says what is wrong with it."""
    if inspect.isclass(engine):
        raise TypeError(f"{engine.__name__} is a class; pass an instance of it")
    name = type(engine).__name__
    _check_declarations(engine, name)
    if callable(getattr(engine, "generate", None)):
        _check_method(engine, name, "generate", "job")
        if inspect.iscoroutinefunction(cast(StepGenerator, engine).generate):
            raise TypeError(f"`generate` of {name} returns a value; it must `yield` steps")
        admit = getattr(engine, "admit", None)
        if admit is None:
            return GenerateOnlyEngine(cast(StepGenerator, engine))
        _check_method(engine, name, "admit", "job")
        if not inspect.iscoroutinefunction(admit):
            raise TypeError(f"`admit` of {name} must be `async`")
        return cast(Engine, engine)
    if callable(getattr(engine, "generate_request", None)):
        _check_method(engine, name, "generate_request", "obj")
        return RequestEngine(cast(ChunkGenerator, engine))
    raise TypeError(
        f"{name} is not an engine: it has neither `generate(job)` (with an "
        "optional `admit(job)`) nor `async generate_request(obj)`"
    )


def _check_method(engine: object, name: str, method: str, argument: str) -> None:
    """Reject a method that cannot be called with one argument, or that is not async."""
    function = getattr(engine, method)
    expected = f"write it as `async def {method}(self, {argument})`"
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"`{method}` of {name} is not async; {expected}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(f"`{method}` of {name} must take one argument; {expected}") from None


def _check_declarations(engine: object, name: str) -> None:
    """Reject `capabilities` of another type, or that declare what the engine cannot do."""
    declared = getattr(engine, "capabilities", None)
    if declared is None:
        return
    if not isinstance(declared, Capabilities):
        raise TypeError(
            f"`capabilities` of {name} is a {type(declared).__name__}; "
            "it must be a `dragoman.Capabilities`"
        )
    unknown = sorted(set(declared.sampling) - set(Sampling.__struct_fields__))
    if unknown:
        raise TypeError(
            f"`capabilities` of {name} list {unknown[0]!r} in `sampling`, which is not a field of "
            f"`Sampling`.{suggest(unknown[0], Sampling.__struct_fields__)}"
        )
    promises = {
        "embed": declared.embeddings,
        "score": declared.scores,
        "tokenize": declared.tokenize,
    }
    for method, is_promised in promises.items():
        if is_promised and not callable(getattr(engine, method, None)):
            raise TypeError(f"`capabilities` of {name} promise `{method}`, which it does not have")


def get_engine_name(engine: object) -> str:
    """Return the name of the class that an engine's author wrote, for the log."""
    if isinstance(engine, GenerateOnlyEngine | RequestEngine):
        return engine.class_name
    return type(engine).__name__


def start_job(engine: StepGenerator, job: Job) -> AsyncGenerator[Step, None]:
    """Start a job; an engine whose `generate` yields nothing fails the request."""
    steps: object = engine.generate(job)
    if not isinstance(steps, AsyncIterable):
        close = getattr(steps, "close", None)
        if close is not None:  # a coroutine that is never awaited would cause a warning
            close()
        reject(
            get_engine_name(engine),
            f"returned a {type(steps).__name__} from `generate`: write it as "
            "`async def generate(self, job)` with `yield`",
        )
    return cast("AsyncGenerator[Step, None]", steps)


class GenerateOnlyEngine:
    """An engine that has only `generate`: it admits every job and runs one choice per call."""

    def __init__(self, engine: StepGenerator) -> None:
        self._engine = engine
        self.class_name = type(engine).__name__

    deliver_steps = None  # it would run several choices in one call

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def admit(self, job: Job) -> None:
        """Accept every job: the engine has no check."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """Run each choice as a job of its own, since the engine may not support `n`."""
        if job.n == 1:
            return self._engine.generate(job)
        return merge_streams([self._generate_choice(job, choice) for choice in range(job.n)])

    async def _generate_choice(self, job: Job, choice: int) -> AsyncGenerator[Step, None]:
        seed = job.sampling.seed
        sampling = Sampling(seed=None if seed is None else seed + choice).with_defaults(
            job.sampling
        )
        job = replace(job, id=f"{job.id}-{choice}", n=1, sampling=sampling)
        async for step in start_job(self._engine, job):
            if not isinstance(step, Step):
                reject(self.class_name, str(find_problem(step)))
            if choice:  # the prompt is counted with the first choice
                step = replace(step, prompt_tokens=None, cached_tokens=None)
            yield replace(step, choice=choice)
