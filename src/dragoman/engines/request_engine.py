"""Engines with only `async generate_request(obj)`, the interface of SGLang.

Such an engine gets a `GenerateRequest` for each choice and yields dicts with the answer so far:
`{"text": …, "output_ids": […], "meta_info": {"finish_reason", "prompt_tokens", …}}`. With
`yields = "delta"` on the engine, or `"delta": True` in `meta_info`, each dict holds only the new
text and ids; counts are totals in either case.

Each cumulative answer must begin with the one before it, which the client has already received. A
violation, like a field of the wrong type, is reported as `EngineFailed`; the log says what to do.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Literal, NoReturn, Protocol, TypeAlias

from msgspec import Struct

from dragoman.engines.invalid_steps import is_encodable, reject
from dragoman.engines.merge import merge_streams
from dragoman.errors import DragomanError, convert_engine_exception
from dragoman.types import Capabilities, Job, Json, Sampling, Step, StepFinish

log = logging.getLogger("dragoman.engines.adapter")

# our names of sampling fields -> the names in `sampling_params`
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
SAMPLING_FIELDS = frozenset(SAMPLING_PARAM_NAMES)
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


class InvalidChunk(Exception):
    """What is wrong with a dict that an engine yielded."""


class GenerateRequest(Struct, kw_only=True):
    """The argument of `generate_request`: text or ids, and the sampling fields that are set."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Json] = {}
    stream: bool = True
    rid: str = ""


class ChunkGenerator(Protocol):
    def generate_request(
        self, obj: GenerateRequest
    ) -> AsyncIterator[object] | Awaitable[AsyncIterator[object]]: ...


class RequestEngine:
    """An engine that has only `generate_request`."""

    def __init__(self, engine: ChunkGenerator) -> None:
        self._engine = engine
        self.class_name = type(engine).__name__
        self._mode: Mode = "delta" if getattr(engine, "yields", None) == "delta" else "cumulative"
        declared = getattr(engine, "capabilities", None)
        self.capabilities = (
            declared
            if isinstance(declared, Capabilities)
            else Capabilities(sampling=SAMPLING_FIELDS, logprobs=-1)
        )

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def admit(self, job: Job) -> None:
        """Accept every job: the engine has no check."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if job.n == 1:
            return self._generate_choice(job, 0)
        return merge_streams([self._generate_choice(job, choice) for choice in range(job.n)])

    async def aclose(self) -> None:
        close = getattr(self._engine, "aclose", None)
        if close is not None:
            await close()

    async def _generate_choice(self, job: Job, choice: int) -> AsyncGenerator[Step, None]:
        reader = ChunkReader(job, choice, self._mode)
        try:
            async with aclosing(self._stream_chunks(_build_request(job, choice))) as chunks:
                async for chunk in chunks:
                    step = reader.read(chunk)
                    if step is None:
                        continue
                    yield step
                    if step.finish is not None:
                        return
            yield reader.end()
        except InvalidChunk as problem:
            reject(self.class_name, str(problem))

    async def _stream_chunks(self, request: GenerateRequest) -> AsyncGenerator[object, None]:
        """Yield what the engine yields; an exception that is not ours is converted."""
        try:
            stream = self._engine.generate_request(request)
            if inspect.isawaitable(stream):
                stream = await stream
            if not isinstance(stream, AsyncIterator):
                _fail("returned a %s from `generate_request`: `yield` dicts", type(stream).__name__)
            try:
                async for chunk in stream:
                    yield chunk
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except (DragomanError, InvalidChunk):
            raise
        except Exception as error:
            log.exception("engine %s raised an exception during %s", self.class_name, request.rid)
            raise convert_engine_exception(error) from None


def _build_request(job: Job, choice: int) -> GenerateRequest:
    return GenerateRequest(
        text=job.prompt if isinstance(job.prompt, str) else None,
        input_ids=None if isinstance(job.prompt, str) else job.prompt,
        sampling_params=build_sampling_params(job.sampling, choice),
        rid=job.id if job.n == 1 else f"{job.id}-{choice}",
    )


def build_sampling_params(sampling: Sampling, choice: int = 0) -> dict[str, Json]:
    """Return the fields that are set, under the engine's names and in its conventions."""
    params: dict[str, Json] = {
        theirs: value
        for ours, theirs in SAMPLING_PARAM_NAMES.items()
        if (value := getattr(sampling, ours)) is not None
    }
    if sampling.top_k == 0:
        params["top_k"] = -1  # their "off"
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed + choice
    if sampling.stop_token_ids is not None:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    return params


class ChunkReader:
    """Converts the dicts that the engine yields for one choice into steps."""

    def __init__(self, job: Job, choice: int, mode: Mode) -> None:
        self._job = job
        self._choice = choice
        self._mode = mode
        self._text = ""
        self._ids: list[int] = []
        self._tokens = 0
        self._reported_prompt = choice > 0  # the prompt is counted with the first choice
        self._received_any = False

    def read(self, chunk: object) -> Step | None:
        """Return the step for a chunk; None if it holds nothing new."""
        self._received_any = True
        if not isinstance(chunk, dict):
            _fail(
                'yielded a %s: yield `{"text": ..., "meta_info": {"finish_reason": ...}}` instead',
                type(chunk).__name__,
            )
        meta = chunk.get("meta_info") or {}
        if not isinstance(meta, dict):
            _fail("yielded `meta_info` as a %s instead of a dict", type(meta).__name__)
        is_delta = self._mode == "delta" or meta.get("delta") is True
        text = self._take_text(chunk.get("text"), is_delta)
        ids = self._take_ids(chunk.get("output_ids"), is_delta, strict=text is None)
        tokens = self._count_tokens(meta.get("completion_tokens"), len(ids) or int(bool(text)))
        finish, stop_id = _parse_finish(meta.get("finish_reason"))
        prompt_tokens = self._take_prompt_tokens(meta.get("prompt_tokens"))
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
        """Return the last step of a stream that ended without a finish reason."""
        if not self._received_any:
            _fail("ended %s without yielding anything", self._job.id)
        log.warning("the engine ended %s without a finish_reason", self._job.id)
        limit = self._job.sampling.max_tokens
        reached_limit = limit is not None and self._tokens >= limit
        return Step(self._choice, finish="length" if reached_limit else "stop")

    def _take_text(self, text: object, is_delta: bool) -> str | None:
        """Return the text that is new."""
        if text is None:
            return None
        if not isinstance(text, str):
            _fail("yielded `text` as a %s instead of a str", type(text).__name__)
        new = text
        if not is_delta:
            if not text.startswith(self._text):
                _fail(
                    "yielded `text` that does not begin with the %d characters before: yield the "
                    'whole answer each time, or set `yields = "delta"`',
                    len(self._text),
                )
            new, self._text = text[len(self._text) :], text
        if not is_encodable(new):
            _fail("yielded `text` with half of a surrogate pair: %r", new)
        return new

    def _take_ids(self, ids: object, is_delta: bool, strict: bool) -> list[int]:
        """Return the ids that are new. Beside a text they are only counted, so they may differ."""
        if ids is None:
            return []
        if not isinstance(ids, list | tuple):
            _fail("yielded `output_ids` as a %s instead of a list", type(ids).__name__)
        known = 0 if is_delta else len(self._ids)
        if strict and known and list(ids[:known]) != self._ids:
            _fail("yielded `output_ids` that do not begin with the %d ids before", known)
        new = [_check_integer(token, "output_ids") for token in ids[known:]]
        if not is_delta:
            self._ids += new
        return new

    def _count_tokens(self, total: object, estimate: int) -> int:
        """Count the tokens of this step: by the engine's total, its ids, or 1 for any text."""
        if total is None:
            new = estimate
        else:
            new = max(0, _check_integer(total, "completion_tokens") - self._tokens)
        self._tokens += new
        return new

    def _take_prompt_tokens(self, count: object) -> int | None:
        """Return the length of the prompt the first time that the engine reports it."""
        if count is None or self._reported_prompt:
            return None
        self._reported_prompt = True
        return _check_integer(count, "prompt_tokens")


def _parse_finish(reason: object) -> tuple[StepFinish | None, int | None]:
    """Return why an answer ended, and the token that ended it where the engine reports it."""
    matched = None
    if isinstance(reason, dict):
        matched = reason.get("matched")
        reason = reason.get("type")
    if reason is None:
        return None, None
    finish = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if finish is None:
        _fail("yielded finish_reason %r: use one of %s", reason, ", ".join(FINISH_REASONS))
    return finish, matched if type(matched) is int else None


def _check_integer(value: object, name: str) -> int:
    """Return an integer, NumPy's included; NaN, Infinity and text are not integers."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _fail("yielded `%s` with %r, which is not an integer", name, value)


def _fail(message: str, *details: object) -> NoReturn:
    raise InvalidChunk(message % details)
