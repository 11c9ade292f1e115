"""Detects an engine that makes no progress.

An engine can hang while its process lives and its event loop answers: a native thread waits for a
lock, a device or a debugger. So the parent watches the work itself, once for each `tick`:

- **Progress** is a step of a job, also of one that is cancelled afterwards, the end of a call, or
  the answer to a probe. A probe is a call that passes through the thread that generates; an engine
  that has one is asked at the start, and whenever a call waits. Nothing is counted for each token:
  at the next tick, the state of a queue of steps shows whether any have arrived, whether the client
  reads them or not, so a slow client does not look like a hang.
- **A hang** is work without progress for `limit` seconds. The limit is `timeout`, or several times
  what one step of the engine takes on a slow machine, as the engine estimates and probes measure.
  For an engine without a probe, whose prompts are processed unseen, the limit grows with the
  length of the prompts that wait for their first step, at the speed measured so far.
- **A stuck call** gets nothing more while the engine answers its probes. It fails alone.

Time is counted in ticks, and callers count none for more than twice its length. So a pause of this
process (SIGSTOP, a suspended laptop, a changed clock) is not taken for a hang of the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.engines.subprocess import messages
from dragoman.types import Job
from dragoman.types.cache_scope import get_cache_scope

CallKind: TypeAlias = Literal["generate", "admit", "embed", "tokenize", "control"]
CallContent: TypeAlias = Job | messages.ContentCall

STEP_FACTOR = 3.0  # a step may take this many times what it took before
STUCK_FACTOR = 3.0  # how much longer than an engine a call may make no progress
PREFILL_FACTOR = 3.0
FIRST_TOKEN_SECONDS = 0.02  # per token of a prompt, before any is measured
DECAY = 0.9  # factor by which a measured duration shrinks with each newer measurement
CHARACTERS_PER_TOKEN = 4
REPORTED_CALLS = 16  # in the log line about a hang
CANCELLED_CALLS = 64  # how many are remembered until the next sign of progress


class ProgressSource(Protocol):
    """Where steps arrive; comparing states shows whether any have arrived in between."""

    def get_state(self) -> Any: ...
    def has_changed(self, state: Any) -> bool: ...


class RunningCall(Struct, eq=False):
    """A call that the engine has not answered yet."""

    number: int
    kind: CallKind
    size: int  # tokens that it may process before the first step or the result
    source: ProgressSource | None = None  # of the steps of a job
    content: CallContent | None = None
    owner: str = ""  # the cache scope of the request
    last_state: Any = None  # of the source, at the last tick
    has_stepped: bool = False
    idle: float = 0.0  # seconds since its last step
    age: float = 0.0

    @property
    def has_answered(self) -> bool:
        """Whether it has yielded a step, even since the last tick."""
        source = self.source
        return self.has_stepped or (source is not None and source.has_changed(self.last_state))

    def describe(self) -> str:
        """Name the call for the log, without its content."""
        return f"{self.kind} {self.content.id}" if isinstance(self.content, Job) else self.kind


def make_call(
    number: int, kind: CallKind, content: CallContent, source: ProgressSource | None = None
) -> RunningCall:
    """Make the entry of a call whose content is known."""
    if isinstance(content, Job | messages.CountPrompt):
        size = count_tokens(content.prompt)
    elif isinstance(content, messages.TokenizeText):
        size = count_tokens(content.text)
    elif isinstance(content, messages.ScorePairs):
        size = sum(count_tokens(pair.ids or pair.query + pair.document) for pair in content.pairs)
    else:
        size = sum(map(count_tokens, content.inputs))
    return RunningCall(number, kind, size, source, content, get_cache_scope())


def list_calls(calls: Sequence[RunningCall]) -> str:
    """Name calls for the log."""
    names = [call.describe() for call in calls[:REPORTED_CALLS]]
    if len(calls) > REPORTED_CALLS:
        names.append(f"{len(calls) - REPORTED_CALLS} more")
    return ", ".join(names) or "nothing"


def count_tokens(prompt: list[int] | str) -> int:
    """Return how many tokens a prompt has; estimated for a text."""
    return len(prompt) // CHARACTERS_PER_TOKEN if isinstance(prompt, str) else len(prompt)


class ProgressWatch:
    """Watches the calls of one engine process."""

    def __init__(self, timeout: float, has_probe: bool = False) -> None:
        self.calls: dict[int, RunningCall] = {}
        self.answered_owners: set[str] = set()  # those that got a token or a result
        self.has_probe = has_probe
        self.idle = 0.0  # seconds of work without progress
        self.has_progressed = False  # since the last tick but one
        self._timeout = timeout
        self._cancelled: deque[RunningCall] = deque(maxlen=CANCELLED_CALLS)
        self._has_ended_call = False
        self._was_idle_when_cancelled = False
        self._was_probed = self._is_probing = False
        self._is_alive = False  # a probe was answered since the last tick
        self._probe_age = 0.0
        self._step_seconds = 0.0
        self._token_seconds = FIRST_TOKEN_SECONDS

    @property
    def limit(self) -> float:
        """How long there may be no progress, in seconds."""
        limit = max(self._timeout, STEP_FACTOR * self._step_seconds)
        return limit if self.has_probe else limit + self._estimate_prefill(self.calls.values())

    @property
    def involved_calls(self) -> list[RunningCall]:
        """The calls that the engine worked on since the last progress, cancelled ones included."""
        return [*self.calls.values(), *self._cancelled]

    def add(self, call: RunningCall) -> None:
        call.last_state = None if call.source is None else call.source.get_state()
        self.calls[call.number] = call

    def remove(self, number: int, *, is_cancelled: bool) -> None:
        """Remove a call that has ended, or that its client does not want any more."""
        call = self.calls.get(number)
        if call is None:
            return
        # else clients that cancel after the first token would make a busy engine look hung
        has_new_steps = call.source is not None and call.source.has_changed(call.last_state)
        if is_cancelled and not has_new_steps:
            self.drop_stuck_call(number)
        else:
            self._forget(number)
            self._has_ended_call = True

    def drop_stuck_call(self, number: int) -> None:
        """Remove a call that made no progress."""
        call = self._forget(number)
        if call is not None:
            self._cancelled.append(call)
            self._was_idle_when_cancelled |= call.idle > 0

    def _forget(self, number: int) -> RunningCall | None:
        call = self.calls.pop(number, None)
        if call is not None:
            if call.has_answered:
                self.answered_owners.add(call.owner)
            call.source = call.last_state = None
        return call

    def record_result(self, number: int) -> None:
        """Count the owner as answered if the call was a whole request, not a step before a job."""
        call = self.calls.get(number)
        if call is not None and call.kind == "embed":
            self.answered_owners.add(call.owner)

    def start_probe(self) -> bool:
        """Whether the engine should be probed now; `end_probe` must follow."""
        is_waiting = any(call.idle > 0 for call in self.calls.values())
        is_first = not self._was_probed  # so that its first step is not taken for a hang
        should_probe = self.has_probe and (is_waiting or is_first or self._was_idle_when_cancelled)
        if self._is_probing or not should_probe:
            return False
        self._was_probed = self._is_probing = True
        self._probe_age = 0.0
        return True

    def end_probe(self, step_seconds: float) -> None:
        """Record the answer to a probe: the engine's estimate of how long a step takes."""
        self._is_probing, self._is_alive, self._was_idle_when_cancelled = False, True, False
        self._step_seconds = max(step_seconds, self._probe_age, DECAY * self._step_seconds)

    def abandon_probe(self) -> None:
        """Record that nobody waits for the answer to the probe any more."""
        self._is_probing = False

    def tick(self, seconds: float) -> None:
        """Update all calls after this many seconds."""
        self._probe_age += seconds
        progressed = [call for call in self.calls.values() if self._update(call, seconds)]
        self.has_progressed = bool(progressed) or self._has_ended_call or self._is_alive
        if self.has_progressed:
            self.idle = 0.0
            self._cancelled.clear()
        elif self.calls or self._is_probing:
            self.idle += seconds
        else:
            self.idle = 0.0
        self._has_ended_call = self._is_alive = False

    def is_hung(self) -> bool:
        return self.idle >= self.limit

    def find_stuck_calls(self) -> list[RunningCall]:
        """Find calls that get nothing from an engine that answers its probes."""
        if not self.has_probe or self.is_hung():
            return []
        is_alone = len(self.calls) == 1
        return [call for call in self.calls.values() if self._is_stuck(call, is_alone)]

    def _is_stuck(self, call: RunningCall, is_alone: bool) -> bool:
        if call.has_stepped:
            return call.idle >= self.limit * (1 if is_alone else STUCK_FACTOR)
        if not is_alone or call.kind in ("generate", "embed"):  # it waits for a slot or its prompt
            return False
        return call.idle >= self.limit * STUCK_FACTOR + self._estimate_prefill([call])

    def _update(self, call: RunningCall, seconds: float) -> bool:
        """Update a call; return whether steps have arrived since the last tick."""
        call.age += seconds
        call.idle += seconds
        if call.source is None:
            return False
        has_changed = call.source.has_changed(call.last_state)
        call.last_state = call.source.get_state()
        if not has_changed:
            return False
        call.idle = 0.0
        if not call.has_stepped:
            call.has_stepped = True
            measured = call.age / max(1, call.size)
            self._token_seconds = max(measured, DECAY * self._token_seconds)
        return True

    def _estimate_prefill(self, calls: Iterable[RunningCall]) -> float:
        tokens = sum(call.size for call in calls if not call.has_stepped)
        return PREFILL_FACTOR * tokens * self._token_seconds
