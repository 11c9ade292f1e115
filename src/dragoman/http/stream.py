"""One response stream to one client, and the clock that serves all of them.

Headers are not sent at once: while the first token is awaited an error can still have its real
status. When the wait grows long the clock sends them, so that no proxy gives up; later it sends a
keep-alive frame whenever the stream is silent for long. One clock serves all streams, so a stream
needs no timer of its own.

While a client reads slowly, `send` does not return, nothing is taken from the engine's step queue,
and what accumulates there is merged into one delta. So a slow client costs memory bounded by its
answer and does not delay other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from time import perf_counter as now
from typing import TypeAlias

from dragoman.http.asgi import Header, RequestContext
from dragoman.http.cancellation import Disconnected

STREAM_HEADERS: tuple[Header, ...] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
# Writes frames at once, or returns False if it cannot.
DirectWrite: TypeAlias = Callable[[list[bytes]], bool]


class Stream:
    """Sends frames, each as an event of its own."""

    def __init__(self, request: RequestContext, opening: list[bytes]) -> None:
        self._request = request
        self._send = request.send
        self._opening = opening
        self._last: list[bytes] = []  # sent with the end
        self._direct: DirectWrite | None = None  # once the stream is open
        self._starting: asyncio.Task[None] | None = None  # the clock's
        self._keep_alive: asyncio.Task[None] | None = None
        self._sending = False
        self._has_sent = False  # since the clock looked last
        self._last_sent = now()
        self.started = False  # headers are sent or being sent
        self.is_open = False  # headers and opening frames are sent
        self._has_ended = False

    async def start(self) -> None:
        """Send the headers and the opening frames, unless they are sent already."""
        if self._starting is not None and not self.is_open:
            await asyncio.wait([self._starting])
        if not self.started:
            self.started = True
            await self._open()

    async def cancel_start(self) -> None:
        """Cancel headers that wait for a slow client, so that an error has its own status."""
        if self._starting is not None and self._request.status is None:
            self._starting.cancel()
            await asyncio.wait([self._starting])

    async def _open(self, first: Sequence[bytes] = ()) -> None:
        self._sending = True
        writer = self._request.direct_writer
        direct = None if writer is None else writer.write
        with self._request.hold_writes():
            try:
                await self._request.start_response(200, self._list_headers())
            except BaseException:
                self.started = False  # so that the error is sent with its own status
                raise
            await self._write_frames([*self._opening, *first], direct)
        self.is_open = True
        self._direct = direct
        self._finish_sending()

    def _list_headers(self) -> tuple[Header, ...]:
        return ((b"content-type", self._request.dialect.stream_content_type), *STREAM_HEADERS)

    def push(self, frames: list[bytes]) -> Awaitable[None] | None:
        """Send frames at once if that needs no waiting, else return what must be awaited."""
        direct = self._direct
        if direct is None:
            return None if self._open_directly(frames) else self.send_frames(frames)
        if not direct(frames):
            return self.send_frames(frames)
        self._has_sent = True
        return None

    def _open_directly(self, first: list[bytes]) -> bool:
        """Send the headers and the first frames at once, if our own server can do so now."""
        writer = self._request.direct_writer
        if self.started or writer is None:
            return False
        with self._request.hold_writes():
            if not self._request.start_directly(writer, 200, self._list_headers()):
                return False
            writer.write([*self._opening, *first])
        self.started = self.is_open = True
        self._direct = writer.write
        self._finish_sending()
        return True

    def push_end(self, frames: list[bytes]) -> None:
        """Send the last frames with the end of the stream."""
        self._last = [*frames]

    async def send_frames(self, frames: list[bytes]) -> None:
        if not self.started:  # the headers and these frames are written together
            self.started = True
            await self._open(frames)
            return
        if not self.is_open:
            await self.start()
        self._sending = True
        await self._write_frames(frames, self._direct)
        self._finish_sending()

    async def finish(self) -> None:
        """Send the last frames and the end; if this was interrupted, it can be called again."""
        writer = self._request.direct_writer
        with self._request.collect_writes():
            if writer is None or not writer.end(self._last):
                while self._last:
                    await self._write(self._last[0])
                    del self._last[0]
                await self._write(b"", more=False)
        self._has_ended = True

    async def _write_frames(self, frames: list[bytes], direct: DirectWrite | None) -> None:
        if frames and (direct is None or not direct(frames)):
            for frame in frames:
                await self._write(frame)

    async def _write(self, frame: bytes, more: bool = True) -> None:
        try:
            await self._send({"type": "http.response.body", "body": frame, "more_body": more})
        except OSError:  # raised by servers when the client has disconnected
            raise Disconnected from None

    def _finish_sending(self) -> None:
        self._sending = False
        self._last_sent = now()

    async def send_keep_alive(self) -> None:
        if self._has_ended:  # since the clock ticked
            return
        with suppress(Disconnected, RuntimeError):  # the client disconnected meanwhile
            await self.send_frames([self._request.dialect.keep_alive_frame])

    def on_tick(self, timestamp: float, headers_after: float, keep_alive_after: float) -> None:
        """Called by the clock: start the stream or keep it alive, if it is time to."""
        if self._has_sent:
            self._has_sent, self._last_sent = False, timestamp
        silence = timestamp - self._last_sent
        if self._sending:
            return
        if not self.started:
            if silence >= headers_after:
                self.started = True
                self._starting = asyncio.create_task(self._open_quietly())
        elif silence >= keep_alive_after and self._request.dialect.keep_alive_frame:
            self._keep_alive = asyncio.create_task(self.send_keep_alive())

    async def _open_quietly(self) -> None:
        with suppress(Disconnected, RuntimeError):
            await self._open()


class StreamClock:
    """Ticks for every open stream; runs only while there is one."""

    def __init__(self, headers_after: float, keep_alive_after: float) -> None:
        self.set_times(headers_after, keep_alive_after)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set_times(self, headers_after: float, keep_alive_after: float) -> None:
        """Set the seconds of silence after which headers and keep-alive frames are sent."""
        self._times = (headers_after, keep_alive_after)
        self._interval = max(0.01, min(0.25, headers_after / 2, keep_alive_after / 4))

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._timer is None or self._loop is not asyncio.get_running_loop():
            self._start_timer()

    def remove(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _start_timer(self) -> None:
        self._loop = asyncio.get_running_loop()
        # without the context of the request that happens to start it, which would stay in memory
        self._timer = self._loop.call_later(self._interval, self._on_timer, context=Context())

    def _on_timer(self) -> None:
        self._timer = None
        timestamp = now()
        for stream in list(self._streams):
            stream.on_tick(timestamp, *self._times)
        if self._streams:
            self._start_timer()
