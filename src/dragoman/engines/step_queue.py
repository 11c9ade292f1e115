"""Steps on their way to somebody who may be slow.

Steps that wait are merged, choice by choice: text is joined, ids and logprobs are put in a row, and
where one token ends and the next begins is kept. So what waits is never more than the answer, a
slow reader slows nobody, and a reader who comes late gets all of it at once. `merge` is pure and is
used on both sides of a process boundary.

A mailbox is a list and at most one future. Waking its reader costs that future and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from dragoman.errors import DragomanError
from dragoman.types import Step

MERGE_THRESHOLD = 16  # steps that may wait before they are merged


def merge_steps(steps: Iterable[Step]) -> list[Step]:
    """As few steps as say the same, choices in the order they first moved.

    What is told of one choice is kept in order; that of different choices has no order.
    """
    runs: dict[int, list[Step]] = {}
    for step in steps:
        run = runs.setdefault(step.choice, [])
        if run and _can_join(run[-1], step):
            run[-1] = _join(run[-1], step)
        else:
            run.append(step)
    return [step for run in runs.values() for step in run]


def _can_join(first: Step, second: Step) -> bool:
    """Can the two be one step without changing what a reader makes of them?"""
    if first.finish is not None:
        return False
    if second.finish is not None and not second.tokens and not second.ids:
        return False  # a limit that is met by the tokens before it comes first
    if not first.ids and not second.ids:
        return True
    if _has_one_id_per_token(first) and _has_one_id_per_token(second):
        return (first.text is None) == (second.text is None) or not (first.ids and second.ids)
    return False


def _has_one_id_per_token(step: Step) -> bool:
    """One id for each token, and one logprob for each or none at all."""
    ids = len(step.ids)
    if step.text is not None and not ids:
        return False
    return step.tokens == ids and len(step.logprobs) in (0, ids)


def _join(first: Step, second: Step) -> Step:
    text = first.text
    if second.text is not None:
        text = second.text if text is None else text + second.text
    prompt_tokens = second.prompt_tokens
    cached = second.cached_tokens
    return Step(
        second.choice,
        text,
        [*first.ids, *second.ids],
        first.tokens + second.tokens,
        [*first.logprobs, *second.logprobs],
        second.finish,
        second.stop_id,
        first.prompt_tokens if prompt_tokens is None else prompt_tokens,
        first.cached_tokens if cached is None else cached,
        [*first.prompt_logprobs, *second.prompt_logprobs],
        [*_get_spans(first), *_get_spans(second)],
    )


def _get_spans(step: Step) -> list[tuple[int, int]]:
    """Where one step's text ends and the next one's begins; ids alone say it themselves."""
    if step.spans or (step.text is None and (step.ids or not step.tokens)):
        return step.spans
    return [(len(step.text or ""), step.tokens)]


class StepQueue:
    """Steps for one reader, until they end."""

    __slots__ = ("_crowd", "_error", "_new_future", "_steps", "_wake", "ended")

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._crowd = MERGE_THRESHOLD
        self._new_future: Callable[[], asyncio.Future[None]] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._error: DragomanError | None = None
        self.ended = False

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, steps: list[Step]) -> None:
        self._steps.extend(steps)
        if len(self._steps) > self._crowd:
            self._steps = merge_steps(self._steps)
            self._crowd = max(
                MERGE_THRESHOLD, 2 * len(self._steps)
            )  # many choices cannot be merged
        self._notify()

    def end(self, error: DragomanError | None = None) -> None:
        """Nothing more comes; the first call counts."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._notify()

    async def take(self) -> list[Step]:
        """All that waits, as soon as there is some; nothing when it has ended well."""
        if not self._steps and not self.ended:
            if self._new_future is None:  # asking for the loop anew each time costs a system call
                self._new_future = asyncio.get_running_loop().create_future
            self._wake = self._new_future()
            try:
                await self._wake
            finally:
                self._wake = None
        if self._steps:
            steps, self._steps = self._steps, []
            self._crowd = MERGE_THRESHOLD
            return steps
        if self._error is not None:
            raise self._error
        return []

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
