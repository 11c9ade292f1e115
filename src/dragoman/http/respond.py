"""How an answer is sent to a client: as a stream or as one body.

This is the only place that distinguishes the two. While a run is in progress it is tracked, see
`cancellation`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from dragoman.errors import DragomanError, Draining, InvalidValue, convert_engine_exception
from dragoman.events import Delta
from dragoman.http.asgi import Header, RequestContext
from dragoman.http.cancellation import Disconnected, RunRegistry, TrackedRun, WatchDisconnect
from dragoman.http.stream import Stream, StreamClock
from dragoman.replay import PromptReuse
from dragoman.responses.run import Run, Sink
from dragoman.telemetry.observer import RequestObserver
from dragoman.telemetry.record import Deadline, RequestRecord, get_record

log = logging.getLogger("dragoman.http")
ERROR_FRAMES_TIMEOUT = 1.0  # seconds to send the frames that report an error
TIMEOUT_HEADER = "x-request-timeout"  # seconds
NO_TIMEOUT = -1.0


class AnswerTimer:
    """Measures the time to the first token and between tokens of one answer."""

    def __init__(self, observer: RequestObserver, record: RequestRecord) -> None:
        self._observer = observer
        self._record = record
        self._last = time.perf_counter()  # when the last delta came
        self._observe: Callable[[float], None] | None = None  # of all but the first

    def record(self, delta: Delta) -> None:
        now = time.perf_counter()
        if self._observe is None:
            self._observe_first(now - self._last)
        else:
            self._observe(now - self._last)
        self._last = now
        if delta.usage is not None:
            self._record.add_finish(delta)
            self._observer.get_model(self._record.model).usage += delta.usage

    def _observe_first(self, seconds: float) -> None:
        metrics = self._observer.get_model(self._record.model)
        metrics.first_token.observe(seconds)
        self._record.mark_first_token()
        self._observe = metrics.inter_token.observe


class Responder:
    """Responds to requests that make a model generate."""

    def __init__(self, clock: StreamClock, observer: RequestObserver) -> None:
        self._clock = clock
        self._observer = observer
        self.runs = RunRegistry()
        self.drain_seconds: float | None = None  # set once the server is stopping
        self.request_timeout = NO_TIMEOUT  # seconds, of every request

    def make_draining_error(self) -> Draining:
        return Draining("The server is stopping.", retry_after=self.drain_seconds)

    def start_timer(self) -> AnswerTimer:
        """Measure an answer to the current request."""
        return AnswerTimer(self._observer, get_record())

    def track(self, request: RequestContext, watch: WatchDisconnect | None = None) -> TrackedRun:
        """Return a block of work for a client; disconnecting or its deadline cancels it.

        A stopping server rejects it.
        """
        if self.drain_seconds is not None:
            raise self.make_draining_error()
        record = get_record()
        record.deadline = make_deadline(request, record, self.request_timeout)
        return self.runs.track(watch or request.watch_disconnect, record.deadline)

    def track_background(self) -> TrackedRun:
        """Return a block of work that outlives its request, up to the deadline of that request."""
        return self.runs.track(None, get_record().deadline)

    async def respond(self, request: RequestContext, prepare: Callable[[], Awaitable[Run]]) -> None:
        """Prepare a run, which may fail with an error status, and send its answer."""
        timer = self.start_timer()
        stream: Stream | None = None
        run: Run | None = None
        try:
            with self.track(request):
                run = await prepare()
                # first: the number of headers is limited, and unknown fields may be many
                request.warnings[:0] = run.warnings
                request.extra_headers += make_reuse_headers(run.reuse)
                if run.wants_stream:
                    stream = Stream(request, run.start())
                    sending = self._send_stream(stream, run, timer)
                else:
                    sending = self._send_whole(request, run, timer)
                try:
                    with EngineErrors("request", request.request_id):
                        await sending
                finally:
                    run.close()
        except DragomanError as error:
            if stream is None or run is None:
                raise
            await stream.cancel_start()
            if not stream.started:
                raise
            request.error_code = error.code or error.type
            await send_error_frames(stream, await run.fail(error))

    async def _send_stream(self, stream: Stream, run: Run, timer: AnswerTimer) -> None:
        self._clock.add(stream)
        try:
            await push_frames(stream, run, timer)
        finally:
            self._clock.remove(stream)

    @staticmethod
    async def _send_whole(request: RequestContext, run: Run, timer: AnswerTimer) -> None:
        await request.send_response(200, await run.collect(timer.record))


class EngineErrors:
    """Converts exceptions inside its block that are not ours: they come from the engine."""

    __slots__ = ("_id", "_kind")

    def __init__(self, kind: str, identifier: str) -> None:
        """The kind of work and its id are for the log."""
        self._kind = kind
        self._id = identifier

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, DragomanError | Disconnected):
            log.error("%s %s: the engine failed", self._kind, self._id, exc_info=error)
            raise convert_engine_exception(error) from error


def make_deadline(request: RequestContext, record: RequestRecord, limit: float) -> Deadline | None:
    """Return when a request must have ended: by the operator's limit, or earlier by the client."""
    text = request.get_header_text(TIMEOUT_HEADER)
    seconds = limit if text is None else parse_timeout(text)
    if NO_TIMEOUT != limit < seconds:
        request.warnings.append(f"`{TIMEOUT_HEADER}`: the limit is {limit:g} seconds.")
        seconds = limit
    return None if seconds == NO_TIMEOUT else Deadline(record.started + seconds, seconds)


def parse_timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidValue(
            f"`{TIMEOUT_HEADER}` must be a number of seconds greater than 0.", param=TIMEOUT_HEADER
        )
    return seconds


def make_reuse_headers(reuse: PromptReuse | None) -> list[Header]:
    """Return a header that reports how much of the prompt was known from earlier requests."""
    return [] if reuse is None else [(b"x-dragoman-prompt", str(reuse).encode())]


async def push_frames(stream: Stream, run: Run, timer: AnswerTimer) -> None:
    """Generate the answer of a run and push its frames to a stream."""
    await run.stream(Sink(timer.record, stream.push, stream.push_end))
    if not stream.is_open:
        await stream.start()
    await stream.finish()


async def send_error_frames(stream: Stream, frames: list[bytes]) -> None:
    """Report the error that broke a stream, if the client is still connected."""
    with suppress(TimeoutError, Disconnected, RuntimeError):
        async with asyncio.timeout(ERROR_FRAMES_TIMEOUT):
            await stream.start()
            await stream.send_frames(frames)
            await stream.finish()
