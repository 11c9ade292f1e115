"""The outputs of vLLM as steps.

vLLM counts the token that ends an answer as part of it; here it is `Step.stop_id`. The prompt is
reported with the first step of the first choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from dragoman.engines.vllm.failures import make_finish_error
from dragoman.engines.vllm.native import Native
from dragoman.types import Job, Logprob, Step, StepFinish
from dragoman.types.sampling import MIN_LOGPROB

FINISHES: dict[str, StepFinish] = {"stop": "stop", "length": "length", "repetition": "stop"}
PutStep: TypeAlias = Callable[[Step], None]
TokenLogprobs: TypeAlias = Mapping[int, Native]  # the sampled token first


class PromptReport(Struct, frozen=True):
    """What is reported once, with the first step."""

    tokens: int
    cached: int | None = None
    logprobs: Sequence[Logprob] = ()


class ChoiceReader:
    """Makes the steps of one choice, or of several that have the same answer."""

    def __init__(self, job: Job, put: PutStep, choices: Sequence[int], drops_token: bool) -> None:
        self.job = job
        self.ids: list[int] | None = [] if job.grammar is not None else None  # for the replay
        self.stop_id: int | None = None
        self.finish: StepFinish | None = None
        self._put = put
        self._choices = choices
        self._drops_token = drops_token

    def read(
        self,
        ids: list[int],
        reason: str | None,
        logprobs: list[Logprob],
        prompt: PromptReport | None,
    ) -> None:
        """Take what is new, and put the step that holds it."""
        stop_id = None
        if reason is not None:
            self.finish = FINISHES.get(reason)
            if self.finish is None:
                raise make_finish_error(reason)
            if reason == "stop" and ids:
                stop_id = self.stop_id = ids[-1]
                ids, logprobs = ids[:-1], logprobs[: len(ids) - 1]
        if self._drops_token:
            ids, logprobs, stop_id, self.finish = [], [], None, "length"
        if self.ids is not None:
            self.ids += ids
        for choice in self._choices:
            step = Step(choice, None, ids, len(ids), logprobs, self.finish, stop_id)
            self._put(step if prompt is None or choice else _add_prompt(step, prompt))


def _add_prompt(step: Step, prompt: PromptReport) -> Step:
    return Step(
        step.choice,
        None,
        step.ids,
        step.tokens,
        step.logprobs,
        step.finish,
        step.stop_id,
        prompt.tokens,
        prompt.cached,
        list(prompt.logprobs),
    )


class RequestOutput(Protocol):
    """The attributes of vLLM's `RequestOutput` that are read."""

    outputs: Sequence[Native]
    prompt_logprobs: Native
    num_cached_tokens: int | None


class RequestReader:
    """Reads what `AsyncLLM.generate` yields for a job."""

    def __init__(self, job: Job, choices: Sequence[ChoiceReader], prompt_tokens: int) -> None:
        self._job = job
        self._prompt_tokens = prompt_tokens  # those of media included
        self._choices = choices
        self._has_reported = False

    @property
    def request_id(self) -> str:
        return self._job.id

    def read(self, output: RequestOutput) -> None:
        for choice in output.outputs:
            prompt = None
            if not self._has_reported and choice.index == 0:
                self._has_reported = True
                prompt = PromptReport(
                    self._prompt_tokens,
                    output.num_cached_tokens,
                    self._convert_prompt(output.prompt_logprobs),
                )
            ids = list(choice.token_ids)
            logprobs = [
                convert_logprobs(token, entry, self._job.logprobs or 0)
                for token, entry in zip(ids, choice.logprobs or (), strict=False)
            ]
            reason = None if choice.finish_reason is None else str(choice.finish_reason)
            self._choices[choice.index].read(ids, reason, logprobs, prompt)

    def _convert_prompt(self, entries: Native) -> Sequence[Logprob]:
        top = self._job.prompt_logprobs
        if top is None or entries is None or isinstance(self._job.prompt, str):
            return ()
        return [
            Logprob(token, None) if entry is None else convert_logprobs(token, entry, top)
            for token, entry in zip(self._job.prompt, entries, strict=True)
        ]


def convert_logprobs(token: int, entry: TokenLogprobs, top: int) -> Logprob:
    """Convert the logprobs of one position; vLLM adds the sampled token to the most likely ones."""
    ranked = sorted(entry.items(), key=lambda item: item[1].rank or 0)
    others = tuple(Logprob(other, _clamp(value.logprob)) for other, value in ranked[:top])
    return Logprob(token, _clamp(entry[token].logprob), others)


def _clamp(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
