"""Detects disconnects of clients that close their sending half before they have the response.

Some clients close the sending half of the connection after their request and wait for the
response. On the wire this looks like a client that has disconnected: both send FIN. What tells them
apart is what happens to bytes that are sent to them: the system of a client that has disconnected
answers with a reset. So the first bytes of whatever comes next are sent at once, as a probe. They
are the same in any case: the start of the status line, or in a chunked body a zero before the size
of the next chunk. A reset then cancels the request, after one round trip, and the rest of the
response goes to a client that still reads.

A client that first closes its half and disconnects later sends nothing then. So while the response
has not started, its status line is sent byte by byte, in growing intervals. Events of a stream are
probes themselves.

TLS has no half-close that servers can rely on; there, the end of input is a disconnect.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

FIRST_CHECK, LAST_CHECK = 0.001, 1.0  # seconds between checks; each interval doubles the last
FIRST_PROBE = 1.0  # seconds until the second probe; each interval doubles the last


class HalfClose:
    """Watches a client that has closed its sending half."""

    def __init__(self, transport: asyncio.Transport, write_probe: Callable[[], None]) -> None:
        self._transport = transport
        self._write_probe = write_probe
        self._loop = asyncio.get_running_loop()
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), 0)  # errors alone
        self._interval = FIRST_CHECK
        self._probe_interval = FIRST_PROBE
        self._probe_at = self._loop.time() + FIRST_PROBE
        self._timer = self._loop.call_later(self._interval, self._check)
        write_probe()

    def _check(self) -> None:
        if self._poll.poll(0):  # a reset has arrived
            self._transport.abort()
            return
        if self._loop.time() >= self._probe_at:
            self._probe_interval *= 2
            self._probe_at += self._probe_interval
            self._interval = FIRST_CHECK
            self._write_probe()
        else:
            self._interval = min(2 * self._interval, LAST_CHECK)
        self._timer = self._loop.call_later(self._interval, self._check)

    def stop(self) -> None:
        self._timer.cancel()
