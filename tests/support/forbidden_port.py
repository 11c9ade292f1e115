"""A port that nothing may connect to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watch_port() -> Iterator[tuple[int, list[bytes]]]:
    """A port on all addresses of this machine, and the connections to it."""
    connections: list[bytes] = []
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)

    def accept() -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            connections.append(str(address).encode())
            connection.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1], connections
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
