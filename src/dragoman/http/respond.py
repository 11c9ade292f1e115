"""How an answer travels to a client: as a stream, or whole.

The only place that tells the two apart. While it is worked on it is watched, see `watching`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from itertools import islice

from dragoman.errors import DragomanError, Draining, EngineFailed
from dragoman.events import Delta
from dragoman.http.asgi import Header, RequestContext
from dragoman.http.cancellation import Disconnected, RunRegistry
from dragoman.http.metrics import Metrics
from dragoman.http.stream import StreamClock, Stream
from dragoman.replay import PromptReuse
from dragoman.responses.run import Run, Sink

log = logging.getLogger("dragoman.http")
LAST_WORDS = 1.0  # seconds to tell a client that its stream broke
MOST_WARNINGS, LONGEST_WARNING = 16, 300
_UNPRINTABLE = re.compile(r"[^ -~]")


class AnswerTimer:
    """Measures one answer as it grows."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.last = time.perf_counter()  # when something came
        self._observe = metrics.first_token.observe

    def record(self, delta: Delta) -> None:
        now = time.perf_counter()
        self._observe(now - self.last)
        self.last = now
        self._observe = self._metrics.inter_token.observe
        if delta.usage is not None:
            self._metrics.spent += delta.usage


class Responder:
    """Answers the requests that make a model work."""

    def __init__(self, clock: StreamClock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self.runs = RunRegistry()
        self.drain_seconds: float | None = None  # seconds, once the server is stopping

    def make_draining_error(self) -> Draining:
        return Draining("The server is stopping.", retry_after=self.drain_seconds)

    def start_timer(self) -> AnswerTimer:
        return AnswerTimer(self._metrics)

    @asynccontextmanager
    async def track(self, gone: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
        """While this is open the client's leaving ends the work; a server that stops takes none."""
        if self.drain_seconds is not None:
            raise self.make_draining_error()
        async with self.runs.track(gone()):
            yield

    async def respond(
        self, exchange: RequestContext, prepare: Callable[[], Awaitable[Run]]
    ) -> None:
        """Prepare a piece of work, which may fail with a status, and tell what comes of it."""
        timing = self.start_timer()
        stream: Stream | None = None
        work: Run | None = None
        try:
            async with self.track(exchange.wait_disconnected):
                work = await prepare()
                exchange.headers += make_warning_headers(work.warnings) + make_reuse_headers(work.reuse)
                if work.streamed:
                    stream = Stream(exchange, work.start())
                await self._run(exchange, work, stream, timing)
        except DragomanError as error:
            if stream is None or work is None or not stream.started:
                raise
            exchange.error_code = error.code or error.type
            await send_error_frames(stream, await work.fail(error))

    async def _run(
        self, exchange: RequestContext, work: Run, stream: Stream | None, timing: AnswerTimer
    ) -> None:
        with closing(work), convert_engine_errors(f"request {exchange.request_id}"):
            if stream is None:
                await work.run(Sink(timing.record))
                await exchange.send_response(200, work.whole())
            else:
                with self._clock.watching(stream):
                    # a task of its own is not resumed through all the layers, token by token
                    await asyncio.create_task(send_stream(stream, work, timing))


@contextmanager
def convert_engine_errors(work: str) -> Iterator[None]:
    """What breaks in here and is no error of ours is the engine's; the log has the rest."""
    try:
        yield
    except (DragomanError, Disconnected):
        raise
    except Exception as error:
        log.exception("%s: the engine broke", work)
        raise EngineFailed("The engine failed while it worked on this request.") from error


def make_warning_headers(said: Iterable[str]) -> list[Header]:
    """A header for each thing that was asked for and is not kept to."""
    shown = (_UNPRINTABLE.sub("?", one)[:LONGEST_WARNING].strip() for one in dict.fromkeys(said))
    return [(b"x-dragoman-warning", one.encode()) for one in islice(shown, MOST_WARNINGS)]


def make_reuse_headers(reuse: PromptReuse | None) -> list[Header]:
    """A header that says how much of the prompt was there before."""
    return [] if reuse is None else [(b"x-dragoman-prompt", str(reuse).encode())]


async def send_stream(stream: Stream, work: Run, timing: AnswerTimer) -> None:
    def push(frames: list[bytes]) -> Awaitable[None] | None:
        return stream.push(frames, timing.last)

    await work.run(Sink(timing.record, push))
    await stream.start()
    await stream.finish()


async def send_error_frames(stream: Stream, events: list[bytes]) -> None:
    """Tell the client that its stream broke, if it still listens."""
    with suppress(TimeoutError, Disconnected, RuntimeError):
        async with asyncio.timeout(LAST_WORDS):
            await stream.start()
            await stream.send_frames(events)
            await stream.finish()
