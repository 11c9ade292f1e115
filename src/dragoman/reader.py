"""Reads one choice: an engine's steps in, deltas out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.detokenize import Detokenizer, Released
from dragoman.events import Delta, Token, Usage
from dragoman.types import Job, Logprob, Step

FINISHES = ("stop", "length")


def one_by_one(step: Step) -> Iterator[Step]:
    """A step of several tokens as steps of one: a stop is then met at the same token always."""
    if step.text is not None:
        parts = list(_texts(step)) or [step]
    elif step.tokens in (0, len(step.ids)):
        marks = step.logprobs if len(step.logprobs) == len(step.ids) else None
        parts = [
            Step(ids=[token], tokens=1, logprobs=[marks[at]] if marks else [])
            for at, token in enumerate(step.ids)
        ]
    else:
        parts = [step]
    yield from parts[:-1]
    yield replace(parts[-1], finish=step.finish, stop_id=step.stop_id)


def _texts(step: Step) -> Iterator[Step]:
    text, marks = step.text or "", step.logprobs
    for characters, tokens in step.spans:
        yield Step(text=text[:characters], tokens=tokens, logprobs=marks[:tokens])
        text, marks = text[characters:], marks[tokens:]


class Reader:
    """Reads the steps of choice `index`; `first` of its prompt also counts the prompt."""

    def __init__(self, index: int, job: Job, text: Detokenizer, echo: str, *, first: bool) -> None:
        self._index = index
        self._done = False
        self._prompt = job.prompt
        self._first = first
        self._echo = echo
        self._marks: tuple[Token, ...] = ()  # logprobs of the prompt, for `echo`
        self._text = text
        self._plain = text.plain and not echo
        self._limit = math.inf if job.sampling.max_tokens is None else job.sampling.max_tokens
        self._completion = self._cached = 0
        self._counted: int | None = None

    def feed(self, step: Step) -> list[Delta]:
        """What the choice gained, if anything; a choice that is done gains nothing."""
        if self._plain or (len(step.ids) < 2 and not step.spans):
            delta = None if self._done else self._feed(step)
            return [] if delta is None else [delta]
        parts = one_by_one(step)
        return [delta for part in parts if not self._done and (delta := self._feed(part))]

    def _feed(self, step: Step) -> Delta | None:
        self._completion += step.tokens or len(step.ids)
        over = self._completion >= self._limit  # an engine that does not count is counted here
        if self._plain and step.finish is None and not over:  # the usual case
            text = self._text.read(step)
            return Delta(self._index, text) if text else None
        released = self._text.feed(step)
        if self._echo:
            released = self._with_prompt(released)
        if released.stop is not None or step.finish is not None or over:
            return self._finish(step, released)
        if released.text or released.tokens:
            return Delta(self._index, released.text, tokens=released.tokens)
        return None

    def echo(self, marks: list[Logprob]) -> None:
        """Logprobs of the prompt, to be told with it."""
        self._marks = tuple(map(self._text.token, marks))

    def _finish(self, step: Step, released: Released) -> Delta:
        """A stop string that was met wins over whatever else ended the choice."""
        self._done = True
        text, tokens = released.text, released.tokens
        stop: str | int | None = released.stop
        finish = step.finish if step.finish in FINISHES else "length"
        if stop is None:
            rest = self._text.close()
            text, tokens, stop = text + rest.text, tokens + rest.tokens, step.stop_id
        else:
            finish = "stop"
        usage = self._usage()
        return Delta(self._index, text, tokens=tokens, finish=finish, stop=stop, usage=usage)

    def _with_prompt(self, released: Released) -> Released:
        """Put the echoed prompt before the first text."""
        echo, self._echo = self._echo, ""
        return Released(echo + released.text, self._marks + released.tokens, released.stop)

    def count_prompt(self, step: Step) -> None:
        """The engine's own count of the prompt, whichever choice it came with."""
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
