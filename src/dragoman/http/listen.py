"""Binds the sockets of a server before anything is loaded, so that a bad address fails at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.runtime import StartupError


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
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            if sockets and not port:  # every address gets the port that the first one got
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sockets.append(_bind(socket.socket(family, kind, protocol), address))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise StartupError(_explain(error, host, port)) from None
    return sockets


def _bind(opened: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if opened.family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.setblocking(False)
        # A program that listens with SO_REUSEADDR lets us bind; only listening fails then.
        opened.listen(1)
    except OSError:
        opened.close()
        raise
    return opened


def _explain(error: OSError, host: str, port: int) -> str:
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
