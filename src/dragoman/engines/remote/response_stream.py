"""One streamed response of a server, read into the step queue of its job.

The connection calls this object with what arrives; frames become steps, and steps go to the queue,
in one call. While the reader of the queue is slow, at most `MAX_BACKLOG` bytes of frames are taken
in; then the connection is not read, and the server has to wait.

`StallWatch` checks all running responses from time to time, and ends those that are silent for
too long. Comments, which servers send from another thread than the one that generates, do not count
as progress. Before its first frame a request may wait in the server's queue: as long as the server
makes progress for others, that is not a stall.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from dragoman.engines.remote.failures import (
    DECODE_ERRORS,
    ConnectionFailure,
    InvalidFrame,
    StatusFailure,
    UpstreamFailure,
    make_stream_error,
)
from dragoman.engines.remote.http.client import MAX_ERROR_BODY
from dragoman.engines.remote.http.connection import UpstreamConnection
from dragoman.engines.remote.http.frames import BYTE_ORDER_MARK, DONE, END, MAX_FRAME, FrameSplitter
from dragoman.engines.remote.protocols.api import FrameReader
from dragoman.engines.step_queue import StepQueue
from dragoman.errors import DragomanError
from dragoman.types import Step

MAX_BACKLOG = 1 << 20  # bytes of frames whose steps wait for their reader
MAX_TICK = 1.0  # seconds
TICKS_PER_TIMEOUT = 20
EVENT_STREAM = b"text/event-stream"
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")  # with which a stream of events begins
FIRST_BYTES = 64  # of a body, which tell what it is
REST_SECONDS = 0.05  # for the rest of a response whose choices have all finished


class ResponseStream:
    """Receives the response to one request."""

    def __init__(self, reader: FrameReader, queue: StepQueue, first_frame_limit: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_frame_limit = first_frame_limit  # seconds, see `StallWatch`
        self.frames = 0
        self.has_steps = False  # some have left: the request cannot be sent again
        self.is_paused = False
        self.silence = 0.0  # seconds, as `StallWatch` counts them
        self.seen_frames = 0
        self._reader = reader
        self._queue = queue
        self._splitter = FrameSplitter()
        self._connection: UpstreamConnection | None = None
        self._status = 0
        self._is_stream = False  # the response is one of frames
        self._headers: Mapping[bytes, bytes] = {}
        self._body = bytearray()
        self._backlog = 0

    @property
    def is_stale(self) -> bool:
        """Whether a kept connection turned out to be dead, so that the server saw nothing."""
        connection = self._connection
        return connection is not None and connection.is_reused and not connection.has_answered

    def start(self, connection: UpstreamConnection, request: bytes) -> None:
        self._connection = connection
        connection.send(request, self)

    def take_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        if status == 200 and encoding not in (b"", b"identity"):
            text = encoding.decode(errors="replace")
            self._end_with(InvalidFrame(f"the response is encoded: {text}"))
        else:
            self._is_stream = status == 200 and get_content_type(headers).startswith(EVENT_STREAM)

    def take_data(self, data: bytes) -> None:
        if not self._is_stream:
            self._take_other(data)
            return
        try:
            frames = self._splitter.feed(data)
            steps = self._reader.read(frames[0]) if len(frames) == 1 else self._read_all(frames)
        except (UpstreamFailure, DragomanError) as error:
            self._end_with(error)
            return
        except Exception as error:  # whatever a server sends, it fails this request alone
            self._end_with(InvalidFrame(f"a frame cannot be read: {error!r}"))
            return
        self.frames += len(frames)
        if steps:
            self.has_steps = True
            if self._queue.put(steps):
                self._limit_backlog(len(data))

    def _take_other(self, data: bytes) -> None:
        """Take a part of a body of another type; its beginning tells whether it is a stream."""
        body, is_beginning = self._body, len(self._body) < FIRST_BYTES
        if len(body) < (MAX_FRAME if self._status == 200 else MAX_ERROR_BODY):
            body += data
        if self._status != 200 or not is_beginning or self.done.done():
            return
        start = bytes(body[:FIRST_BYTES]).removeprefix(BYTE_ORDER_MARK).lstrip()
        if start.startswith(FIELDS):
            self._is_stream, self._body = True, bytearray()
            self.take_data(bytes(body))
        elif not start.startswith(b"{") and not any(field.startswith(start) for field in FIELDS):
            kind = get_content_type(self._headers).decode(errors="replace")
            self._end_with(InvalidFrame(f"the response is no stream of events: {kind}"))

    def _read_all(self, frames: list[bytes]) -> list[Step]:
        return [step for frame in frames for step in self._reader.read(frame)]

    def _limit_backlog(self, size: int) -> None:
        if not self._backlog:
            self._queue.call_when_taken(self.resume)
        self._backlog += size
        if self._backlog > MAX_BACKLOG and self._connection is not None and not self.is_paused:
            self.is_paused = True
            self._connection.pause()

    def resume(self) -> None:
        """Read on, once the queue is empty."""
        self._backlog = 0
        if self.is_paused:
            self.is_paused = False
            if self._connection is not None and self._connection.is_answering(self):
                self._connection.resume()

    def end(self) -> None:
        is_stream, self._is_stream = self._is_stream, False
        if self._status != 200:
            self._set_error(StatusFailure(self._status, bytes(self._body), self._headers))
        elif not is_stream:
            self._end_whole(bytes(self._body))
        elif not self._reader.is_complete:
            self.fail(ConnectionFailure("closed", "the response ended before its choices"))
        elif not self.done.done():
            self.done.set_result(None)

    def _end_whole(self, body: bytes) -> None:
        """Read a body that is not a stream, as if it were the only frame of one."""
        if self.done.done():
            return
        try:
            steps = [*self._reader.read(body), *self._reader.read(DONE)]
        except Exception:  # whatever a server sends, it fails this request alone
            self._set_error(make_body_error(body))
            return
        if self._reader.is_complete:
            self._put_last(steps)
            self.done.set_result(None)
        else:
            self._set_error(make_body_error(body))

    def fail(self, failure: ConnectionFailure) -> None:
        if not self.done.done():
            self._read_last_frame()
        self._set_error(failure)

    def _read_last_frame(self) -> None:
        """Read what no empty line follows: the last frame, unless it is cut off."""
        try:
            steps = self._read_all(self._splitter.feed(END))
        except (StatusFailure, DragomanError) as error:
            self._set_error(error)
        except Exception:  # whatever a server sends: what is cut off is missing
            return
        else:
            self._put_last(steps)

    def _put_last(self, steps: list[Step]) -> None:
        if steps:
            self.has_steps = True
            self._queue.put(steps)

    def _end_with(self, error: Exception) -> None:
        """Fail, and close the connection: nothing that follows can be read."""
        self._is_stream = False
        self._set_error(error)
        if self._connection is not None and self._connection.is_answering(self):
            self._connection.abort()

    def _set_error(self, error: Exception) -> None:
        if self.done.done():
            return
        if isinstance(error, ConnectionFailure) and self._take_missing_end():
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def _take_missing_end(self) -> bool:
        """Whether all choices have finished, and only the usage or `[DONE]` is missing."""
        try:
            steps = self._reader.read(DONE)
        except (UpstreamFailure, DragomanError):
            return False
        self._put_last(steps)
        return self._reader.is_complete

    def stall(self, seconds: float) -> None:
        """Give up: the server is silent."""
        self._end_with(ConnectionFailure("stalled", f"no tokens for {seconds:.1f} s"))

    def close(self) -> None:
        """Cancel the request, unless nothing but the end of its response is missing."""
        self._is_stream = False
        connection = self._connection
        if connection is None or not connection.is_answering(self):
            return
        if self._reader.is_complete and connection.is_open:
            self.resume()
            connection.detach(ResponseRest(connection))
        else:
            connection.abort()


def get_content_type(headers: Mapping[bytes, bytes]) -> bytes:
    return headers.get(b"content-type", b"").strip().lower()


def make_body_error(body: bytes) -> UpstreamFailure:
    """Return the error in a body that came instead of a stream."""
    try:
        data = msgspec.json.decode(body)
    except DECODE_ERRORS:
        data = None
    error = data.get("error") if isinstance(data, dict) else None
    return make_stream_error(error) if error else InvalidFrame("the response is no stream")


class ResponseRest:
    """Drops the rest of a response, so that its connection can be used again."""

    def __init__(self, connection: UpstreamConnection) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REST_SECONDS, connection.abort)

    def take_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Drop it."""

    def take_data(self, data: bytes) -> None:
        """Drop it."""

    def end(self) -> None:
        self._timer.cancel()

    def fail(self, failure: ConnectionFailure) -> None:
        self._timer.cancel()


class StallWatch:
    """Ends responses that are silent for too long."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._interval = min(MAX_TICK, timeout / TICKS_PER_TIMEOUT)
        self._streams: dict[ResponseStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = 0.0

    def __len__(self) -> int:
        return len(self._streams)

    def count_paused(self) -> int:
        return sum(stream.is_paused for stream in self._streams)

    @contextlib.contextmanager
    def watch(self, stream: ResponseStream) -> Generator[None, Any, None]:
        """Watch a response inside this block."""
        self._streams[stream] = None
        if self._timer is None:
            self._start_timer(asyncio.get_running_loop())
        try:
            yield
        finally:
            del self._streams[stream]
            if not self._streams and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last_tick = loop.time()
        self._timer = loop.call_later(self._interval, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        # a longer pause is one of this process
        elapsed = min(loop.time() - self._last_tick, self._interval)
        has_progressed = any(stream.frames != stream.seen_frames for stream in self._streams)
        for stream in [*self._streams]:
            self._look(stream, elapsed, has_progressed)
        if self._streams:
            self._start_timer(loop)

    def _look(self, stream: ResponseStream, elapsed: float, has_progressed: bool) -> None:
        is_silent = stream.frames == stream.seen_frames and not stream.is_paused
        is_waiting = not stream.frames and has_progressed
        stream.silence = stream.silence + elapsed if is_silent and not is_waiting else 0.0
        stream.seen_frames = stream.frames
        limit = self._timeout if stream.frames else stream.first_frame_limit
        if stream.silence >= limit:
            stream.stall(stream.silence)
