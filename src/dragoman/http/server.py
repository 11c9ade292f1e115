"""Serving an app: listening, signals and graceful shutdown.

Sockets are bound before anything is loaded, so that a bad address fails at once.

On the first SIGTERM or SIGINT the server rejects new requests with status 503, while
streams continue and health checks are still served. When all runs have ended, or the deadline has
passed, the remaining streams end with an error in their own wire API. A second signal skips the
wait.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from dragoman.config import Settings
from dragoman.errors import Draining
from dragoman.http.app import App
from dragoman.http.auth import ApiKeys
from dragoman.http.connection import make_connection_class
from dragoman.runtime import Runtime, StartupError

log = logging.getLogger("dragoman.server")
OnListening = Callable[[str], None]  # called with the server's URL
INTERRUPT_TIMEOUT = 2.0  # seconds for interrupted requests to end
UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
WEBSOCKET_TIMEOUT = 1.0  # of these, for those over WebSockets


class Server(uvicorn.Server):
    """A server that drains before it stops."""

    def __init__(self, config: uvicorn.Config, app: App, on_listening: OnListening | None) -> None:
        super().__init__(config)
        self._app = app
        self._on_listening = on_listening
        self._deadline: float | None = None
        self.raises_signals = True  # raise a signal that stopped the server again at the end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_listening is not None:
            self._on_listening(f"http://{format_host(self.config.host)}:{self.port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.raises_signals:
            self._captured_signals.append(sig)
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def main_loop(self) -> None:
        try:
            await super().main_loop()
        except asyncio.CancelledError:  # the program around the server stops it, without signals
            await self._interrupt()
            await self.shutdown()
            raise

    async def on_tick(self, counter: int) -> bool:
        if not await super().on_tick(counter):
            return False
        runs = self._app.responder.runs
        if self._deadline is None:
            seconds = self._app.settings.drain
            self._deadline = time.monotonic() + seconds
            self._app.drain(seconds)
            if len(runs):
                noun = "request" if len(runs) == 1 else "requests"
                log.info("stopping: waiting up to %.0f s for %d %s", seconds, len(runs), noun)
        busy = len(runs) or len(self._app.websockets)
        if busy and not self.force_exit and time.monotonic() < self._deadline:
            return False
        await self._interrupt()
        return True

    async def _interrupt(self) -> None:
        runs = self._app.responder.runs
        runs.interrupt_all(lambda: Draining("The server stopped before the answer was finished."))
        try:
            async with asyncio.timeout(INTERRUPT_TIMEOUT):
                await runs.wait_idle()
                await self._app.websockets.close_all(WEBSOCKET_TIMEOUT)
        except TimeoutError:
            log.warning("%d requests did not end in time", len(runs))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.force_exit = False  # all runs were interrupted; connections close at once
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # their clients do not read
            connection.transport.abort()
        await self._app.aclose()

    @property
    def port(self) -> int:
        """The port that the server listens on, even if it is configured as 0."""
        return int(self.servers[0].sockets[0].getsockname()[1])


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_server(app: App, settings: Settings, on_listening: OnListening | None = None) -> Server:
    """Make a server for the app; `on_listening` is called with its URL once it listens."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=make_connection_class(settings, app.router),
        ws="none",  # our own connections serve WebSockets
        lifespan="off",
        loop="auto",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        backlog=4096,
    )
    return Server(config, app, on_listening)


@contextmanager
def bind_sockets(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Bind a socket for each address of the host, or raise `StartupError`. Closes them."""
    sockets = _bind_all(host, port)
    try:
        yield sockets
    finally:
        for opened in sockets:
            opened.close()


def _bind_all(host: str, port: int) -> list[socket.socket]:
    try:
        infos = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise StartupError(f"--host: {host!r} is not an address of this machine.") from None
    sockets: list[socket.socket] = []
    failures: list[OSError] = []
    for family, _, _, _, address in dict.fromkeys(infos):
        if sockets and not port:  # every address gets the port that the first one got
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        try:
            sockets.append(_bind(family, address))
        except OSError as error:
            failures.append(error)
    # An address of a family that is turned off, as ::1 of localhost may be, does not count.
    serious = [error for error in failures if error.errno not in UNAVAILABLE or not sockets]
    if serious:
        for opened in sockets:
            opened.close()
        raise StartupError(_explain_bind_failure(serious[0], host, port)) from None
    return sockets


def _bind(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if opened.family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _explain_bind_failure(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} of {host} is in use. Stop the program that uses it, "
                "or choose another port with --port."
            )
        case errno.EACCES:
            return f"Port {port} needs more rights. Choose a port above 1023 with --port."
        case errno.EADDRNOTAVAIL:
            return f"--host: {host!r} is not an address of this machine."
        case _:
            return f"Cannot listen on {host}, port {port}: {error.strerror or error}."


def tune_process() -> None:
    """Allow many connections, and exclude existing objects from garbage collection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 50)


def make_app(runtime: Runtime, *, local: bool) -> App:
    """Make the app of a runtime, with its API keys.

    `local` is for a server of our own: it guards the Host header on a loopback address, and needs a
    key or `--allow-open` on any other. A mounted app leaves both to the program around it.
    """
    settings = runtime.settings
    file = Path(settings.api_key_file) if settings.api_key_file else None
    try:
        keys = ApiKeys(settings.api_key, settings.admin_key, file)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise StartupError(f"--api-key-file: cannot read {str(file)!r}: {problem}.") from None
    except ValueError as error:
        raise StartupError(str(error)) from None
    if local and not settings.is_loopback and not keys.required and not settings.allow_open:
        raise StartupError(
            f"Listening on {settings.host} without an API key would give everyone access. "
            "Set --api-key, or --allow-open to allow it."
        )
    return App(runtime, keys, local and settings.is_loopback)


def run_event_loop(main: Coroutine[object, object, None]) -> None:
    """Run a coroutine on uvloop where that is available."""
    factory = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
