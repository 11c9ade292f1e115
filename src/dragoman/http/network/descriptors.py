"""A reserve of file descriptors, so that a server that runs out of them still answers probes.

When fewer than `reserve` are left, a new connection may only ask for the health of the server. When
half of these are gone, it takes the place of one that has not asked yet, or is refused at once.
What remains is for engines that restart and for the database. Meanwhile the connections that have
been idle the longest are closed.

Connections are counted. All other descriptors (of engines, the database, log files) are listed by
the system, at most once per `LIST_INTERVAL`, because a list takes time where there are many.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from contextlib import suppress
from typing import Literal, TypeAlias

log = logging.getLogger("dragoman.server")
MIN_RESERVE, MAX_RESERVE = 16, 256
LIST_INTERVAL = 1.0  # seconds between two lists
LOG_INTERVAL = 10.0  # seconds between two lines of the log about the same shortage
LISTS = ("/proc/self/fd", "/dev/fd")  # of Linux, and of other systems
Supply: TypeAlias = Literal["plenty", "reserve", "none"]


class DescriptorReserve:
    """Tells how many file descriptors are left, and logs when they run out."""

    def __init__(self) -> None:
        self._logged_at = self._listed_at = float("-inf")
        self._others = 0  # descriptors that are not connections

    def check(self, descriptor: int, connections: int) -> Supply:
        """Return what is left after a connection that has this descriptor."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return "plenty"
        # The lowest free number is given to a new descriptor, so at least that many are in use.
        is_near = 2 * max(descriptor, connections + self._others) >= limit
        if is_near or limit <= 1024:
            self._list_others(connections)
        reserve = min(max(MIN_RESERVE, limit // 8), MAX_RESERVE)
        left = limit - max(descriptor + 1, connections + self._others)
        if left >= reserve:
            return "plenty"
        self.log_shortage(f"{max(left, 0)} of {limit} file descriptors are left")
        return "reserve" if left >= reserve // 2 else "none"

    def _list_others(self, connections: int) -> None:
        now = time.monotonic()
        if now - self._listed_at < LIST_INTERVAL:
            return
        self._listed_at = now
        path = next((path for path in LISTS if os.path.isdir(path)), None)
        if path is not None:
            with suppress(OSError):  # there is no descriptor left to list them
                self._others = max(0, len(os.listdir(path)) - 1 - connections)

    def log_shortage(self, problem: str) -> None:
        """Log that descriptors run out, unless it was logged a moment ago."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            log.error(
                "%s: only health checks are served on new connections. Raise the limit "
                "(`ulimit -n`, or LimitNOFILE= of systemd), or lower the number of clients.",
                problem,
            )
