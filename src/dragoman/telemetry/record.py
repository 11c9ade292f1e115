"""What happens to one request: its model, its tokens, and when each stage began and ended.

A `RequestRecord` accompanies a request from its first byte to its end, in a context variable that
the tasks of the request inherit. The stages write to it at a few points of a request and never per
token. When the request has ended, its log line, metrics and spans are made from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, Protocol, TypeVar

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Delta, Finish, Usage
from dragoman.types import ReportOptions, Request, TraceOperation

P = ParamSpec("P")
T = TypeVar("T")
now = time.perf_counter


class ChoiceCounts(Protocol):
    """What is known about a choice while it is generated."""

    completion_tokens: int
    call_names: list[str]  # of the tools that it called
    rejected_calls: list[str]  # why text that looked like calls is none

    @property
    def is_finished(self) -> bool: ...


class StageTime(Struct, frozen=True):
    """When a stage began and ended, on the monotonic clock."""

    name: str
    start: float
    end: float
    details: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Generation:
    """One generation in progress: first the engine reads the prompt, then it generates."""

    def __init__(self) -> None:
        self._start = now()
        self._first_step: float | None = None

    def mark_first_step(self) -> None:
        """Note that the engine has read the prompt; only the first call counts."""
        self._first_step = self._first_step or now()

    def make_stages(self) -> list[StageTime]:
        end = now()
        first = self._first_step or end
        return [StageTime("prefill", self._start, first), StageTime("generate", first, end)]


class RequestRecord:
    """What is known about one request so far."""

    def __init__(self, request_id: str = "", method: str = "", path: str = "") -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.route = ""
        self.owner = ""  # a digest of the API key
        self.status = 0
        self.error_code: str | None = None
        self.is_probe = False  # of a load balancer or a monitor
        self.started = now()
        self.started_ns = time.time_ns()
        self.seconds = 0.0  # how long it took, once it has ended
        self.traceparent: str | None = None  # of this request, for calls to other servers
        # What was asked
        self.api = ""  # the name of the wire API
        self.options = ReportOptions()
        self.request: Request | None = None
        self.requested_model = ""  # as the client wrote it
        # What became of it
        self.model = ""  # the id of the model, once it is found
        self.response_id = ""
        self.usage = Usage()
        self.finishes: list[Finish] = []
        self.warnings: tuple[str, ...] = ()
        self.choices: list[ChoiceCounts] = []
        self.first_token: float | None = None  # when the client's first token came
        self._stages: list[StageTime] = []
        self._generation: Generation | None = None
        self._timed_calls: dict[str, float] = {}  # seconds in functions that are called per step
        # For those who ask for them, or where the operator logs prompts
        self.logs_content = False
        self.prompts: list[str] = []
        self.prompt_ids: list[list[int]] = []
        self.outputs_in_progress: list[Callable[[], list[str]]] = []  # one for each generation
        self.engine_trace: list[TraceOperation] = []

    def make_child(self, method: str) -> RequestRecord:
        """Make the record of work that this request starts and that is observed by itself."""
        child = RequestRecord(self.request_id, method, self.path)
        child.route, child.owner, child.api = self.route, self.owner, self.api
        child.options, child.request = self.options, self.request
        child.requested_model, child.model = self.requested_model, self.model
        child.response_id = self.response_id
        return child

    @property
    def wants_report(self) -> bool:
        return self.options != ReportOptions()

    @property
    def wants_prompt(self) -> bool:
        return self.options.prompt or self.options.prompt_ids or self.logs_content

    @property
    def wants_output(self) -> bool:
        return self.options.output or self.logs_content

    @property
    def outputs(self) -> list[str]:
        """What the model has generated so far, for each choice."""
        return [text for list_texts in self.outputs_in_progress for text in list_texts()]

    def set_request(self, request: Request) -> None:
        """Note what a client asked. Later rounds of the same response ask the same."""
        self.request = self.request or request
        self.requested_model = request.model
        self.response_id = request.response_id or ""
        self.options |= request.report

    def set_error(self, error: DragomanError) -> None:
        """Note the error that ended the request."""
        self.status, self.error_code = error.status, error.code or error.type

    # Stages

    @contextmanager
    def measure(self, stage: str, details: str = "") -> Iterator[None]:
        """Measure a stage, whether it fails or not."""
        start = now()
        try:
            yield
        finally:
            self._stages.append(StageTime(stage, start, now(), details))

    @contextmanager
    def measure_generation(self, choices: Sequence[ChoiceCounts]) -> Iterator[Generation]:
        """Measure how long the engine reads the prompt, and how long it generates."""
        self.choices += choices
        generation = self._generation = Generation()
        try:
            yield generation
        finally:
            self._generation = None
            self._stages += generation.make_stages()

    def time_calls(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that is called for every step, to add up how long it takes.

        Only for requests that ask for a trace.
        """
        self._timed_calls.setdefault(name, 0.0)

        def call(*arguments: P.args, **named: P.kwargs) -> T:
            start = now()
            try:
                return function(*arguments, **named)
            finally:
                self._timed_calls[name] += now() - start

        return call

    def list_stages(self) -> list[StageTime]:
        """List the stages so far, in the order in which they ended."""
        running = [] if self._generation is None else self._generation.make_stages()
        return self._stages + running

    def sum_stages(self) -> dict[str, float]:
        """Return the seconds of each stage; one that was repeated is added up."""
        total: dict[str, float] = {}
        for stage in self.list_stages():
            total[stage.name] = total.get(stage.name, 0.0) + stage.seconds
        return total | self._timed_calls

    # The answer

    def mark_first_token(self) -> None:
        self.first_token = self.first_token or now()
        if self._generation is not None:
            self._generation.mark_first_step()

    def add_finish(self, delta: Delta) -> None:
        """Note how a choice finished."""
        if delta.finish is not None:
            self.finishes.append(delta.finish)
        if delta.usage is not None:
            self.usage += delta.usage

    @property
    def call_names(self) -> list[str]:
        return [name for choice in self.choices for name in choice.call_names]

    @property
    def rejected_calls(self) -> list[str]:
        return [reason for choice in self.choices for reason in choice.rejected_calls]

    @property
    def unfinished_tokens(self) -> int:
        """How many tokens were generated for choices that never finished."""
        return sum(choice.completion_tokens for choice in self.choices if not choice.is_finished)

    @property
    def completion_tokens(self) -> int:
        return self.usage.completion + self.unfinished_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """How fast the answer was generated, after the prompt was read."""
        seconds = self.sum_stages().get("generate", 0.0)
        return self.completion_tokens / seconds if seconds and self.completion_tokens else None

    @property
    def elapsed(self) -> float:
        return self.seconds or now() - self.started


_current: ContextVar[RequestRecord] = ContextVar("dragoman_request")


def get_record() -> RequestRecord:
    """Return the record of the current request; outside of requests, one that nobody reads."""
    return _current.get(None) or RequestRecord()


@contextmanager
def use_record(record: RequestRecord) -> Iterator[RequestRecord]:
    """Make this the record of the current request, also in tasks that are started inside."""
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)
