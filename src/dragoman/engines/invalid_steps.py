"""Finds what is wrong with a step that an engine yielded, and says so to the engine's author.

The pipeline checks the first step of each choice, and any other only when reading it fails: a check
of all steps would cost time for each token. The problem goes to the log, and the client gets an
error without details.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import NoReturn, get_args, get_type_hints

import msgspec

from dragoman.errors import EngineFailed
from dragoman.types import Step, StepFinish

log = logging.getLogger("dragoman.engines")
INVALID_ANSWER = "The engine returned an invalid answer."
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Step).decode
FINISHES: tuple[StepFinish, ...] = get_args(StepFinish)
COUNTS = ("tokens", "prompt_tokens", "cached_tokens")
INSTEAD = {
    "str": "yield `dragoman.Step(text=...)` instead",
    "bytes": "decode it and yield `dragoman.Step(text=...)` instead",
    "int": "yield `dragoman.Step(ids=[...])` instead",
    "list": "yield `dragoman.Step(ids=[...])` instead",
    "dict": "yield a `dragoman.Step` instead; only `generate_request` yields dicts",
    "NoneType": 'yield a `dragoman.Step`, with `finish="stop"` in the last one',
}
NO_FINISH = 'ended without a finish: yield `dragoman.Step(finish="stop")` at the end'


def find_problem(
    step: object, choices: int | None = None, vocabulary: int | None = None
) -> str | None:
    """Say what is wrong with a step of a job with `choices` choices, and what to do about it.

    `vocabulary` is how many tokens the engine's tokenizer has; 0 is no tokenizer.
    """
    if not isinstance(step, Step):
        name = type(step).__name__
        what = "None" if step is None else f"a {name}"
        return f"yielded {what}: {INSTEAD.get(name, 'yield a `dragoman.Step` instead')}"
    if not _is_well_formed(step):
        for name, problem in _check_fields(step):
            return f"yielded a step with {name}={_shorten(getattr(step, name))}: {problem}"
    if choices is not None and not 0 <= step.choice < choices:
        return (
            f"yielded choice={step.choice} for a job with n={choices}: choices are numbered from 0"
        )
    if step.ids and step.text is None and vocabulary is not None:
        return _check_ids(step.ids, vocabulary)
    return None


def _is_well_formed(step: Step) -> bool:
    """Whether all fields have values of their types; much quicker than looking at each field."""
    try:
        decoded = decode(encode(step))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return False
    return min(decoded.tokens, decoded.prompt_tokens or 0, decoded.cached_tokens or 0) >= 0


def _check_fields(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the fields with a wrong value, and what they must be."""
    if step.finish is not None and step.finish not in FINISHES:
        yield "finish", f"it must be {' or '.join(map(repr, FINISHES))}, or None before the end"
    for name, kind in _get_field_types().items():
        try:
            msgspec.convert(getattr(step, name), kind)
        except msgspec.ValidationError as error:
            yield name, str(error).partition(" - at")[0].lower()
    for name in COUNTS:
        if (getattr(step, name) or 0) < 0:
            yield name, "a count cannot be negative"
    if step.text is not None and not is_encodable(step.text):
        yield "text", "it contains half of a surrogate pair, which is not valid text"


def is_encodable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _get_field_types() -> dict[str, object]:
    return get_type_hints(Step)


def _check_ids(ids: list[int], vocabulary: int) -> str | None:
    if not vocabulary:
        return (
            "yielded token ids, but the engine has no tokenizer: give it one as its attribute "
            "`tokenizer`, or yield `dragoman.Step(text=...)`"
        )
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is None:
        return None
    return f"yielded the token id {wrong}, but its tokenizer has the ids 0 to {vocabulary - 1}"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def log_problem(engine: str, problem: str) -> None:
    """Log a problem of an engine for its author; `engine` is the name of its class."""
    log.error("engine %s %s", engine, problem)


def reject(engine: str, problem: str) -> NoReturn:
    """Log a problem of an engine, and fail the request."""
    log_problem(engine, problem)
    error = EngineFailed(INVALID_ANSWER)
    error.add_note(problem)  # for `check_engine`; clients do not get it
    raise error
