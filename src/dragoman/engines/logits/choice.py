"""One choice of an answer, made from logits.

`process` takes the logits of a forward pass and sets the token that the next pass is given. Where
the logprobs of the prompt are requested, the model gets the prompt token by token, since each pass
shows how likely the next token was.
"""

from __future__ import annotations

import logging

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from dragoman.engines.logits.sampling import Floats, TokenSampler, make_logprob
from dragoman.engines.step_queue import StepQueue
from dragoman.engines.token_mask import GrammarState
from dragoman.errors import DragomanError, EngineFailed, convert_engine_exception
from dragoman.types import Job, Logprob, Step, StepFinish

log = logging.getLogger("dragoman.engines.logits")


class LogitsJob:
    """The data that the choices of one job share."""

    def __init__(self, job: Job, prompt: list[int], vocabulary_size: int) -> None:
        self.job = job
        self.prompt = prompt
        self.vocabulary_size = vocabulary_size
        self.open_choices = job.n
        self.queue = StepQueue()


class LogitsChoice:
    """One running choice.

    `BatchRunner` reads `state` and `next_token`, and calls `process` and `deliver`.
    """

    def __init__(
        self,
        job: LogitsJob,
        number: int,
        max_tokens: int | None,
        stop_ids: frozenset[int],
        sampler: TokenSampler,
        grammar: GrammarState | None,
    ) -> None:
        self.state: object = None
        self.has_started = False
        self.is_cancelled = False
        self.next_token = 0
        self.error: DragomanError | None = None
        self.finish: StepFinish | None = None
        self._job = job
        self._number = number
        self._remaining = max_tokens
        self._stop_ids = stop_ids
        self._sampler = sampler
        self._grammar = grammar
        self._steps: list[Step] = []
        self._prompt_logprobs: list[Logprob] = []
        is_first = number == 0  # the prompt is counted and reported with the first choice
        self._prompt_top = job.job.prompt_logprobs if is_first else None
        self._prompt_tokens: int | None = len(job.prompt) if is_first else None
        self._prompt_read = len(job.prompt) if self._prompt_top is None else 1
        if grammar is not None:
            grammar.start_mask()

    @property
    def has_ended(self) -> bool:
        return self.is_cancelled or self.error is not None or self.finish is not None

    @property
    def initial_prompt(self) -> list[int]:
        """The part of the prompt that the model gets at once."""
        return self._job.prompt[: self._prompt_read]

    # in the model's thread

    def process(self, row: ArrayLike) -> None:
        """Take the logits of a pass; an exception here is an error of this choice alone."""
        try:
            self._process(self._check_logits(row))
        except DragomanError as error:
            self.error = error
        except Exception as error:
            log.exception("a choice of %s failed", self._job.job.id)
            self.error = convert_engine_exception(error)

    def _check_logits(self, row: ArrayLike) -> Floats:
        """Return the logits of the vocabulary; models often pad theirs to a round number."""
        logits = np.asarray(row, np.float64)
        size = self._job.vocabulary_size
        if logits.ndim != 1 or len(logits) < size:
            log.error("the model returned logits of shape %s for %d tokens", logits.shape, size)
            raise EngineFailed("The model returned invalid logits.")
        logits = logits[:size]
        if not np.isfinite(logits.max()):  # which is NaN if any logit is
            log.error("the model returned logits that are not numbers, or forbid every token")
            raise EngineFailed("The model returned invalid logits.")
        return logits

    def _process(self, logits: Floats) -> None:
        prompt = self._job.prompt
        if self._prompt_top is not None and self._prompt_read < len(prompt):
            self.next_token = prompt[self._prompt_read]
            self._prompt_logprobs.append(make_logprob(logits, self.next_token, self._prompt_top))
            self._prompt_read += 1
            return
        if self._prompt_top is not None:
            logprobs = [Logprob(prompt[0], None), *self._prompt_logprobs]
            self._prompt_top = None
            self._add_step(Step(self._number, prompt_logprobs=logprobs))
        if self._remaining is not None and self._remaining <= 0:
            self._end("length")
        elif self._grammar is not None and self._is_complete(self._grammar):
            self._end("stop")
        else:
            self._sample(logits)

    @staticmethod
    def _is_complete(grammar: GrammarState) -> bool:
        grammar.get_mask()
        return grammar.must_end

    def _sample(self, logits: Floats) -> None:
        token = self._sampler.sample(logits, self._grammar)
        top = self._job.job.logprobs
        logprobs = [] if top is None else [make_logprob(logits, token, top)]
        if token in self._stop_ids:
            self.finish = "stop"
            self._add_step(Step(self._number, None, [], 1, logprobs, "stop", token))
            return
        self.next_token = token
        self.finish = self._advance(token)
        self._add_step(Step(self._number, None, [token], 1, logprobs, self.finish))

    def _advance(self, token: int) -> StepFinish | None:
        """Count a token; return why the choice ends with it, if it does."""
        if self._remaining is not None:
            self._remaining -= 1
        if self._grammar is not None:
            self._grammar.advance(token)
            if self._grammar.must_end:
                return "stop"
        if self._remaining == 0:
            return "length"
        if self._grammar is not None:
            self._grammar.start_mask()
        return None

    def _end(self, finish: StepFinish) -> None:
        self.finish = finish
        self._add_step(Step(self._number, finish=finish))

    def _add_step(self, step: Step) -> None:
        if self._prompt_tokens is not None:
            step = replace(step, prompt_tokens=self._prompt_tokens)
            self._prompt_tokens = None
        self._steps.append(step)

    # on the event loop

    def deliver(self) -> None:
        """Put the steps of the last pass into the job's queue."""
        if self.is_cancelled:
            return
        job, steps, self._steps = self._job, self._steps, []
        if steps:
            job.queue.put(steps)
        if self.error is not None:
            job.queue.end(self.error)
        elif self.finish is not None:
            job.open_choices -= 1
            if not job.open_choices:
                job.queue.end()
