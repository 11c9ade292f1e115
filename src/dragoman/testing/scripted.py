"""An engine that says what a script tells it to, for tests, examples and benchmarks.

    engine = Scripted("Hello.")
    engine = Scripted({"weather": '<tool_call>{"name": "look"}</tool_call>', "rain": "Stay in."})
    engine = Scripted([Reply("Half an ans", raise_at=2)], pace=0.02, tokens=True)

It keeps the whole contract of an engine (choices, seeds, limits, logprobs, adapters, embeddings)
with nothing random in it: numbers are hashes of the text. Without `tokens` it speaks text and a
token is a piece of the reply; with `tokens` it speaks the ids of a `ByteTokenizer` and a token is
a byte. It notes what it was asked and how many jobs are open, and `until` waits for such a fact
to come true, so that a test of a disconnect needs no sleep. With `pace=None` nothing moves until
the test calls `tick`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, ContextOverflow, EngineDown, EngineFailed, Unsupported
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.choice_script import ChoiceScript, cut_ids, make_logprob, make_vector
from dragoman.testing.grammars import check_script
from dragoman.testing.pacing import PacedStream, StepClock
from dragoman.testing.replies import Reply, ReplySelector, Script, cut_text
from dragoman.types import Adapter, Capabilities, Job, Logprob, Step

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
    """What the engine can do and how fast it is."""

    pace: float | None = 0.0  # seconds between steps; 0 is at once, None is by hand
    tokens: bool = False  # speaks token ids instead of text
    markup: tuple[str, ...] = ()  # texts that are one token, where ids are spoken
    context: int | None = None
    slots: int | None = None  # said, not enforced: `peak` tells whether others kept to it
    grammars: bool = False  # said, not enforced: a script says what it says
    checked: bool = False  # a script that leaves the grammar of its job fails
    lora: tuple[str, ...] = ()
    embeddings: int = 16
    logprobs: int = 20
    cached: int = 0  # prompt tokens it claims to have known already

    def tokenizer(self) -> ByteTokenizer | None:
        return ByteTokenizer(markup=self.markup) if self.tokens else None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            context=self.context,
            slots=self.slots,
            token_prompts=self.tokens,
            sampling=TOKEN_SAMPLING_FIELDS if self.tokens else SAMPLING_FIELDS,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs >= 0,
            grammars=self.grammars or self.checked,
            embeddings=self.embeddings,
            lora=self.lora,
            tokenize=True,
        )


class ScriptedEngine:
    """Plays a script. `settings` are the fields of `Settings`."""

    def __init__(self, script: Script = "Hello.", **settings: Any) -> None:
        self.settings = ScriptedSettings(**settings)
        self.capabilities = self.settings.capabilities()
        self.tokenizer = self.settings.tokenizer()
        self.jobs: deque[Job] = deque(maxlen=1000)
        self.active = self.peak = 0  # jobs open now, and most at once
        self.started = self.finished = self.cancelled = self.failed = 0
        self.steps = 0
        self.closed = False
        self._casting = ReplySelector(script)
        self._ready: dict[int, list[list[Step]]] = {}
        self._cuts: dict[tuple[int, int], list[str] | list[list[int]]] = {}
        self._beats: dict[float | None, StepClock] = {}
        self._watchers: list[tuple[Callable[[ScriptedEngine], bool], asyncio.Future[None]]] = []

    # the engine's contract

    async def admit(self, job: Job) -> None:
        if self.closed:
            raise EngineDown("The engine was closed.")
        if isinstance(job.prompt, list) and self.tokenizer is None:
            raise Unsupported("This engine takes text, not token ids.", param="prompt")
        for adapter in job.lora:
            if adapter.name not in self.settings.lora:
                raise BadRequest(f"There is no adapter `{adapter.name}`.", param="lora")
        length, context = len(self._prompt_tokens(job)), self.settings.context
        if context is not None and length >= context:
            raise ContextOverflow(f"The prompt has {length} tokens; {context - 1} fit.")

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if self.closed:
            raise EngineDown("The engine was closed.")
        at, reply = self._cast(job)
        count, faulty = 0, reply.has_faults
        if self.settings.checked and job.grammar is not None:
            self._check(job, at, reply)
        with self._stage(job, reply) as turn:
            rounds = self._plain(job, at) if self._is_plain(job, reply) else None
            for steps in rounds or self._rounds(job, at, reply):
                await turn.wait()
                for step in steps:
                    if faulty:
                        await _go_wrong(reply, count)
                    count += 1
                    self._note_step()
                    yield step
            await _go_wrong(reply, count)

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        """Unit vectors that are hashes of the inputs."""
        salt = repr([(adapter.name, adapter.scale) for adapter in adapters])
        return [make_vector(f"{salt}{given!r}", self.settings.embeddings) for given in inputs]

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        if self.tokenizer is not None:
            known = self.tokenizer
            return known.encode_with_specials(text) if special else known.encode_now(text)
        return [zlib.crc32(word.encode()) % 50_000 for word in cut_text(text, "words")]

    async def aclose(self) -> None:
        self.closed = True

    # for the test that holds it

    def tick(self, times: int = 1) -> None:
        """Grant so many steps to every stream that moves by hand."""
        beat = self._beats.setdefault(None, StepClock(None))
        for _ in range(times):
            beat.grant()

    async def wait_until(self, true: Callable[[ScriptedEngine], bool], timeout: float = 10.0) -> None:
        """Return when the fact is true; `TimeoutError` when it does not come true."""
        if true(self):
            return
        watcher = (true, asyncio.get_running_loop().create_future())
        self._watchers.append(watcher)
        try:
            async with asyncio.timeout(timeout):
                await watcher[1]
        finally:
            self._watchers.remove(watcher)

    def _changed(self) -> None:
        for true, waiter in self._watchers:
            if not waiter.done() and true(self):
                waiter.set_result(None)

    def _note_step(self) -> None:
        self.steps += 1
        if self._watchers:
            self._changed()

    @contextmanager
    def _stage(self, job: Job, reply: Reply) -> Generator[PacedStream, None, None]:
        """A job's place on the beat, noted from its start to whatever end it has."""
        self.jobs.append(job)
        self.started += 1
        self.active += 1
        self.peak = max(self.peak, self.active)
        self._changed()
        how = "closed_early"
        try:
            with self._beat(reply).open() as turn:
                yield turn
            how = "finished"
        except Exception:
            how = "failed"
            raise
        finally:
            self.active -= 1
            setattr(self, how, getattr(self, how) + 1)
            self._changed()

    # picking and cutting the reply

    def _cast(self, job: Job) -> tuple[int, Reply]:
        prompt = job.prompt
        text = prompt if isinstance(prompt, str) else self._text_of(prompt)
        at = self._casting.select(text)
        if at is None:
            log.error("no reply of the script fits the prompt that ends with %r", text[-200:])
            raise EngineFailed("No reply of the script fits this prompt.")
        return at, self._casting.replies[at]

    def _text_of(self, ids: list[int]) -> str:
        if self.tokenizer is None:
            raise EngineFailed("This engine takes text, not token ids.")
        return self.tokenizer.decode(ids)

    def _beat(self, reply: Reply) -> StepClock:
        pace = self.settings.pace if reply.pace is None else reply.pace
        return self._beats.setdefault(pace, StepClock(pace))

    def _prompt_tokens(self, job: Job) -> Sequence[int | str]:
        if isinstance(job.prompt, list):
            return job.prompt
        if self.tokenizer is None:
            return cut_text(job.prompt, "words")
        return self.tokenizer.encode_with_specials(job.prompt)

    def _pieces(self, at: int, variant: int) -> list[str] | list[list[int]]:
        """A reply's text as steps, cut once: strings, or runs of ids."""
        key = (at, variant)
        if key not in self._cuts:
            reply = self._casting.replies[at]
            text = reply.list_texts()[variant]
            if self.tokenizer is None:
                if any(isinstance(piece, bytes) for piece in reply.pieces):
                    raise ValueError("pieces of bytes need an engine that speaks token ids")
                self._cuts[key] = list(reply.pieces) or cut_text(text, reply.chunks)
            else:
                self._cuts[key] = cut_ids(self.tokenizer, reply, text)
        return self._cuts[key]

    def _check(self, job: Job, at: int, reply: Reply) -> None:
        """Fail loudly if what the script is going to say does not keep to the job's grammar."""
        for choice in range(job.n):
            variant = 0 if job.sampling.greedy else (job.sampling.seed or 0) + choice
            pieces = self._pieces(at, variant % len(reply.list_texts()))
            check_script(job, pieces, self.tokenizer)

    def _is_plain(self, job: Job, reply: Reply) -> bool:
        """Whether the reply is only text, to be said once as it is."""
        sampling = job.sampling
        asked = job.logprobs is not None or job.prompt_logprobs is not None
        odd = reply.corrupts_steps or sampling.ignore_eos or sampling.min_tokens or self.settings.tokens
        return job.n == 1 and not (asked or odd or reply.variants or self.settings.context)

    def _plain(self, job: Job, at: int) -> list[list[Step]]:
        """The same steps for everyone who asks, so that a stream costs little more than itself."""
        if at not in self._ready:
            pieces = [piece for piece in self._pieces(at, 0) if isinstance(piece, str)]
            self._ready[at] = [[Step(0, piece, tokens=1)] for piece in pieces]
        said, limit = self._ready[at], job.sampling.max_tokens
        if limit is not None and limit <= len(said):
            if limit <= 0:
                return []
            last = msgspec.structs.replace(said[limit - 1][0], finish="length")
            rounds = [*said[: limit - 1], [last]]
        else:
            rounds = [*said, [Step(finish="stop")]]
        rounds[0] = [self._with_prompt(job, rounds[0][0], self._prompt_tokens(job))]
        return rounds

    def _rounds(self, job: Job, at: int, reply: Reply) -> Iterator[list[Step]]:
        """One step of every choice that is not done, beat by beat."""
        prompt = self._prompt_tokens(job)
        limit = job.sampling.max_tokens
        if self.settings.context is not None:
            room = max(1, self.settings.context - len(prompt))
            limit = room if limit is None else min(limit, room)
        voices = []
        for choice in range(job.n):
            variant = 0 if job.sampling.greedy else (job.sampling.seed or 0) + choice
            pieces = self._pieces(at, variant % len(reply.list_texts()))
            voices.append(ChoiceScript(job, choice, pieces, limit, self.tokenizer).steps())
        told = False
        while steps := [step for voice in voices if (step := next(voice, None)) is not None]:
            if not told:
                told, steps[0] = True, self._with_prompt(job, steps[0], prompt)
            if reply.corrupts_steps:
                steps = [spoilt for step in steps for spoilt in _spoil(reply, job, step)]
            yield steps

    def _with_prompt(self, job: Job, step: Step, prompt: Sequence[int | str]) -> Step:
        cached = min(self.settings.cached, len(prompt)) if job.cache_prompt else 0
        marks: list[Logprob] = []
        if job.prompt_logprobs is not None:
            marks = [
                make_logprob(token, position, job.prompt_logprobs)
                for position, token in enumerate(prompt)
            ]
            marks[:1] = [msgspec.structs.replace(mark, logprob=None, top=()) for mark in marks[:1]]
        return msgspec.structs.replace(
            step, prompt_tokens=len(prompt), cached_tokens=cached, prompt_logprobs=marks
        )


async def _go_wrong(reply: Reply, count: int) -> None:
    if reply.exit_at == count:
        os._exit(70)
    if reply.raise_at == count:
        raise reply.make_error()
    if reply.hang_at == count:
        await asyncio.get_running_loop().create_future()


def _spoil(reply: Reply, job: Job, step: Step) -> Iterator[Step]:
    """The step as it is, or as the script's kind of garbage."""
    if reply.no_finish and step.finish is not None:
        step = msgspec.structs.replace(step, finish=None, stop_id=None)
    match reply.garbage:
        case "nan_logprob":
            marks = [msgspec.structs.replace(mark, logprob=math.nan) for mark in step.logprobs]
            step = msgspec.structs.replace(step, logprobs=marks)
        case "bad_token":
            step = msgspec.structs.replace(step, text=None, ids=[1_000_000], tokens=1)
        case "bad_choice":
            step = msgspec.structs.replace(step, choice=job.n + step.choice)
    yield step
    if reply.garbage == "after_finish" and step.finish is not None:
        yield Step(step.choice, "and more", tokens=1)


def create(script: Any = "Hello.", **settings: Any) -> ScriptedEngine:
    """A scripted engine from plain data, so that it can be made in another process.

    `script` is a text, a list of texts or of `Reply` fields, or a mapping from part of a message
    to either; `settings` are the fields of `Settings`.
    """
    checked = msgspec.structs.asdict(msgspec.convert(settings, ScriptedSettings))
    if isinstance(script, Mapping):
        return ScriptedEngine(
            {when: _from_plain(reply) for when, reply in script.items()}, **checked
        )
    if isinstance(script, str | Reply):
        return ScriptedEngine(script, **checked)
    return ScriptedEngine([_from_plain(reply) for reply in script], **checked)


def _from_plain(reply: Any) -> str | Reply:
    return reply if isinstance(reply, str | Reply) else msgspec.convert(reply, Reply)
