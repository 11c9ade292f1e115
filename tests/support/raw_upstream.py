"""An upstream server that answers requests for tokens with any bytes, well-formed or not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec

from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.types import Json

GENERATE = "/inference/v1/generate"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = EVENTS + b"transfer-encoding: chunked\r\n\r\n"
Play: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]
Answer: TypeAlias = Sequence[bytes] | Play  # parts to send, or a function that sends them


def make_frame(ids: Sequence[int], finish: str | None = None, **fields: Json) -> bytes:
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": finish} | fields
    return b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n"


def make_end(count: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": count}
    return b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def chunk(*parts: bytes) -> bytes:
    """Return parts as chunks, without the last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def make_body(text: str, finish: str = "stop") -> list[bytes]:
    ids = list(text.encode())
    frames = [make_frame([token]) for token in ids[:-1]]
    return [*frames, make_frame(ids[-1:], finish), make_end(len(ids)), DONE]


def make_answer(text: str) -> list[bytes]:
    """Return an answer as it should be."""
    return [CHUNKED + chunk(*make_body(text)) + b"0\r\n\r\n"]


class RawUpstream:
    """Serves one model at a prefix; answers are played one by one, the last one again."""

    def __init__(self, *answers: Answer, prefix: str = "") -> None:
        self.answers = list(answers)
        self.model = "raw"
        self.listed: dict[str, Json] = {}  # what it says about the model besides
        self.prefix = prefix
        self.requests: list[tuple[str, dict[str, str]]] = []  # paths and headers
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def run(
        self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[RawUpstream]:
        self._server = await asyncio.start_server(self._accept, host, 0, ssl=tls)
        name = f"[{host}]" if ":" in host else host
        scheme = "http" if tls is None else "https"
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{scheme}://{name}:{port}{self.prefix}"
        try:
            yield self
        finally:
            self._server.close()
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.close_connections()

    def close_connections(self) -> None:
        for writer in [*self._writers]:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = head.strip().split("\r\n")
        headers = dict(field.split(": ", 1) for field in fields)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = line.split()[1]
        self.requests.append((path, headers))
        if path == self.prefix + GENERATE:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await self._play(writer, answer)
        elif path == f"{self.prefix}/v1/models":
            send_json(writer, {"data": [{"id": self.model} | self.listed]})
        elif path == f"{self.prefix}/tokenize":
            send_json(writer, {"tokens": list(msgspec.json.decode(body)["prompt"].encode())})
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async def _play(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        if callable(answer):
            await answer(writer)
            return
        for part in answer:
            writer.write(part)
            await writer.drain()


def send_json(writer: asyncio.StreamWriter, content: Json) -> None:
    body = msgspec.json.encode(content)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


@asynccontextmanager
async def open_raw(server: RawUpstream, **settings: Json) -> AsyncIterator[RemoteEngine]:
    """Connect to a server; its first answer is used up by that."""
    fields: dict[str, Json] = {
        "url": server.url,
        "first_retry_delay": 0.01,
        "max_retry_delay": 0.05,
        "identity_interval": 0.0,
        "grammars": False,
    }
    upstream = Upstream(protocol="vllm-generate", model=server.model, context=4096)
    vocabulary = ByteTokenizer().vocabulary
    engine = await connect(RemoteSettings(**fields | settings), upstream, vocabulary)
    try:
        yield engine
    finally:
        await engine.aclose()
