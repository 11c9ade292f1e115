"""Upgrading a server without an interruption.

On SIGUSR2 a server starts its own command again and passes its listening sockets to that process.
The new process loads its model first. When it accepts connections it says so, and the old server
stops accepting, finishes the requests it has, and exits. Both accept from the same queue of the
system, so that no connection is refused. A successor that fails or exits before that changes
nothing: the old server continues.

`notify_service_manager` reports to systemd which process is the main one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from dragoman.config import get_notify_socket, make_handover_environment

log = logging.getLogger("dragoman.server")
READY = b"ready\n"
EXIT_SECONDS = 1.0


class Predecessor:
    """The server that this process takes over from."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def confirm(self) -> None:
        """Tell it, and a service manager, that this process accepts connections now."""
        notify_service_manager(f"MAINPID={os.getpid()}")
        with suppress(OSError):  # it has exited meanwhile
            self._connection.sendall(READY)
        self.close()

    def close(self) -> None:
        self._connection.close()


class Successor:
    """A process that takes over from this server."""

    def __init__(self, sockets: Sequence[socket.socket], on_ready: Callable[[], None]) -> None:
        """Start the process; `on_ready` is called when it accepts connections."""
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        self.is_starting = True
        descriptors = [theirs.fileno(), *(opened.fileno() for opened in sockets)]
        environment = make_handover_environment(descriptors)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]], env=environment, pass_fds=descriptors
            )
        self._loop.add_reader(self._connection, self._on_message)
        log.info(
            "upgrading: process %d is loading its model and will then take over", self._process.pid
        )

    def _on_message(self) -> None:
        with suppress(BlockingIOError):
            message = b""
            with suppress(ConnectionError):
                message = self._connection.recv(len(READY))
            self._close()
            if message == READY:
                self._on_ready()
            else:
                self._loop.call_later(EXIT_SECONDS, self._process.poll)  # it has exited by then
                log.error("the upgrade failed, see above; this process continues to serve")

    def _close(self) -> None:
        self.is_starting = False
        self._loop.remove_reader(self._connection)
        self._connection.close()

    def stop(self) -> None:
        """Stop a process that has not taken over yet: this server stops itself."""
        if self.is_starting:
            self._close()
            self._process.terminate()


def notify_service_manager(*assignments: str) -> None:
    """Tell systemd about the state of this process, if systemd has started it."""
    address = get_notify_socket()
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection, suppress(OSError):
        connection.connect(address)
        connection.sendall("\n".join(assignments).encode())
