"""A web server of files on this machine, which records its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from tests.support.mcp_servers import LocalServer, serve_app


class FileAnswer(Struct, frozen=True):
    """What the server sends for a path; `chunks` are sent until the client is gone."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}
    chunks: bool = False


Answers = Mapping[str, FileAnswer] | Callable[[str], FileAnswer]


def make_file_app(answers: Answers) -> Any:
    find: Callable[[str], FileAnswer | None] = (
        answers.get if isinstance(answers, Mapping) else answers
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer = find(scope["path"]) or FileAnswer(status=404)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        while answer.chunks and not gone.done():
            await send({"type": "http.response.body", "body": answer.body, "more_body": True})
            await asyncio.sleep(0)
        gone.cancel()
        await send({"type": "http.response.body", "body": answer.body})

    return app


async def wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def serve_files(answers: Answers, **options: Any) -> Iterator[LocalServer]:
    with serve_app(make_file_app(answers), **options) as server:
        yield server
