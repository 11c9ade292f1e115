"""The least a Python server can do, as a yardstick: prepared bytes, written from the step loop.

No parsing worth the name, no JSON, no task per stream: each step writes one ready-made chunk to
every open connection. Nothing that is useful can be cheaper. Run as `python -m bench.floor PORT
PACE`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

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


class Stream(asyncio.Protocol):
    """One connection: streams from the end of its request until it is closed."""

    open: set[Stream] = set()  # noqa: RUF012, every connection that can take more

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._heard = b""
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, blank, body = self._heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if blank and len(body) >= length:
            self._heard = b""
            self.write(HEAD)
            self.open.add(self)

    def pause_writing(self) -> None:
        self.open.discard(self)

    def resume_writing(self) -> None:
        self.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.open.discard(self)


async def main(port: int, pace: float) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Stream, "127.0.0.1", port)
    while True:
        await asyncio.sleep(pace if Stream.open else pace or 0.01)
        for stream in tuple(Stream.open):
            stream.write(CHUNK)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
