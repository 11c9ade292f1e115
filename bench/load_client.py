"""A client that costs little: raw sockets, one epoll, no parsing of what it reads.

It counts tokens, not frames, since a server may put several tokens into one frame: in a stream of
known tokens by finding them, else from the usage the server reports. It reads the server's CPU time
itself, at the very start and end of what it measures. Run as `python -m bench.client` with a `Load`
as JSON on its standard input; a `Report` comes out.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
import time

import msgspec

from bench.measure import TOKEN, Load, Report, cpu_ns

CONTENT = re.compile(rb'"content":"[^"]')
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
FRAME = b"data: "
DONE = b"[DONE]"


class Stream:
    """One request on one connection."""

    def __init__(self, load: Load, body: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = body.encode()
        head = (
            f"POST {load.path} HTTP/1.1\r\nhost: 127.0.0.1:{load.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self._request = head.encode() + data
        self._tail = b""
        self.first: float | None = None
        self.last = 0.0
        self.tokens = self.frames = 0
        self.usage: int | None = None
        self.done = False

    def ask(self) -> None:
        self.begun = time.perf_counter()
        self.socket.sendall(self._request)
        self.socket.setblocking(False)

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        now = time.perf_counter()
        if not data:
            self.done = True
            return
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered: {data[:500]!r}")
        text = self._tail + data
        if self.first is None and CONTENT.search(text):
            self.first = now - self.begun
        old = len(self._tail)
        self.tokens += _count(text, TOKEN.encode(), old)
        self.frames += _count(text, FRAME, old)
        if b"completion_tokens" in text:
            for count in USAGE.findall(text):
                self.usage = int(count)
        self.done = DONE in text
        self.last = now
        self._tail = text[-256:]


def _count(text: bytes, wanted: bytes, old: int) -> int:
    """How often it occurs, not counting what was there whole before."""
    start = max(0, old - len(wanted) + 1)
    return text.count(wanted, start)


class Reader:
    """Reads all streams until they end or the time is up."""

    def __init__(self, streams: list[Stream]) -> None:
        self.left = {stream.socket.fileno(): stream for stream in streams}
        self._poll = select.epoll()
        for number in self.left:
            self._poll.register(number, select.EPOLLIN)

    def read(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while self.left and (left := until - time.perf_counter()) > 0:
            for number, _ in self._poll.poll(left):
                stream = self.left[number]
                stream.read()
                if stream.done:
                    self._poll.unregister(number)
                    del self.left[number]

    def totals(self) -> tuple[int, int]:
        streams = self.left.values()
        return sum(s.tokens for s in streams), sum(s.frames for s in streams)


def run(load: Load) -> Report:
    streams = [Stream(load, body) for body in load.bodies]
    reader = Reader(streams)
    before = cpu_ns(load.pid)
    begun = time.perf_counter()
    for stream in streams:
        stream.ask()
    try:
        return (
            watch(load, reader, streams)
            if load.window
            else drain(load, reader, streams, begun, before)
        )
    finally:
        for stream in streams:
            stream.socket.close()


def watch(load: Load, reader: Reader, streams: list[Stream]) -> Report:
    """Wait until all streams run, then measure for a while."""
    deadline = time.perf_counter() + 30
    while any(stream.first is None for stream in streams):
        reader.read(0.05)
        if time.perf_counter() > deadline:
            raise SystemExit("not every stream has begun within 30 s")
    reader.read(load.warm)
    cpu, begun, seen = cpu_ns(load.pid), time.perf_counter(), reader.totals()
    reader.read(load.window)
    cpu, seconds, then = cpu_ns(load.pid) - cpu, time.perf_counter() - begun, reader.totals()
    if len(reader.left) < len(streams):
        raise SystemExit("a stream ended inside the window; ask for more tokens")
    return Report(
        seconds=seconds,
        cpu_ns=cpu,
        tokens=then[0] - seen[0],
        frames=then[1] - seen[1],
        first=[stream.first or 0.0 for stream in streams],
        decode=[],
    )


def drain(load: Load, reader: Reader, streams: list[Stream], begun: float, before: int) -> Report:
    """Read everything to its end."""
    reader.read(300)
    seconds = time.perf_counter() - begun
    if reader.left:
        raise SystemExit("a stream has not ended within 300 s")
    counts = [stream.tokens if stream.usage is None else stream.usage for stream in streams]
    return Report(
        seconds=seconds,
        cpu_ns=cpu_ns(load.pid) - before,
        tokens=sum(counts),
        frames=sum(stream.frames for stream in streams),
        first=[stream.first or 0.0 for stream in streams],
        decode=[
            (count - 1) / (stream.last - stream.begun - (stream.first or 0.0))
            for count, stream in zip(counts, streams, strict=True)
        ],
    )


if __name__ == "__main__":
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    os.sched_setaffinity(0, {load.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(load)))
