"""Requests to an app in this process, for commands that load a model themselves.

The app is the one that `dragoman serve` serves, called directly instead of over a socket, so a
conversation is the same with and without a server, and no other program can reach it. It runs on an
event loop in a thread; the thread of the command stays free to wait for Ctrl-C.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from dragoman.cli.client.transport import RequestFailed, split_lines
from dragoman.config import Settings

if TYPE_CHECKING:
    from dragoman.http.app import App
    from dragoman.http.asgi import Message

T = TypeVar("T")
# What only matters to other clients. Nothing is stored on disk.
LOCAL_SETTINGS = {
    "host": "127.0.0.1",
    "api_key": (),
    "api_key_file": "",
    "admin_key": (),
    "key_entries": (),
    "key_limits": {},
    "audit_log": "",
    "store": "sqlite://",
}


class LocalTransport:
    """An app with one model that was loaded for it."""

    def __init__(self, settings: Settings, model: str, on_loading: Callable[[], None]) -> None:
        """Load the model. This takes as long as it takes; Ctrl-C ends it.

        `on_loading` is called when everything was checked that can be checked before.
        """
        self.address = "this process"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="app", daemon=True)
        self._app: App | None = None
        self._thread.start()
        try:
            self._run(self._start(replace(settings, **LOCAL_SETTINGS), model, on_loading))
        except BaseException:
            self.close()
            raise

    async def _start(self, settings: Settings, model: str, on_loading: Callable[[], None]) -> None:
        from dragoman.http.server import make_app
        from dragoman.runtime import build_models, build_runtime

        models = await asyncio.to_thread(build_models, settings, model)
        self._app = make_app(build_runtime(models, settings), local=True)
        on_loading()
        await models.load(models.default_name, wait=float("inf"))

    def send(self, method: str, path: str, body: bytes | None = None) -> LocalResponse:
        if self._app is None:
            raise RequestFailed("The model is not loaded.")
        return LocalResponse(self._app, self._loop, (method, path, body or b""))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        if self._app is not None:
            self._run(self._app.aclose())
        self._run(_cancel_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the app's loop. Ctrl-C cancels it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class LocalResponse:
    """A response of the app; its messages arrive in a queue."""

    def __init__(
        self, app: App, loop: asyncio.AbstractEventLoop, request: tuple[str, str, bytes]
    ) -> None:
        self._app = app
        self._loop = loop
        self._request = request
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._is_body_sent = False
        self._disconnected = asyncio.Event()
        asyncio.run_coroutine_threadsafe(self._call_app(), loop)
        try:
            start = self._messages.get()
        except BaseException:
            self.close()
            raise
        if start is None:
            raise RequestFailed("The request was cancelled.")
        self.status = int(start["status"])
        self.headers = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in start["headers"]
        ]

    async def _call_app(self) -> None:
        method, path, body = self._request
        length = str(len(body)).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", length),
            ],
        }
        try:
            await self._app(scope, self._receive, self._send)
        finally:
            self._messages.put(None)

    async def _receive(self) -> Message:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self._request[2]}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._messages.put(message)

    def read(self) -> bytes:
        return b"".join(self._read_chunks())

    def read_lines(self) -> Iterator[bytes]:
        return split_lines(self._read_chunks())

    def _read_chunks(self) -> Iterator[bytes]:
        while (message := self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._disconnected.set)


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
