"""Serving an app: listening, signals and graceful shutdown.

On the first SIGTERM or SIGINT the server rejects new requests with status 503, while
streams continue and health checks are still served. When all runs have ended, or the deadline has
passed, the remaining streams end with an error in their own wire API. A second signal skips the
wait.

SIGHUP reloads what can be changed while the server runs; if the terminal of the server was closed,
it stops the server. SIGUSR2 upgrades: a new process takes the
listening sockets (`network.handover`), and this one serves the connections it has until their
clients connect again, within the same deadline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from dragoman.config import Settings
from dragoman.errors import Draining
from dragoman.http.app import App
from dragoman.http.connection import Connection, make_connection_class
from dragoman.http.network.descriptors import DescriptorReserve
from dragoman.http.network.handover import Successor, notify_service_manager
from dragoman.http.network.idle_connections import IdleConnections
from dragoman.http.network.listener import AcceptOptions, Listener
from dragoman.http.network.process_memory import limit_fragmentation, tune_garbage_collector
from dragoman.http.network.sockets import bind_sockets
from dragoman.http.network.tls import make_certificate
from dragoman.keys import KeyFileError
from dragoman.runtime import Runtime, StartupError

log = logging.getLogger("dragoman.server")
OnListening = Callable[[str], None]  # called with the server's URL
INTERRUPT_TIMEOUT = 2.0  # seconds for interrupted requests to end
WEBSOCKET_TIMEOUT = 1.0  # seconds of `INTERRUPT_TIMEOUT` for requests over WebSockets
TICKS_PER_SECOND = 10
CLOSE_TICK = 0.01  # seconds between checks whether all connections have closed


class Server(uvicorn.Server):
    """A server that drains before it stops."""

    servers: list[Listener]  # type: ignore[assignment]
    _open_connections: IdleConnections

    def __init__(self, config: uvicorn.Config, app: App, on_listening: OnListening | None) -> None:
        super().__init__(config)
        self._app = app
        self._on_listening = on_listening
        self._deadline: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit_requested = asyncio.Event()
        self._certificate = make_certificate(app.settings)
        self._successor: Successor | None = None
        self._retires_at: float | None = None  # set once another process has taken over
        self.raises_signals = True  # raise a signal that stopped the server again at the end
        self.is_main_program = False  # handle SIGHUP and SIGUSR2, too
        self.reload_hooks: list[Callable[[], None]] = [app.reload]  # called on SIGHUP

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self._handle_reload_signals():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self._open_connections = IdleConnections(self.server_state.connections)  # type: ignore[arg-type]
        options = AcceptOptions(
            settings=self._app.settings,
            make_connection=self._make_connection,
            certificate=self._certificate,
            reserve=DescriptorReserve(),
            idle=self._open_connections,
        )
        opened = sockets or bind_sockets(self.config.host, self.config.port)
        self.servers = [Listener(listening, options) for listening in opened]
        for listener in self.servers:
            listener.start()
        self.started = True
        self._app.runtime.keys.log_warnings()
        if self._on_listening is not None:
            scheme = "http" if self._certificate is None else "https"
            self._on_listening(f"{scheme}://{format_host(self.config.host)}:{self.port}")

    def _make_connection(self, health_only: bool) -> Connection:
        connection: Connection = self.config.http_protocol_class(  # type: ignore[call-arg, assignment]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        connection.health_only = health_only
        if self._retires_at is not None:
            connection.retire()
        return connection

    @contextmanager
    def _handle_reload_signals(self) -> Iterator[None]:
        if not self.is_main_program or threading.current_thread() is not threading.main_thread():
            yield
            return
        had_terminal = os.isatty(0)

        def handle_hangup() -> None:
            if had_terminal and not os.isatty(0):  # its window was closed
                self.handle_exit(signal.SIGHUP, None)
            else:
                self.reload()

        handlers = {signal.SIGHUP: handle_hangup, signal.SIGUSR2: self.upgrade}
        loop = asyncio.get_running_loop()
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def reload(self) -> None:
        """Reload the certificate, and what else can be changed while the server runs."""
        if self._certificate is not None:
            self._certificate.refresh(is_forced=True)
        for hook in self.reload_hooks:
            hook()

    def upgrade(self) -> None:
        """Start a process that takes over."""
        is_starting = self._successor is not None and self._successor.is_starting
        if self.should_exit or is_starting or self._retires_at is not None:
            log.warning("SIGUSR2 has no effect: the server is being upgraded or stopped already")
            return
        sockets = [opened for listener in self.servers for opened in listener.sockets]
        try:
            self._successor = Successor(sockets, self._retire)
        except OSError as error:
            log.error("cannot start a new process: %s", error.strerror)

    def _retire(self) -> None:
        """Accept no more connections, and serve those that are open until they end."""
        seconds = self._app.settings.drain
        self._retires_at = time.monotonic() + seconds
        connections = list(self.server_state.connections)
        log.info(
            "a new process has taken over; waiting up to %.0f s for %d connections",
            seconds,
            len(connections),
        )
        for listener in self.servers:
            listener.close()
        for connection in connections:
            connection.retire()  # type: ignore[union-attr]
        self._app.websockets.drain(seconds)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.raises_signals:
            self._captured_signals.append(sig)
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        if self._loop is not None:  # signals and other threads call this
            self._loop.call_soon_threadsafe(self._exit_requested.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        counter = 0
        try:
            while not await self.on_tick(counter):
                counter += 1
                await self._wait_for_tick()
        except asyncio.CancelledError:  # the program around the server stops it, without signals
            await self._interrupt()
            await self.shutdown()
            raise
        finally:
            self._loop = None

    async def _wait_for_tick(self) -> None:
        """Wait until the next tick is due, or a signal asks to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1 / TICKS_PER_SECOND):
                await self._exit_requested.wait()
        self._exit_requested.clear()

    async def on_tick(self, counter: int) -> bool:
        """Do what is due, such as draining; return True once the server may shut down."""
        if self._certificate is not None and counter % TICKS_PER_SECOND == 0:
            self._certificate.refresh()
        if self._retires_at is not None and not self.should_exit:
            is_over = time.monotonic() >= self._retires_at
            is_used = self._open_connections.count_open() or self._is_busy()
            self.should_exit = is_over or not is_used
            self._deadline = self._retires_at
        if not await super().on_tick(counter):
            return False
        runs = self._app.responder.runs
        if self._deadline is None:
            notify_service_manager("STOPPING=1")
            if self._successor is not None:
                self._successor.stop()
            seconds = self._app.settings.drain
            self._deadline = time.monotonic() + seconds
            self._app.drain(seconds)
            if len(runs):
                noun = "request" if len(runs) == 1 else "requests"
                log.info("stopping: waiting up to %.0f s for %d %s", seconds, len(runs), noun)
        if self._is_busy() and not self.force_exit and time.monotonic() < self._deadline:
            return False
        await self._interrupt()
        return True

    def _is_busy(self) -> bool:
        return bool(len(self._app.responder.runs) or len(self._app.websockets))

    async def _interrupt(self) -> None:
        """End the runs that are still in progress, each with an error to its client."""
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
        for opened in (*self.servers, *(sockets or ())):
            opened.close()
        for task in self._open_connections.starting:
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_until_closed()
        for connection in list(self.server_state.connections):  # their clients do not read
            connection.transport.abort()
        await self._app.aclose()

    async def _wait_until_closed(self) -> None:
        state = self.server_state
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # there is no event to wait for
                while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(CLOSE_TICK)
                for listener in self.servers:
                    await listener.wait_closed()
        except TimeoutError:
            for task in state.tasks:
                task.cancel()

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
        http=make_connection_class(settings, app.router, app.body_limit),
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


def tune_process() -> None:
    """Allow many connections, and exclude existing objects from garbage collection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tune_garbage_collector()


def make_app(runtime: Runtime, *, local: bool) -> App:
    """Make the app of a runtime, with its API keys.

    `local` is for a server of our own: it guards the Host and Origin headers, and needs a key or
    `--allow-open` on an address that others can reach. A mounted app leaves both to the program
    around it.
    """
    settings = runtime.settings
    has_keys = runtime.keys.required
    if local and not settings.is_loopback and not has_keys and not settings.allow_open:
        raise StartupError(
            f"Listening on {settings.host} without an API key would give everyone access. "
            "Set --api-key, or --allow-open to allow it."
        )
    try:
        return App(runtime, local)
    except KeyFileError as error:
        raise StartupError(str(error)) from None


def run_event_loop(main: Coroutine[object, object, None]) -> None:
    """Run a coroutine on uvloop where that is available, in a process of our own."""
    limit_fragmentation()
    factory = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
