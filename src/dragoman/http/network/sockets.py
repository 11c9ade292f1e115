"""The sockets that a server listens on: bound here, or passed by systemd or the previous server.

Sockets are bound before anything is loaded, so that a bad address fails at once. Sockets that are
passed must be those of `--host` and `--port`, because what protects a server depends on its
address.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from dragoman.config import take_handover, take_listen_fds
from dragoman.http.network.handover import Predecessor
from dragoman.runtime import StartupError

NOT_A_HOST = re.compile(r"[/\[\]\s]|^[^:]+:\d+$")  # a URL, an address in brackets, or with a port
UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
Address: TypeAlias = tuple[Any, ...]  # host, port, and more with IPv6


class ListeningSockets(list[socket.socket]):
    """The sockets of a server, and the server that passed them, if one did."""

    predecessor: Predecessor | None = None


@contextmanager
def open_sockets(host: str, port: int) -> Iterator[ListeningSockets]:
    """Take the sockets that were passed, or bind one for each address of the host.

    Closes them. Raises `StartupError`.
    """
    descriptors = take_handover()
    sockets = ListeningSockets()
    try:
        if descriptors:
            sockets.predecessor = Predecessor(socket.socket(fileno=descriptors.pop(0)))
        sockets += [socket.socket(fileno=number) for number in descriptors or take_listen_fds()]
        if sockets:
            _check_addresses(sockets, host, port)
        else:
            sockets += bind_sockets(host, port)
        yield sockets
    finally:
        for opened in sockets:
            opened.close()
        if sockets.predecessor is not None:
            sockets.predecessor.close()


def _check_addresses(sockets: list[socket.socket], host: str, port: int) -> None:
    expected = {(family, address[0]) for family, address in _resolve(host, port)}
    for opened in sockets:
        if opened.family not in (socket.AF_INET, socket.AF_INET6):
            raise StartupError(
                "The listening socket that was passed to the server is not a TCP socket."
            )
        own_host, own_port, *_ = opened.getsockname()
        if (opened.family, own_host) not in expected or port not in (0, own_port):
            raise StartupError(
                f"The listening socket that was passed to the server has the address {own_host}, "
                f"port {own_port}, not that of --host {host} and --port {port}. Set these to its "
                "address; to change the address of a server, restart it."
            )


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        if NOT_A_HOST.search(host):  # no name server needs to be asked
            raise OSError
        infos = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        hint = " Set the port with --port." if re.search(r":\d+$", host) else ""
        raise StartupError(f"--host: {host!r} is not an address of this machine.{hint}") from None
    return [(family, address) for family, _, _, _, address in dict.fromkeys(infos)]


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind a socket for each address of the host, or raise `StartupError`."""
    sockets: list[socket.socket] = []
    failures: list[OSError] = []
    for family, address in _resolve(host, port):
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


def _bind(family: socket.AddressFamily, address: Address) -> socket.socket:
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
