"""The least that a Python server can do, as a lower bound for CPU time.

It hardly parses the request, encodes no JSON and has no task per stream: each step writes one
prebuilt chunk to every open connection. No useful server can be cheaper.
Run as `python -m bench.minimal_server PORT PACE`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import uvloop

from bench.measure import TOKEN

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    f'"created":{int(time.time())},"model":"bench","choices":[{{"index":0,"delta":{{"content":'
    f'"{TOKEN}"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
).encode()
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


class StreamConnection(asyncio.Protocol):
    """One connection: streams from the end of its request until it is closed."""

    writable: set[StreamConnection] = set()  # noqa: RUF012, shared by all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._received = b""
        self.write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if blank and len(body) >= length:
            self._received = b""
            self.write(HEAD)
            self.writable.add(self)

    def pause_writing(self) -> None:
        self.writable.discard(self)

    def resume_writing(self) -> None:
        self.writable.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.writable.discard(self)


async def main(port: int, pace: float) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(StreamConnection, "127.0.0.1", port)
    while True:
        await asyncio.sleep(pace if StreamConnection.writable else pace or 0.01)
        for connection in tuple(StreamConnection.writable):
            connection.write(CHUNK)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
