"""A client that costs little CPU time: raw sockets, one epoll, no parsing of responses.

It counts tokens, not frames, since a server may put several tokens into one frame. If the text of
the tokens is known, it counts its occurrences; otherwise it uses the usage that the server reports.
It reads the server's CPU time itself, at the very start and end of the measurement. Run as
`python -m bench.load_client` with a `Load` as JSON on standard input; it writes a `LoadResult`.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
import time

import msgspec

from bench.measure import TOKEN, Load, LoadResult, make_post, read_cpu_ns

CONTENT = re.compile(rb'"content":"[^"]')
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
FRAME = b"data: "
DONE = b"[DONE]"


class Stream:
    """One request on one connection."""

    def __init__(self, load: Load, body: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = make_post(load.port, load.path, body)
        self._tail = b""
        self.sent_at = 0.0
        self.last_read_at = 0.0
        self.first_token: float | None = None  # seconds after the request
        self.tokens = self.frames = 0
        self.usage: int | None = None
        self.is_done = False

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(self._request)
        self.socket.setblocking(False)

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        now = time.perf_counter()
        if not data:
            self.is_done = True
            return
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"unexpected response: {data[:500]!r}")
        text = self._tail + data
        if self.first_token is None and CONTENT.search(text):
            self.first_token = now - self.sent_at
        old_length = len(self._tail)
        self.tokens += _count_new(text, TOKEN.encode(), old_length)
        self.frames += _count_new(text, FRAME, old_length)
        if b"completion_tokens" in text:
            for count in USAGE.findall(text):
                self.usage = int(count)
        self.is_done = DONE in text
        self.last_read_at = now
        self._tail = text[-256:]


def _count_new(text: bytes, part: bytes, old_length: int) -> int:
    """Count the occurrences of `part` that do not lie entirely in the old text."""
    start = max(0, old_length - len(part) + 1)
    return text.count(part, start)


class StreamReader:
    """Reads all streams until they end or the time is up."""

    def __init__(self, streams: list[Stream]) -> None:
        self.unfinished = {stream.socket.fileno(): stream for stream in streams}
        self._poll = select.epoll()
        for descriptor in self.unfinished:
            self._poll.register(descriptor, select.EPOLLIN)

    def read(self, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        while self.unfinished and (time_left := deadline - time.perf_counter()) > 0:
            for descriptor, _ in self._poll.poll(time_left):
                stream = self.unfinished[descriptor]
                stream.read()
                if stream.is_done:
                    self._poll.unregister(descriptor)
                    del self.unfinished[descriptor]

    def count(self) -> tuple[int, int]:
        """Return the tokens and the frames of all unfinished streams."""
        streams = self.unfinished.values()
        return sum(s.tokens for s in streams), sum(s.frames for s in streams)


def run(load: Load) -> LoadResult:
    streams = [Stream(load, body) for body in load.bodies]
    reader = StreamReader(streams)
    cpu_before = read_cpu_ns(load.pid, load.counts_children)
    started = time.perf_counter()
    for stream in streams:
        stream.send()
    try:
        return (
            measure_window(load, reader, streams)
            if load.window
            else read_to_end(load, reader, streams, started, cpu_before)
        )
    finally:
        for stream in streams:
            stream.socket.close()


def measure_window(load: Load, reader: StreamReader, streams: list[Stream]) -> LoadResult:
    """Wait until all streams have started, then measure for `load.window` seconds."""
    deadline = time.perf_counter() + 30
    while any(stream.first_token is None for stream in streams):
        reader.read(0.05)
        if time.perf_counter() > deadline:
            raise SystemExit("not every stream has started within 30 s")
    reader.read(load.warmup)
    cpu, started, before = (
        read_cpu_ns(load.pid, load.counts_children),
        time.perf_counter(),
        reader.count(),
    )
    reader.read(load.window)
    cpu, seconds, after = (
        read_cpu_ns(load.pid, load.counts_children) - cpu,
        time.perf_counter() - started,
        reader.count(),
    )
    if len(reader.unfinished) < len(streams):
        raise SystemExit("a stream ended inside the window; request more tokens")
    return LoadResult(
        seconds=seconds,
        cpu_ns=cpu,
        tokens=after[0] - before[0],
        frames=after[1] - before[1],
        first_token=[stream.first_token or 0.0 for stream in streams],
        decode_rate=[],
    )


def read_to_end(
    load: Load, reader: StreamReader, streams: list[Stream], started: float, cpu_before: int
) -> LoadResult:
    """Read all streams to their end."""
    reader.read(300)
    seconds = time.perf_counter() - started
    if reader.unfinished:
        raise SystemExit("a stream has not ended within 300 s")
    counts = [stream.tokens if stream.usage is None else stream.usage for stream in streams]
    return LoadResult(
        seconds=seconds,
        cpu_ns=read_cpu_ns(load.pid, load.counts_children) - cpu_before,
        tokens=sum(counts),
        frames=sum(stream.frames for stream in streams),
        first_token=[stream.first_token or 0.0 for stream in streams],
        decode_rate=[
            (count - 1) / (stream.last_read_at - stream.sent_at - (stream.first_token or 0.0))
            for count, stream in zip(counts, streams, strict=True)
        ],
    )


if __name__ == "__main__":
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    os.sched_setaffinity(0, {load.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(load)))
