"""Accepts the connections of one listening socket.

A connection gets TLS if the server has a certificate, within a time limit; a client that speaks
plain HTTP to such a server gets an error that says so. A connection that takes one of the last file
descriptors is restricted or refused, see `descriptors`. TCP keep-alive detects peers that vanish
without closing the connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from dragoman.config import Settings
from dragoman.errors import DragomanError, InvalidHttp, TooManyConnections
from dragoman.http.closing import encode_rejection
from dragoman.http.connection import Connection
from dragoman.http.network.descriptors import DescriptorReserve
from dragoman.http.network.idle_connections import IdleConnections, RestrictedConnection
from dragoman.http.network.tls import TlsCertificate

log = logging.getLogger("dragoman.server")
BACKLOG = 4096
ACCEPTS_PER_WAKEUP = 64  # then other work gets its turn
RETRY_SECONDS = 0.5  # after the system refused to accept
TLS_SHUTDOWN_SECONDS = 1.0  # for the client to answer the end of a TLS connection
HANDSHAKE_RECORD = b"\x16"  # the first byte of TLS
# Seconds until the system probes a silent connection, between probes, and how many.
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
REFUSAL_READS = 16  # of what a refused client has sent
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MakeConnection = Callable[[bool], Connection]  # True: it may only serve health checks


class AcceptOptions(Struct, frozen=True, eq=False):
    """What the listeners of a server share."""

    settings: Settings
    make_connection: MakeConnection
    certificate: TlsCertificate | None
    reserve: DescriptorReserve
    idle: IdleConnections


class Listener:
    """Accepts connections until it is closed."""

    def __init__(self, listening: socket.socket, options: AcceptOptions) -> None:
        self._socket = listening
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._spare: int | None = None  # a descriptor that is given up to refuse a connection
        self.is_open = False

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._socket,)

    def start(self) -> None:
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._accept_waiting)
        self._open_spare()
        self.is_open = True

    def close(self) -> None:
        """Accept nothing more. Connections that are open or being opened stay so."""
        if not self.is_open:
            return
        self.is_open = False
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._close_spare()

    async def wait_closed(self) -> None:
        """Return at once: `close` has closed everything. `asyncio.Server` has this method, too."""

    def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            if self._options.idle.is_replacing:
                return  # the next wake-up comes at once
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # the client has gone again
                continue
            except OSError as error:
                self._on_accept_failed(error)
                return
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        idle = self._options.idle
        supply = self._options.reserve.check(connection.fileno(), idle.count_open() + 1)
        if supply != "plenty":
            idle.close_oldest()
        if supply == "none" and not idle.replace_restricted():
            self._refuse(connection, _make_refusal())
            return
        connection.setblocking(False)
        self._set_probes(connection)
        restricted = None if supply == "plenty" else idle.restrict(connection)
        task = self._loop.create_task(self._connect(connection, restricted))
        idle.starting.add(task)
        task.add_done_callback(idle.starting.discard)

    def _set_probes(self, connection: socket.socket) -> None:
        """Let the system notice a peer that has vanished."""
        timeout = max(1.0, self._options.settings.stall)
        options = KEEP_ALIVE | {"TCP_USER_TIMEOUT": int(timeout * 1000)}
        with suppress(OSError):  # sockets that are not TCP have none of this
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):  # else, another system than Linux
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def _connect(
        self, accepted: socket.socket, restricted: RestrictedConnection | None
    ) -> None:
        options, loop = self._options, self._loop

        def make_connection() -> Connection:
            connection = options.make_connection(restricted is not None)
            if restricted is not None:
                restricted.connection = connection
            return connection

        try:
            if options.certificate is None:
                await loop.connect_accepted_socket(make_connection, accepted)
            elif await self._starts_handshake(accepted):
                await loop.connect_accepted_socket(
                    make_connection,
                    accepted,
                    ssl=options.certificate.context,
                    ssl_handshake_timeout=options.settings.receive_timeout,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
                )
        except OSError as error:  # with those of TLS
            log.debug("a connection failed: %s", error)

    async def _starts_handshake(self, connection: socket.socket) -> bool:
        """Whether the client begins with TLS; a connection that does not is closed."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        first = b""
        try:
            async with asyncio.timeout(self._options.settings.receive_timeout):
                await readable.wait()
            first = connection.recv(1, socket.MSG_PEEK)
        finally:
            self._loop.remove_reader(connection)
            if first != HANDSHAKE_RECORD:
                self._close_plain(connection, first)
        return first == HANDSHAKE_RECORD

    def _close_plain(self, connection: socket.socket, first: bytes) -> None:
        if first.isalpha():  # a method of HTTP
            message = "This server speaks HTTPS: use a URL that starts with https://."
            self._refuse(connection, InvalidHttp(message))
        else:
            connection.close()

    def _on_accept_failed(self, error: OSError) -> None:
        if error.errno not in EXHAUSTED:
            log.error("cannot accept a connection: %s", error.strerror)
            self._pause()
            return
        self._options.reserve.log_shortage(f"cannot accept a connection: {error.strerror}")
        self._options.idle.close_oldest()
        self._close_spare()
        try:
            connection, _ = self._socket.accept()
        except OSError:  # another thread took the descriptor
            self._pause()
        else:
            self._refuse(connection, _make_refusal())
        self._open_spare()

    def _open_spare(self) -> None:
        if self._spare is not None:
            return
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self._open_spare()
        self._loop.add_reader(self._socket, self._accept_waiting)

    def _refuse(self, connection: socket.socket, error: DragomanError) -> None:
        """Close a connection at once, with a response where the client can read it."""
        with connection, suppress(OSError):
            connection.setblocking(False)
            if self._options.certificate is None or isinstance(error, InvalidHttp):
                connection.send(encode_rejection(error))
                connection.shutdown(socket.SHUT_WR)
            for _ in range(REFUSAL_READS):  # unread data would turn the close into a reset
                if not connection.recv(65536):
                    break


def _make_refusal() -> TooManyConnections:
    return TooManyConnections("The server has too many open connections.", retry_after=1)
