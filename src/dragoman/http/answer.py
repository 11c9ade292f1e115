"""How an answer travels: from a request's body to its last byte.

The only place that tells a stream from a whole answer. From the moment a request is decoded it is
watched: when the client leaves, or the server must stop, the task that works for it is interrupted
where it stands, and closing the pipeline cancels the engine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import islice

from dragoman import pipeline
from dragoman.errors import DragomanError, Draining, EngineFailed
from dragoman.events import Completion, Delta, Usage
from dragoman.http.asgi import Disconnected, Exchange, Header
from dragoman.http.metrics import Metrics
from dragoman.http.stream import Clock, Stream
from dragoman.models.registry import Models
from dragoman.protocols import Dialect, Writer
from dragoman.types import Request

log = logging.getLogger("dragoman.http")
LAST_WORDS = 1.0  # seconds to tell a client that its stream broke
MOST_WARNINGS, LONGEST_WARNING = 16, 300
_UNPRINTABLE = re.compile(r"[^ -~]")


class Watch:
    """Interrupts the task that works on a request, with a reason."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.reason: Exception | None = None

    def interrupt(self, reason: Exception) -> None:
        if self.reason is None and self._task is not None:
            self.reason = reason
            self._task.cancel()


class Watches:
    """All requests that are worked on."""

    def __init__(self) -> None:
        self._open: set[Watch] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    async def idle(self) -> None:
        await self._idle.wait()

    def interrupt_all(self, reason: Callable[[], Exception]) -> None:
        for watch in list(self._open):
            watch.interrupt(reason())

    @asynccontextmanager
    async def watch(self, exchange: Exchange) -> AsyncGenerator[Watch, None]:
        """While this is open, the client's leaving ends the work with `Disconnected`."""
        watch = Watch()
        waiting = asyncio.create_task(exchange.gone())
        waiting.add_done_callback(
            lambda task: None if task.cancelled() else watch.interrupt(Disconnected())
        )
        self._open.add(watch)
        self._idle.clear()
        try:
            yield watch
        except asyncio.CancelledError:
            raise self._why(watch) from None
        finally:
            waiting.cancel()
            self._open.discard(watch)
            if not self._open:
                self._idle.set()

    @staticmethod
    def _why(watch: Watch) -> BaseException:
        """What a cancellation means: our own interruption, the server's, or an engine's mistake."""
        task = asyncio.current_task()
        if task is not None and watch.reason is not None and task.uncancel() == 0:
            return watch.reason
        if task is not None and task.cancelling() == 0:
            log.error("the engine was cancelled from inside")
            return EngineFailed("The engine failed while it worked on this request.")
        return asyncio.CancelledError()


class Timing:
    """Measures one answer as it grows."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last = time.perf_counter()
        self._observe = metrics.first_token.observe

    def note(self, delta: Delta) -> float:
        """Count a delta, and say when it came."""
        now = time.perf_counter()
        self._observe(now - self._last)
        self._last = now
        self._observe = self._metrics.inter_token.observe
        if delta.usage is not None:
            self._metrics.spent += delta.usage
        return now


class Answering:
    """Answers the requests of the generating dialects."""

    def __init__(self, models: Models, clock: Clock, metrics: Metrics) -> None:
        self._models = models
        self._clock = clock
        self._metrics = metrics
        self.watches = Watches()
        self.drain: float | None = None  # seconds, once the server is stopping

    def stopping(self) -> Draining:
        return Draining("The server is stopping.", retry_after=self.drain)

    async def answer(self, exchange: Exchange, dialect: Dialect, request: Request) -> None:
        if self.drain is not None:
            raise self.stopping()
        timing = Timing(self._metrics)
        stream: Stream | None = None
        writer: Writer | None = None
        try:
            async with self.watches.watch(exchange):
                plan = await pipeline.prepare(request, self._models)
                exchange.headers += warnings(plan.warnings)
                writer = dialect.writer(request, plan.name, plan.choices, plan.read)
                if request.stream:
                    stream = Stream(exchange, writer.start)
                await self._run(exchange, plan, writer, stream, timing)
        except DragomanError as error:
            if stream is None or writer is None or not stream.started:
                raise
            exchange.code = error.code or error.type
            await last_words(stream, writer.fail(error))

    async def _run(
        self,
        exchange: Exchange,
        plan: pipeline.Plan,
        writer: Writer,
        stream: Stream | None,
        timing: Timing,
    ) -> None:
        try:
            if stream is None:
                await send_whole(exchange, plan, writer, timing)
            else:
                with self._clock.watching(stream):
                    # a task of its own is not resumed through all the layers, token by token
                    await asyncio.create_task(send_stream(stream, plan, writer, timing))
        except (DragomanError, Disconnected):
            raise
        except Exception as error:
            log.exception("request %s: the engine broke", exchange.request_id)
            raise EngineFailed("The engine failed while it worked on this request.") from error
        finally:
            plan.close()


def warnings(said: Iterable[str]) -> list[Header]:
    """A header for each thing that was asked for and is not kept to."""
    shown = (_UNPRINTABLE.sub("?", one)[:LONGEST_WARNING].strip() for one in dict.fromkeys(said))
    return [(b"x-dragoman-warning", one.encode()) for one in islice(shown, MOST_WARNINGS)]


async def send_whole(
    exchange: Exchange, plan: pipeline.Plan, writer: Writer, timing: Timing
) -> None:
    whole = Completion()

    def deliver(delta: Delta) -> None:
        timing.note(delta)
        whole.add(delta)

    await pipeline.generate(plan, deliver)
    await exchange.answer(200, writer.whole(whole))


async def send_stream(stream: Stream, plan: pipeline.Plan, writer: Writer, timing: Timing) -> None:
    usage = Usage()

    def deliver(delta: Delta) -> Awaitable[None] | None:
        nonlocal usage
        at = timing.note(delta)
        if delta.usage is not None:
            usage += delta.usage
        return stream.push(writer.write(delta), at)

    await pipeline.generate(plan, deliver)
    await stream.events(writer.end(usage))
    await stream.finish()


async def last_words(stream: Stream, events: list[bytes]) -> None:
    """Tell the client that its stream broke, if it still listens."""
    with suppress(TimeoutError, OSError, RuntimeError):
        async with asyncio.timeout(LAST_WORDS):
            await stream.start()
            await stream.events(events)
            await stream.finish()
