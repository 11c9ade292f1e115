"""A request on one of our own connections: shortcuts that ASGI messages do not offer.

A body that has arrived completely is taken at once. A disconnect calls a function, so that no task
has to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class DirectRequest:
    """A request on one of our own connections."""

    __slots__ = ("_cycle", "_on_disconnect")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._on_disconnect: Callable[[], None] | None = None

    def take_body(self, limit: int) -> bytes | None:
        """Return the body if all of it has arrived and it is no larger, and remove it here."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or len(cycle.body) > limit:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def watch_disconnect(self, on_disconnect: Callable[[], None]) -> Callable[[], None]:
        """Call a function when the client disconnects; return a function that stops watching."""
        cycle = self._cycle
        cycle.flow.resume_reading()  # else the end of the connection would not be noticed
        self._on_disconnect = on_disconnect
        if cycle.disconnected:
            asyncio.get_running_loop().call_soon(self.report_disconnect)
        return self._stop_watching

    def _stop_watching(self) -> None:
        self._on_disconnect = None

    def report_disconnect(self) -> None:
        """The client has disconnected."""
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()
