"""One choice of an answer, made of logits.

A choice is fed by `hear` after each forward pass and says which token the next pass is to be given.
Where the prompt's own logprobs are wanted, the model gets the prompt token by token, so that each
pass tells how likely the next one was.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from msgspec.structs import replace

from dragoman.engines.logits.sampling import Floats, TokenSampler, make_logprob
from dragoman.engines.step_queue import StepQueue
from dragoman.engines.token_mask import GrammarState
from dragoman.errors import DragomanError, EngineFailed
from dragoman.types import Job, Logprob, Step, StepFinish

log = logging.getLogger("dragoman.engines.logits")


class LogitsJob:
    """Where the choices of one job come together."""

    def __init__(self, job: Job, prompt: list[int], size: int) -> None:
        self.job = job
        self.prompt = prompt
        self.size = size  # of the vocabulary
        self.left = job.n
        self.mailbox = StepQueue()


class LogitsChoice:
    """A choice that grows. `rounds` reads the state and the token, and calls `hear` and `tell`."""

    def __init__(
        self,
        answer: LogitsJob,
        number: int,
        budget: int | None,
        ends: frozenset[int],
        picker: TokenSampler,
        following: GrammarState | None,
    ) -> None:
        self.state: Any = None
        self.begun = False
        self.dropped = False  # nobody waits for it any more
        self.token = 0  # what the next pass is given
        self.error: DragomanError | None = None
        self.finish: StepFinish | None = None
        self._answer = answer
        self._number = number
        self._left = budget
        self._ends = ends
        self._picker = picker
        self._following = following
        self._steps: list[Step] = []
        self._marks: list[Logprob] = []
        first = number == 0  # the prompt is counted and reported with the first choice
        self._top = answer.job.prompt_logprobs if first else None
        self._counted: int | None = len(answer.prompt) if first else None
        self._read = len(answer.prompt) if self._top is None else 1
        if following is not None:
            following.start_mask()

    @property
    def over(self) -> bool:
        return self.dropped or self.error is not None or self.finish is not None

    @property
    def opening(self) -> list[int]:
        """What of the prompt is read at once."""
        return self._answer.prompt[: self._read]

    # in the model's thread

    def hear(self, row: Any) -> None:
        """Take the logits of a pass; whatever goes wrong is this choice's own error."""
        try:
            self._hear(self._sound(row))
        except DragomanError as error:
            self.error = error
        except Exception:
            log.exception("a choice of %s broke", self._answer.job.id)
            self.error = EngineFailed("The engine failed while it worked on this request.")

    def _sound(self, row: Any) -> Floats:
        """The logits of the tokens there are; models like to have room for a few more."""
        logits = np.asarray(row, np.float64)
        size = self._answer.size
        if logits.ndim != 1 or len(logits) < size:
            log.error("the model gave logits of shape %s for %d tokens", logits.shape, size)
            raise EngineFailed("The model gave an answer that cannot be read.")
        logits = logits[:size]
        if not np.isfinite(logits.max()):  # which is NaN if any is
            log.error("the model gave logits that are no numbers, or forbid everything")
            raise EngineFailed("The model gave an answer that cannot be read.")
        return logits

    def _hear(self, logits: Floats) -> None:
        prompt = self._answer.prompt
        if self._top is not None and self._read < len(prompt):
            self.token = prompt[self._read]
            self._marks.append(make_logprob(logits, self.token, self._top))
            self._read += 1
            return
        if self._top is not None:
            marks = [Logprob(prompt[0], None), *self._marks]
            self._top = None
            self._say(Step(self._number, prompt_logprobs=marks))
        if self._left is not None and self._left <= 0:
            self._end("length")
        elif self._following is not None and self._is_complete(self._following):
            self._end("stop")
        else:
            self._go_on(logits)

    @staticmethod
    def _is_complete(following: GrammarState) -> bool:
        following.get_mask()
        return following.must_end

    def _go_on(self, logits: Floats) -> None:
        token = self._picker.pick(logits, self._following)
        top = self._answer.job.logprobs
        marks = [] if top is None else [make_logprob(logits, token, top)]
        if token in self._ends:
            self.finish = "stop"
            self._say(Step(self._number, None, [], 1, marks, "stop", token))
            return
        self.token = token
        self.finish = self._after(token)
        self._say(Step(self._number, None, [token], 1, marks, self.finish))

    def _after(self, token: int) -> StepFinish | None:
        """Go on by a token; why the choice ends with it, if it does."""
        if self._left is not None:
            self._left -= 1
        if self._following is not None:
            self._following.advance(token)
            if self._following.must_end:
                return "stop"
        if self._left == 0:
            return "length"
        if self._following is not None:
            self._following.start_mask()
        return None

    def _end(self, finish: StepFinish) -> None:
        self.finish = finish
        self._say(Step(self._number, finish=finish))

    def _say(self, step: Step) -> None:
        if self._counted is not None:
            step = replace(step, prompt_tokens=self._counted)
            self._counted = None
        self._steps.append(step)

    # on the event loop

    def tell(self) -> None:
        """Hand out what the last pass brought."""
        if self.dropped:
            return
        answer, steps, self._steps = self._answer, self._steps, []
        if steps:
            answer.mailbox.put(steps)
        if self.error is not None:
            answer.mailbox.end(self.error)
        elif self.finish is not None:
            answer.left -= 1
            if not answer.left:
                answer.mailbox.end()
