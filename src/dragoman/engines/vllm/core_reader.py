"""The fast path: reads the outputs of vLLM's engine core in place of `AsyncLLM`.

`AsyncLLM` has a task that reads the outputs of each engine step, builds objects for each choice,
and wakes one task per choice. This reader replaces that task. It makes steps from the outputs of
the requests that it started itself, without waking anyone, and hands all other outputs to
`AsyncLLM` as before: those of requests for logprobs, and of embeddings.

It uses parts of vLLM that are not its public interface. So `attach` checks that they exist and
generates one token; if anything fails, the engine continues without this reader.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import time
from collections.abc import Sequence

from dragoman.engines import EngineDied
from dragoman.engines.vllm.failures import convert_failure
from dragoman.engines.vllm.native import Native
from dragoman.engines.vllm.outputs import ChoiceReader, PromptReport
from dragoman.engines.vllm.statistics import SchedulerStatistics
from dragoman.errors import DragomanError
from dragoman.types import Step

log = logging.getLogger("dragoman.vllm")

TEST_SECONDS = 60.0  # for the first token
REASONS = ("stop", "length", "abort", "error", "repetition")  # by their numbers in vLLM
# methods of the parts of `AsyncLLM` that are used here
METHODS = {
    "engine_core": ("get_output_async", "add_request_async", "abort_requests_async"),
    "input_processor": ("process_inputs", "assign_request_id"),
    "output_processor": ("process_outputs", "propagate_error", "update_scheduler_stats"),
}


class CoreRequest:
    """A request that the engine core works on: one choice, or several with the same answer."""

    def __init__(self, reader: ChoiceReader, prompt_tokens: int | None) -> None:
        self.reader = reader
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._prompt_tokens = prompt_tokens  # until it is reported

    def read(self, output: Native) -> bool:
        """Take the output of an engine step; return whether it was the last one."""
        prompt = None
        if self._prompt_tokens is not None:
            prompt = PromptReport(self._prompt_tokens, _count_cached(output))
            self._prompt_tokens = None
        reason = output.finish_reason
        try:
            self.reader.read(
                output.new_token_ids, None if reason is None else REASONS[reason], [], prompt
            )
        except DragomanError as error:
            self.fail(error)
            return True
        if reason is None:
            return False
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class CoreReader:
    """Reads the outputs of the engine core; `run` starts a request and waits for its end."""

    def __init__(self, llm: Native, statistics: SchedulerStatistics) -> None:
        self._llm = llm
        self._core = llm.engine_core
        self._statistics = statistics
        self._requests: dict[str, CoreRequest] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks_supported: Native = ()
        self.step_seconds = 0.0  # between two engine steps, decaying
        self._last_step = 0.0

    @classmethod
    async def attach(
        cls, llm: Native, statistics: SchedulerStatistics, make_test: Native
    ) -> CoreReader | None:
        """Replace the task of `AsyncLLM`; None if this version of vLLM does not allow it.

        `make_test` returns a prompt and parameters for one token.
        """
        if (missing := find_missing(llm)) is not None:
            log.warning("reading outputs through AsyncLLM: this vLLM has no `%s`", missing)
            return None
        reader = cls(llm, statistics)
        try:
            reader._tasks_supported = await llm.get_supported_tasks()
            reader.start()
            await asyncio.wait_for(reader._test(make_test), TEST_SECONDS)
        except Exception as error:
            log.warning("reading outputs through AsyncLLM: %r", error)
            reader.detach()
            return None
        return reader

    def start(self) -> None:
        handler = self._llm.output_handler
        if handler is not None:
            handler.cancel()
        # `AsyncLLM` starts its own task only if there is none, and is alive as long as it runs.
        self._task = self._llm.output_handler = asyncio.create_task(self._read_outputs())

    def detach(self) -> None:
        """Let `AsyncLLM` read the outputs again, from its next request on."""
        if self._task is not None:
            self._task.cancel()
        self._llm.output_handler = None

    async def _test(self, make_test: Native) -> None:
        steps: list[Step] = []
        job, prompt, params = make_test()
        await self.run([ChoiceReader(job, steps.append, [0], False)], prompt, params)
        if not steps or steps[-1].finish is None or steps[0].prompt_tokens is None:
            raise ValueError("the first token did not arrive")

    async def run(
        self, readers: Sequence[ChoiceReader], prompt: Native, params: Native, **options: Native
    ) -> None:
        """Run a request for several choices; cancelling cancels it at once."""
        if self._task is None or self._task.done():
            raise EngineDied("the outputs of vLLM are no longer read")
        job = readers[0].job
        request = self._llm.input_processor.process_inputs(
            job.id, prompt, params, supported_tasks=self._tasks_supported, **options
        )
        self._llm.input_processor.assign_request_id(request)
        started: dict[str, CoreRequest] = {}
        prompt_tokens = len(prompt["prompt_token_ids"])  # those of media included
        try:
            for number, reader in enumerate(readers):
                choice = _copy_request(request, number, len(readers))
                entry = CoreRequest(reader, prompt_tokens if number == 0 else None)
                started[choice.request_id] = self._requests[choice.request_id] = entry
                await self._core.add_request_async(choice)
            for entry in started.values():
                await entry.done
        finally:
            unfinished = [name for name, entry in started.items() if not entry.done.done()]
            for name in started:
                self._requests.pop(name, None)
            if unfinished:
                await asyncio.shield(self._core.abort_requests_async(unfinished))

    async def _read_outputs(self) -> None:
        processor = self._llm.output_processor
        try:
            while True:
                outputs = await self._core.get_output_async()
                others = self._dispatch(outputs.outputs)
                if others:
                    processed = processor.process_outputs(others, outputs.timestamp, None)
                    if processed.reqs_to_abort:
                        await self._core.abort_requests_async(processed.reqs_to_abort)
                if outputs.scheduler_stats is not None:
                    processor.update_scheduler_stats(outputs.scheduler_stats)
                    self._statistics.record(outputs.scheduler_stats, outputs.engine_index)
        except Exception as error:
            log.error("vLLM's engine core failed: %r", error)
            failure = convert_failure(error)
            for request in tuple(self._requests.values()):
                request.fail(failure)
            processor.propagate_error(error)

    def _dispatch(self, outputs: Sequence[Native]) -> list[Native]:
        """Read the outputs of own requests; return the others."""
        if not outputs:
            return []
        now = time.monotonic()
        if self._last_step:
            self.step_seconds = max(min(now - self._last_step, 5.0), 0.9 * self.step_seconds)
        self._last_step = now if self._requests else 0.0
        others = []
        for output in outputs:
            request = self._requests.get(output.request_id)
            if request is None:
                others.append(output)
            elif request.read(output):
                del self._requests[output.request_id]
        return others


def find_missing(llm: Native) -> str | None:
    """Return the first part of vLLM that is needed here and is not there."""
    if not hasattr(llm, "output_handler"):
        return "output_handler"
    for part, methods in METHODS.items():
        for method in methods:
            if not callable(getattr(getattr(llm, part, None), method, None)):
                return f"{part}.{method}"
    parameters = inspect.signature(llm.input_processor.process_inputs).parameters
    for name in ("supported_tasks", "lora_request", "priority"):
        if name not in parameters:
            return f"input_processor.process_inputs({name})"
    return None


def _copy_request(request: Native, number: int, count: int) -> Native:
    """Return the request of one of several choices, each with a seed of its own."""
    if count == 1:
        return request
    choice = copy.copy(request)
    choice.request_id = f"{number}_{request.request_id}"
    params = copy.copy(request.sampling_params)
    params.n = 1
    if params.seed is not None:
        params.seed += number
    choice.sampling_params = params
    return choice


def _count_cached(output: Native) -> int | None:
    """Return how many tokens of the prompt were cached; vLLM renamed the attribute."""
    stats = getattr(output, "prefill_stats", None)
    source = output if stats is None else stats
    cached: int | None = getattr(source, "num_cached_tokens", None)
    return cached
