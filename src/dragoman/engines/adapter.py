"""Bring your own engine.

`adapt` takes what people have and gives an `Engine`:

- an object with `admit` and `generate` is one already;
- one with only `generate` lacks a check before the start and is given one that lets all pass;
- one with only `async generate_request(obj)` is asked with a `GenerateRequest` for each choice and
  yields dicts that hold the answer so far:
  `{"text": …, "output_ids": […], "meta_info": {"finish_reason", "prompt_tokens", …}}`.
  With `yields = "delta"` on the engine, or `"delta": True` in `meta_info`, each dict holds only
  the text and ids that are new; counts are totals in either case.

An answer so far that does not begin with what was sent already cannot be told to a client, who
keeps what it has seen; that, like a field of the wrong type, is the engine's failure and is
reported as one. What exactly was wrong goes to the log.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Literal, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.merge import merge_streams
from dragoman.errors import DragomanError, EngineFailed
from dragoman.types import Capabilities, Engine, Job, Sampling, Step, StepFinish

log = logging.getLogger("dragoman.engines.adapter")

# our names of sampling fields, and those such engines know them by
SAMPLING_PARAM_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "seed": "sampling_seed",
}
FINISH_REASONS: dict[str, StepFinish] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_calls": "stop",
    "length": "length",
    "max_tokens": "length",
}
Mode: TypeAlias = Literal["cumulative", "delta"]


class GenerateRequest(Struct, kw_only=True):
    """What such an engine is asked: text or ids, and the sampling fields that were said."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] = {}
    stream: bool = True
    rid: str = ""


def adapt(engine: object) -> Engine:
    """The engine behind our interface, or a `TypeError` that says what it lacks."""
    if inspect.isclass(engine):
        raise TypeError(f"{engine.__name__} is a class; give an object of it")
    if callable(getattr(engine, "generate", None)):
        return _with_admit(engine)
    if callable(getattr(engine, "generate_request", None)):
        return RequestEngine(engine)
    raise TypeError(
        f"{type(engine).__name__} is no engine: it has neither `generate(job)` (with an optional "
        "`admit(job)`) nor `async generate_request(obj)`"
    )


def _with_admit(engine: Any) -> Engine:
    if inspect.iscoroutinefunction(engine.generate):
        raise TypeError(
            f"`generate` of {type(engine).__name__} returns a value; it must `yield` steps"
        )
    admit = getattr(engine, "admit", None)
    if admit is None:
        return GenerateOnlyEngine(engine)
    if not inspect.iscoroutinefunction(admit):
        raise TypeError(f"`admit` of {type(engine).__name__} must be `async`")
    found: Engine = engine
    return found


class GenerateOnlyEngine:
    """An engine that has only `generate`: every job is let in, one choice at a time."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def admit(self, job: Job) -> None:
        """Nothing is known that could be refused."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """Such an engine knows nothing of choices, so each is a job of its own."""
        if job.n == 1:
            stream: AsyncGenerator[Step, None] = self._engine.generate(job)
            return stream
        return merge_streams([self._choice(job, choice) for choice in range(job.n)])

    async def _choice(self, job: Job, choice: int) -> AsyncGenerator[Step, None]:
        seed = job.sampling.seed
        sampling = Sampling(seed=None if seed is None else seed + choice).with_defaults(
            job.sampling
        )
        async for step in self._engine.generate(replace(job, n=1, sampling=sampling)):
            if choice:  # a prompt is counted with its first choice
                step = replace(step, prompt_tokens=None, cached_tokens=None)
            yield replace(step, choice=choice)


class RequestEngine:
    """An engine that has only `generate_request`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._mode: Mode = "delta" if getattr(engine, "yields", None) == "delta" else "cumulative"
        said = getattr(engine, "capabilities", None)
        self.capabilities = (
            said
            if isinstance(said, Capabilities)
            else Capabilities(sampling=frozenset(SAMPLING_PARAM_NAMES), logprobs=-1)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def admit(self, job: Job) -> None:
        """Nothing is known that could be refused."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if job.n == 1:
            return self._choice(job, 0)
        return merge_streams([self._choice(job, choice) for choice in range(job.n)])

    async def aclose(self) -> None:
        close = getattr(self._engine, "aclose", None)
        if close is not None:
            await close()

    async def _choice(self, job: Job, choice: int) -> AsyncGenerator[Step, None]:
        reader = ChunkReader(job, choice, self._mode)
        async with aclosing(self._answers(_request(job, choice))) as answers:
            async for answer in answers:
                step = reader.read(answer)
                if step is None:
                    continue
                yield step
                if step.finish is not None:
                    return
        yield reader.end()

    async def _answers(self, request: GenerateRequest) -> AsyncGenerator[object, None]:
        """What the engine yields; whatever it raises is its failure."""
        try:
            stream = self._engine.generate_request(request)
            if inspect.isawaitable(stream):
                stream = await stream
            if not isinstance(stream, AsyncIterator):
                _fail("generate_request gave %s instead of yielding", type(stream).__name__)
            try:
                async for answer in stream:
                    yield answer
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except DragomanError:
            raise
        except Exception:
            log.exception("the engine raised while it worked on %s", request.rid)
            raise EngineFailed("The engine failed while it worked on this request.") from None


def _request(job: Job, choice: int) -> GenerateRequest:
    ids = None if isinstance(job.prompt, str) else job.prompt
    return GenerateRequest(
        text=job.prompt if isinstance(job.prompt, str) else None,
        input_ids=ids,
        sampling_params=build_sampling_params(job.sampling, choice),
        rid=job.id if job.n == 1 else f"{job.id}-{choice}",
    )


def build_sampling_params(sampling: Sampling, choice: int = 0) -> dict[str, Any]:
    """The fields that were said, as such engines spell them."""
    said = {
        theirs: value
        for ours, theirs in SAMPLING_PARAM_NAMES.items()
        if (value := getattr(sampling, ours)) is not None
    }
    if said.get("top_k") == 0:
        said["top_k"] = -1  # their "off"
    if "sampling_seed" in said:
        said["sampling_seed"] += choice
    if "stop_token_ids" in said:
        said["stop_token_ids"] = list(said["stop_token_ids"])
    return said


class ChunkReader:
    """Turns what one choice of such an engine yields into steps."""

    def __init__(self, job: Job, choice: int, mode: Mode) -> None:
        self._job = job
        self._choice = choice
        self._mode = mode
        self._text = ""
        self._ids: list[int] = []
        self._tokens = 0
        self._told_prompt = choice > 0  # the prompt is counted with the first choice
        self._heard = False

    def read(self, answer: object) -> Step | None:
        """The step an answer makes; None if it brought nothing new."""
        self._heard = True
        if not isinstance(answer, dict):
            _fail("the engine yielded %s instead of a dict", type(answer).__name__)
        meta = answer.get("meta_info") or {}
        if not isinstance(meta, dict):
            _fail("`meta_info` is %s instead of a dict", type(meta).__name__)
        delta = self._mode == "delta" or meta.get("delta") is True
        text = self._new_text(answer.get("text"), delta)
        ids = self._new_ids(answer.get("output_ids"), delta, strict=text is None)
        tokens = self._new_tokens(meta.get("completion_tokens"), len(ids) or bool(text))
        finish, stop_id = _finish(meta.get("finish_reason"))
        prompt_tokens = self._prompt_tokens(meta.get("prompt_tokens"))
        if not (text or tokens or finish or prompt_tokens):
            return None
        return Step(
            self._choice,
            text,
            ids if text is None else [],
            tokens,
            finish=finish,
            stop_id=stop_id,
            prompt_tokens=prompt_tokens,
        )

    def end(self) -> Step:
        """The step for an engine that ended without saying why."""
        if not self._heard:
            _fail("the engine ended %s without yielding anything", self._job.id)
        log.warning("the engine ended %s without a finish_reason", self._job.id)
        limit = self._job.sampling.max_tokens
        cut = limit is not None and self._tokens >= limit
        return Step(self._choice, finish="length" if cut else "stop")

    def _new_text(self, text: object, delta: bool) -> str | None:
        if text is None:
            return None
        if not isinstance(text, str):
            _fail("`text` is %s instead of str", type(text).__name__)
        new = text
        if not delta:
            if not text.startswith(self._text):
                _fail("`text` does not begin with the %d characters before", len(self._text))
            new, self._text = text[len(self._text) :], text
        if not new.isascii() and not _sayable(new):
            _fail("`text` holds half of a surrogate pair: %r", new)
        return new

    def _new_ids(self, ids: object, delta: bool, strict: bool) -> list[int]:
        """Ids that are new. Beside a text they are only counted, so it may have its own way."""
        if ids is None:
            return []
        if not isinstance(ids, list | tuple):
            _fail("`output_ids` is %s instead of a list", type(ids).__name__)
        known = 0 if delta else len(self._ids)
        if strict and known and list(ids[:known]) != self._ids:
            _fail("`output_ids` do not begin with the %d ids before", known)
        new = [_whole(id_, "output_ids") for id_ in ids[known:]]
        if not delta:
            self._ids += new
        return new

    def _new_tokens(self, total: object, guess: int) -> int:
        """Tokens of this step: as counted by the engine, else its ids, else one for some text."""
        new = guess if total is None else _whole(total, "completion_tokens") - self._tokens
        new = max(0, new)
        self._tokens += new
        return new

    def _prompt_tokens(self, count: object) -> int | None:
        if count is None or self._told_prompt:
            return None
        self._told_prompt = True
        return _whole(count, "prompt_tokens")


def _sayable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finish(reason: object) -> tuple[StepFinish | None, int | None]:
    """Why an answer ended, and the token that ended it where the engine says so."""
    matched = None
    if isinstance(reason, dict):
        matched = reason.get("matched")
        reason = reason.get("type")
    if reason is None:
        return None, None
    finish = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if finish is None:
        _fail("the engine ended with finish_reason %r", reason)
    return finish, matched if type(matched) is int else None


def _whole(value: object, name: str) -> int:
    """A whole number, NumPy's included; NaN, Infinity and text are none."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _fail("`%s` holds %r, which is no whole number", name, value)


def _fail(message: str, *details: object) -> NoReturn:
    log.error(message, *details)
    raise EngineFailed("The engine gave an answer that cannot be read.")
