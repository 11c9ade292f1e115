"""Closes connections that nobody uses, when file descriptors run out."""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

INTERVAL = 0.1  # seconds between two searches for idle connections
MIN_IDLE = 1.0  # seconds until a connection counts as idle
MIN_CLOSED = 8  # how many are closed at a time, or a quarter of them


class IdleConnection(Protocol):
    """A connection that can tell how long it has been idle."""

    transport: asyncio.Transport
    idle_since: float

    @property
    def is_idle(self) -> bool: ...


class RestrictedConnection(Struct, eq=False):
    """A connection that was accepted for a health check alone."""

    accepted: socket.socket
    connection: IdleConnection | None = None  # once it is made

    @property
    def is_open(self) -> bool:
        return self.accepted.fileno() >= 0

    @property
    def is_idle(self) -> bool:
        return self.connection is None or self.connection.is_idle


class IdleConnections:
    """Finds idle connections among all of a server."""

    def __init__(self, connections: Collection[IdleConnection]) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._closed_at = 0.0
        self._restricted: list[RestrictedConnection] = []  # oldest first
        self._replaced: RestrictedConnection | None = None
        self.starting: set[asyncio.Task[None]] = set()  # connections that are not made yet

    def count_open(self) -> int:
        return len(self._connections) + len(self.starting)

    def restrict(self, accepted: socket.socket) -> RestrictedConnection:
        """Remember a connection that was accepted for a health check."""
        self._restricted = [each for each in self._restricted if each.is_open]
        self._restricted.append(RestrictedConnection(accepted))
        return self._restricted[-1]

    @property
    def is_replacing(self) -> bool:
        """Whether a connection is being closed for another one; its descriptor is free soon."""
        return self._replaced is not None and self._replaced.is_open

    def replace_restricted(self) -> bool:
        """Close the oldest connection that was accepted for a health check and has not asked."""
        for restricted in self._restricted:
            if restricted.is_open and restricted.is_idle:
                self._replaced = restricted
                with suppress(OSError):  # the client has closed it already
                    restricted.accepted.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def close_oldest(self) -> None:
        """Close the connections that have been idle the longest; not more often than `INTERVAL`."""
        now = self._loop.time()
        if now < self._closed_at + INTERVAL:
            return
        self._closed_at = now
        idle = [
            connection
            for connection in self._connections
            if connection.is_idle and now - connection.idle_since >= MIN_IDLE
        ]
        count = max(MIN_CLOSED, len(idle) // 4)
        for connection in heapq.nsmallest(count, idle, key=lambda each: each.idle_since):
            connection.transport.close()
