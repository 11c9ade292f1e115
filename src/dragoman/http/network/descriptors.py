"""A reserve of file descriptors, so that a server that runs out of them still answers probes.

The system gives a new connection the lowest number that is free. So the number tells how many are
in use, whoever uses them: connections, engines, the database. When fewer than `reserve` are left,
a new connection may only ask for the health of the server, and when half of these are gone, it is
refused at once. What remains is for engines that restart and for the database. Meanwhile the
connections that have been idle the longest are closed.
"""

from __future__ import annotations

import logging
import resource
import time
from typing import Literal, TypeAlias

log = logging.getLogger("dragoman.server")
MIN_RESERVE, MAX_RESERVE = 16, 256
LOG_INTERVAL = 10.0  # seconds between two lines of the log about the same shortage
Supply: TypeAlias = Literal["plenty", "reserve", "none"]


class DescriptorReserve:
    """Tells how many file descriptors are left, and logs when they run out."""

    def __init__(self) -> None:
        self._logged_at = float("-inf")

    def check(self, descriptor: int) -> Supply:
        """What is left, as the number of a new descriptor tells it."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return "plenty"
        reserve = min(max(MIN_RESERVE, limit // 8), MAX_RESERVE)
        left = limit - descriptor - 1
        if left >= reserve:
            return "plenty"
        self.log_shortage(f"{left} of {limit} file descriptors are left")
        return "reserve" if left >= reserve // 2 else "none"

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
