"""An engine that plays a script, for tests, examples and benchmarks.

    engine = ScriptedEngine("Hello.")
    engine = ScriptedEngine({"weather": '<tool_call>{"name": "look"}</tool_call>', "rain": "No."})
    engine = ScriptedEngine([Reply("Half an ans", raise_at=2)], pace=0.02, tokens=True)

It implements the whole contract of an engine (choices, seeds, limits, logprobs, adapters,
embeddings) and nothing in it is random: numbers are hashes of the text. Without `tokens` it yields
text, and a token is a piece of the reply; with `tokens` it yields the ids of a `ByteTokenizer`, and
a token is a byte. It records its jobs and how many of them are running, and `wait_until` waits for
a condition on these, so that a test of a disconnect needs no sleep. With `pace=None` nothing moves
until the test calls `tick`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from dragoman.engines.limits import check_adapters, check_prompt_length
from dragoman.errors import ENGINE_STOPPED, EngineDown, EngineFailed, Unsupported
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.choice_script import ChoiceScript, cut_ids, make_token_logprob, make_vector
from dragoman.testing.grammars import check_script
from dragoman.testing.replies import Reply, ReplySelector, Script, cut_text
from dragoman.testing.step_clock import ConditionWaiters, OpenStream, PacedStream, StepClock
from dragoman.types import Adapter, Capabilities, Job, Json, Logprob, Step
from dragoman.types.text_pair import TextPair

log = logging.getLogger("dragoman.testing")

# the `Sampling` fields that are honoured, or that change nothing about a script
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "repeat_last_n",
        "seed",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
    }
)
TOKEN_SAMPLING_FIELDS = SAMPLING_FIELDS | {"stop_token_ids", "logit_bias"}


class ScriptedSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The capabilities and the speed of the engine."""

    pace: float | None = 0.0  # seconds between steps; 0 is at once, None is by hand
    tokens: bool = False  # yields token ids instead of text
    markup: tuple[str, ...] = ()  # texts that are one token, with `tokens`
    context: int | None = None
    slots: int | None = None  # declared, not enforced; `peak` shows whether it was respected
    grammars: bool = False  # declared, not enforced
    check_grammars: bool = False  # a script that breaks the grammar of its job fails
    lora: tuple[str, ...] = ()
    embeddings: int = 16
    scores: bool = False
    generates: bool = True  # declared, not enforced
    logprobs: int = 20
    modalities: tuple[str, ...] = ("text",)  # of its input; jobs have the media
    cached: int = 0  # prompt tokens that it reports as cached
    sampling_defaults: bool = True  # jobs have our defaults for sampling fields that nobody set

    def create_tokenizer(self) -> ByteTokenizer | None:
        return ByteTokenizer(markup=self.markup) if self.tokens else None

    def make_capabilities(self) -> Capabilities:
        return Capabilities(
            context=self.context,
            slots=self.slots,
            token_prompts=self.tokens,
            sampling=TOKEN_SAMPLING_FIELDS if self.tokens else SAMPLING_FIELDS,
            sampling_defaults=self.sampling_defaults,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs >= 0,
            grammars=self.grammars or self.check_grammars,
            generates=self.generates,
            embeddings=self.embeddings,
            scores=self.scores,
            lora=self.lora,
            tokenize=True,
            modalities=self.modalities,
        )


class RunningJob:
    """A job that is on the clock and counted inside its block."""

    __slots__ = ("_engine", "_job", "_stream")

    def __init__(self, engine: ScriptedEngine, job: Job, stream: OpenStream) -> None:
        self._engine = engine
        self._job = job
        self._stream = stream

    def __enter__(self) -> PacedStream:
        self._engine.start_job(self._job)
        return self._stream.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.__exit__()
        self._engine.end_job(kind)


class ScriptedEngine:
    """Plays a script. `settings` are the fields of `ScriptedSettings`."""

    def __init__(self, script: Script = "Hello.", **settings: Json) -> None:
        self.settings = ScriptedSettings(**settings)
        self.capabilities = self.settings.make_capabilities()
        self.tokenizer = self.settings.create_tokenizer()
        self.jobs: deque[Job] = deque(maxlen=1000)
        self.active = self.peak = 0  # jobs that run now, and the most at once
        self.started = self.finished = self.cancelled = self.failed = 0  # jobs so far
        self.steps = 0
        self.is_closed = False
        self._selector = ReplySelector(script)
        self._prepared_steps: dict[int, list[list[Step]]] = {}
        self._cuts: dict[tuple[int, int], list[str] | list[list[int]]] = {}
        self._clocks: dict[float | None, StepClock] = {}
        self._waiters = ConditionWaiters(self)

    # the contract of an engine

    async def admit(self, job: Job) -> None:
        if self.is_closed:
            raise EngineDown(ENGINE_STOPPED)
        if isinstance(job.prompt, list) and self.tokenizer is None:
            raise Unsupported("This engine takes text, not token ids.", param="prompt")
        check_adapters(job.lora, self.settings.lora)
        if self.settings.context is not None:
            check_prompt_length(len(self._tokenize_prompt(job)), self.capabilities)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if self.is_closed:
            raise EngineDown(ENGINE_STOPPED)
        index, reply = self._select_reply(job)
        count, has_faults = 0, reply.has_faults
        if self.settings.check_grammars and job.grammar is not None:
            self._check_grammar(job, index, reply)
        with self._run_job(job, reply) as stream:
            prepared = self._prepare_steps(job, index) if self._is_plain(job, reply) else None
            for steps in prepared or self._iter_steps(job, index, reply):
                await stream.wait()
                for step in steps:
                    if has_faults:
                        await _apply_faults(reply, count)
                    count += 1
                    self._count_step()
                    yield step
            await _apply_faults(reply, count)

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        """Return vectors of length 1 that are hashes of the inputs."""
        salt = repr([(adapter.name, adapter.scale) for adapter in adapters])
        return [make_vector(f"{salt}{content!r}", self.settings.embeddings) for content in inputs]

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return numbers between 0 and 1 that are hashes of the pairs."""
        contents = [repr(pair.ids or (pair.query, pair.document)) for pair in pairs]
        return [zlib.crc32(content.encode()) / 2**32 for content in contents]

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        if self.tokenizer is None:
            return [zlib.crc32(word.encode()) % 50_000 for word in cut_text(text, "words")]
        if special:
            return self.tokenizer.encode_with_specials(text)
        return self.tokenizer.encode_now(text)

    async def aclose(self) -> None:
        self.is_closed = True

    # for the test that owns the engine

    def tick(self, times: int = 1) -> None:
        """Allow every stream this many steps, if `pace` is None."""
        clock = self._clocks.setdefault(None, StepClock(None))
        for _ in range(times):
            clock.allow()

    async def wait_until(
        self, condition: Callable[[ScriptedEngine], bool], timeout: float = 60.0
    ) -> None:
        """Return when the condition is true; raise `TimeoutError` if it does not become true."""
        await self._waiters.wait_until(condition, timeout)

    def _count_step(self) -> None:
        self.steps += 1
        self._waiters.notify()

    def _run_job(
        self, job: Job, reply: Reply, make_step: Callable[[], None] | None = None
    ) -> RunningJob:
        """Put a job on the clock, and count it from its start to its end."""
        return RunningJob(self, job, self._get_clock(reply).open_stream(make_step))

    def start_job(self, job: Job) -> None:
        """Count a job that starts."""
        self.jobs.append(job)
        self.started += 1
        self.active += 1
        self.peak = max(self.peak, self.active)
        self._waiters.notify()

    def end_job(self, kind: type[BaseException] | None) -> None:
        """Count a job that has ended, with this kind of exception if it failed."""
        self.active -= 1
        if kind is None:
            self.finished += 1
        elif issubclass(kind, Exception):
            self.failed += 1
        else:
            self.cancelled += 1
        self._waiters.notify()

    # selecting and cutting the reply

    def _select_reply(self, job: Job) -> tuple[int, Reply]:
        prompt = job.prompt
        text = prompt if isinstance(prompt, str) else self._decode(prompt)
        index = self._selector.select(text)
        if index is None:
            log.error("no reply of the script matches the prompt that ends with %r", text[-200:])
            raise EngineFailed("No reply of the script matches this prompt.")
        return index, self._selector.replies[index]

    def _decode(self, ids: list[int]) -> str:
        if self.tokenizer is None:
            raise EngineFailed("This engine takes text, not token ids.")
        return self.tokenizer.decode(ids)

    def _get_clock(self, reply: Reply) -> StepClock:
        pace = self.settings.pace if reply.pace is None else reply.pace
        return self._clocks.setdefault(pace, StepClock(pace))

    def _tokenize_prompt(self, job: Job) -> Sequence[int | str]:
        if isinstance(job.prompt, list):
            return job.prompt
        if self.tokenizer is None:
            return cut_text(job.prompt, "words")
        return self.tokenizer.encode_with_specials(job.prompt)

    def _cut_reply(self, index: int, variant: int) -> list[str] | list[list[int]]:
        """Return a reply's text as steps, cut once: strings, or runs of ids."""
        key = (index, variant)
        if key not in self._cuts:
            reply = self._selector.replies[index]
            text = reply.list_texts()[variant]
            if self.tokenizer is None:
                if any(isinstance(piece, bytes) for piece in reply.pieces):
                    raise ValueError("pieces of bytes need an engine with `tokens=True`")
                self._cuts[key] = list(reply.pieces) or cut_text(text, reply.chunks)
            else:
                self._cuts[key] = cut_ids(self.tokenizer, reply, text)
        return self._cuts[key]

    def _cut_choice(
        self, job: Job, index: int, reply: Reply, choice: int
    ) -> list[str] | list[list[int]]:
        """Return the steps of the variant that a choice plays."""
        variant = 0 if job.sampling.is_greedy else (job.sampling.seed or 0) + choice
        return self._cut_reply(index, variant % len(reply.list_texts()))

    def _check_grammar(self, job: Job, index: int, reply: Reply) -> None:
        for choice in range(job.n):
            check_script(job, self._cut_choice(job, index, reply, choice), self.tokenizer)

    def _is_plain(self, job: Job, reply: Reply) -> bool:
        """Whether the reply is only text, played once and unchanged."""
        sampling, settings = job.sampling, self.settings
        wants_logprobs = job.logprobs is not None or job.prompt_logprobs is not None
        is_endless = sampling.ignore_eos or sampling.min_tokens
        is_special = reply.corrupts_steps or reply.variants or settings.tokens or settings.context
        return job.n == 1 and not (wants_logprobs or is_endless or is_special)

    def _prepare_steps(self, job: Job, index: int) -> list[list[Step]]:
        """Return the same steps for every job, so that a stream costs little by itself."""
        if index not in self._prepared_steps:
            pieces = [piece for piece in self._cut_reply(index, 0) if isinstance(piece, str)]
            self._prepared_steps[index] = [[Step(0, piece, tokens=1)] for piece in pieces]
        prepared, limit = self._prepared_steps[index], job.sampling.max_tokens
        if limit is not None and limit <= len(prepared):
            if limit <= 0:
                return []
            last = msgspec.structs.replace(prepared[limit - 1][0], finish="length")
            steps = [*prepared[: limit - 1], [last]]
        else:
            steps = [*prepared, [Step(finish="stop")]]
        steps[0] = [self._add_prompt(job, steps[0][0], self._tokenize_prompt(job))]
        return steps

    def _iter_steps(self, job: Job, index: int, reply: Reply) -> Iterator[list[Step]]:
        """Yield one step of every unfinished choice, tick by tick."""
        prompt = self._tokenize_prompt(job)
        limit = job.sampling.max_tokens
        if self.settings.context is not None:
            free = max(1, self.settings.context - len(prompt))
            limit = free if limit is None else min(limit, free)
        choices = [
            ChoiceScript(
                job, choice, self._cut_choice(job, index, reply, choice), limit, self.tokenizer
            ).iter_steps()
            for choice in range(job.n)
        ]
        is_first = True
        while steps := [step for choice in choices if (step := next(choice, None)) is not None]:
            if is_first:
                is_first, steps[0] = False, self._add_prompt(job, steps[0], prompt)
            if reply.corrupts_steps:
                steps = [corrupt for step in steps for corrupt in _corrupt(reply, job, step)]
            yield steps

    def _add_prompt(self, job: Job, step: Step, prompt: Sequence[int | str]) -> Step:
        """Add the counts and logprobs of the prompt to a step."""
        cached = min(self.settings.cached, len(prompt)) if job.cache_prompt else 0
        logprobs: list[Logprob] = []
        if job.prompt_logprobs is not None:
            logprobs = [
                make_token_logprob(token, position, job.prompt_logprobs)
                for position, token in enumerate(prompt)
            ]
            logprobs[:1] = [
                msgspec.structs.replace(first, logprob=None, top=()) for first in logprobs[:1]
            ]
        return msgspec.structs.replace(
            step, prompt_tokens=len(prompt), cached_tokens=cached, prompt_logprobs=logprobs
        )


async def _apply_faults(reply: Reply, count: int) -> None:
    if reply.exit_at == count:
        os._exit(70)
    if reply.raise_at == count:
        raise reply.make_error()
    if reply.hang_at == count:
        await asyncio.get_running_loop().create_future()


def _corrupt(reply: Reply, job: Job, step: Step) -> Iterator[Step]:
    """Yield the step with the script's kind of garbage."""
    if reply.no_finish and step.finish is not None:
        step = msgspec.structs.replace(step, finish=None, stop_id=None)
    match reply.garbage:
        case "nan_logprob":
            logprobs = [
                msgspec.structs.replace(logprob, logprob=math.nan) for logprob in step.logprobs
            ]
            step = msgspec.structs.replace(step, logprobs=logprobs)
        case "bad_token":
            step = msgspec.structs.replace(step, text=None, ids=[1_000_000], tokens=1)
        case "bad_choice":
            step = msgspec.structs.replace(step, choice=job.n + step.choice)
    yield step
    if reply.garbage == "after_finish" and step.finish is not None:
        yield Step(step.choice, "and more", tokens=1)


def create(script: Json = "Hello.", **settings: Json) -> ScriptedEngine:
    """Create a scripted engine from plain data, which can be sent to another process.

    `script` is a text, a list of texts or of `Reply` fields, or a mapping from part of a message
    to either; `settings` are the fields of `ScriptedSettings`.
    """
    checked = msgspec.structs.asdict(msgspec.convert(settings, ScriptedSettings))
    if isinstance(script, Mapping):
        return ScriptedEngine(
            {when: _convert_reply(reply) for when, reply in script.items()}, **checked
        )
    if isinstance(script, str | Reply):
        return ScriptedEngine(script, **checked)
    return ScriptedEngine([_convert_reply(reply) for reply in script], **checked)


def _convert_reply(reply: object) -> str | Reply:
    return reply if isinstance(reply, str | Reply) else msgspec.convert(reply, Reply)
