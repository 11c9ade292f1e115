"""What happens to one request: its model, its tokens, and when each stage began and ended.

A `RequestRecord` accompanies a request from its first byte to its end, in a context variable that
the tasks of the request inherit. The stages write to it at a few points of a request and never per
token. When the request has ended, its log line, metrics and spans are made from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import ParamSpec, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import AnswerTimes, Delta, Finish, Usage
from dragoman.types import NO_REPORT, ReportOptions, Request, TraceOperation
from dragoman.types.context_value import ContextValue

P = ParamSpec("P")
T = TypeVar("T")
now = time.perf_counter


class ChoiceCounts(Protocol):
    """What is known about a choice while it is generated."""

    completion_tokens: int
    call_names: list[str]  # of the tools that it called
    rejected_calls: list[str]  # why text that looked like calls was rejected

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


class StageTimer(Struct, eq=False):
    """Adds the time of a block to a list of stages. A class, since a generator is slower."""

    stages: list[StageTime]
    name: str
    details: str
    start: float = msgspec.field(default_factory=now)

    __enter__ = staticmethod(now)  # does nothing, at the lowest cost

    def __exit__(self, *_: object) -> None:
        self.stages.append(StageTime(self.name, self.start, now(), self.details))


class Generation:
    """One generation in progress: first the engine reads the prompt, then it generates.

    At the end of its block, both are stages of the request.
    """

    __slots__ = ("_first_step", "_record", "_start")

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._start = now()
        self._first_step: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._record.generation = None
        self._record.stages += self.make_stages()

    def mark_first_step(self) -> None:
        """Record when the engine has read the prompt; only the first call counts."""
        self._first_step = self._first_step or now()

    def make_stages(self) -> list[StageTime]:
        end = now()
        first = self._first_step or end
        return [StageTime("prefill", self._start, first), StageTime("generate", first, end)]


class Deadline(Struct, frozen=True):
    """When a request must have ended."""

    at: float  # on the clock of `now`
    seconds: float  # from its start


class RequestRecord(Struct, eq=False):
    """What is known about one request so far."""

    request_id: str = ""
    method: str = ""
    path: str = ""
    route: str = ""
    owner: str = ""  # a digest of the API key, or of its name
    key_name: str = ""  # of the API key
    status: int = 0
    error_code: str | None = None
    is_probe: bool = False  # of a load balancer or a monitor
    started: float = msgspec.field(default_factory=now)
    started_ns: int = msgspec.field(default_factory=time.time_ns)
    seconds: float = 0.0  # how long it took, once it has ended
    traceparent: str | None = None  # of this request, for calls to other servers
    deadline: Deadline | None = None
    # What was asked
    api: str = ""  # the name of the wire API
    options: ReportOptions = NO_REPORT
    request: Request | None = None
    requested_model: str = ""  # as the client wrote it
    # What became of it
    model: str = ""  # the id of the model, once it is found
    response_id: str = ""
    usage: Usage = Usage()
    finishes: list[Finish] = []
    warnings: tuple[str, ...] = ()
    choices: list[ChoiceCounts] = []
    first_token: float | None = None  # when the client's first token came
    stages: list[StageTime] = []  # that have ended
    generation: Generation | None = None  # in progress
    call_seconds: dict[str, float] = {}  # in functions that are called for every step
    # Collected only for requests that ask for them, or if the operator logs prompts
    logs_content: bool = False
    prompts: list[str] = []
    prompt_ids: list[list[int]] = []
    outputs_in_progress: list[Callable[[], list[str]]] = []  # one for each generation
    engine_trace: list[TraceOperation] = []

    def make_child(self, method: str) -> RequestRecord:
        """Make the record of work that this request starts and that is observed by itself."""
        child = RequestRecord(self.request_id, method, self.path)
        child.route, child.owner, child.api = self.route, self.owner, self.api
        child.key_name, child.deadline = self.key_name, self.deadline
        child.options, child.request = self.options, self.request
        child.requested_model, child.model = self.requested_model, self.model
        child.response_id = self.response_id
        return child

    @property
    def wants_report(self) -> bool:
        return self.options != NO_REPORT

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
        """Record what a client asked. Later rounds of the same response change nothing."""
        self.request = self.request or request
        self.requested_model = request.model
        self.response_id = request.response_id or ""
        if request.report != NO_REPORT:
            self.options |= request.report

    def set_error(self, error: DragomanError) -> None:
        """Record the error that ended the request."""
        self.status, self.error_code = error.status, error.code or error.type

    # Stages

    def measure(self, stage: str, details: str = "") -> StageTimer:
        """Measure the stage inside this block, whether it fails or not."""
        return StageTimer(self.stages, stage, details)

    def measure_generation(self, choices: Sequence[ChoiceCounts]) -> Generation:
        """Measure how long the engine reads the prompt and generates, inside a block."""
        self.choices += choices
        self.generation = Generation(self)
        return self.generation

    def time_calls(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that is called for every step, to add up how long it takes.

        Only for requests that ask for a trace.
        """
        self.call_seconds.setdefault(name, 0.0)

        def call(*arguments: P.args, **named: P.kwargs) -> T:
            start = now()
            try:
                return function(*arguments, **named)
            finally:
                self.call_seconds[name] += now() - start

        return call

    def list_stages(self) -> Sequence[StageTime]:
        """List the stages so far, in the order in which they ended."""
        if self.generation is None:
            return self.stages
        return self.stages + self.generation.make_stages()

    def get_seconds(self, name: str) -> float | None:
        """Return the seconds of one stage; None if there was none."""
        times = [stage.end - stage.start for stage in self.list_stages() if stage.name == name]
        return sum(times) if times else None

    def sum_stages(self) -> dict[str, float]:
        """Return the seconds of each stage; one that was repeated is added up."""
        total: dict[str, float] = {}
        for stage in self.list_stages():
            total[stage.name] = total.get(stage.name, 0.0) + stage.end - stage.start
        return total | self.call_seconds

    def measure_answer(self) -> AnswerTimes:
        """Return how long the parts of the request took, as far as it is now."""
        stages = self.sum_stages()
        return AnswerTimes(
            load=stages.get("resolve", 0.0),
            prompt=stages.get("prefill", 0.0),
            answer=stages.get("generate", 0.0),
            total=self.elapsed,
        )

    # The answer

    def mark_first_token(self) -> None:
        self.first_token = self.first_token or now()
        if self.generation is not None:
            self.generation.mark_first_step()

    def add_finish(self, delta: Delta) -> None:
        """Record how a choice finished."""
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
        tokens = 0
        for choice in self.choices:
            if not choice.is_finished:
                tokens += choice.completion_tokens
        return tokens

    @property
    def completion_tokens(self) -> int:
        return self.usage.completion + self.unfinished_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """How fast the answer was generated after its first token, which comes with the prefill."""
        tokens = self.completion_tokens - 1
        seconds = self.get_seconds("generate") if tokens > 0 else None
        return tokens / seconds if seconds else None

    @property
    def elapsed(self) -> float:
        return self.seconds or now() - self.started


_current: ContextVar[RequestRecord] = ContextVar("dragoman_request")


def get_record() -> RequestRecord:
    """Return the record of the current request; outside of requests, one that is never read."""
    return _current.get(None) or RequestRecord()


def use_record(record: RequestRecord) -> ContextValue[RequestRecord]:
    """Make this the record of the current request, also in tasks that are started inside."""
    return ContextValue(_current, record)
