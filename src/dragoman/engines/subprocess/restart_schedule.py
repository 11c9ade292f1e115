"""Decides when a dead child process is restarted: after growing delays, and at a limited rate."""

from __future__ import annotations

from collections import deque

from msgspec import Struct


class Timing(Struct, frozen=True, kw_only=True):
    """Time limits and delays, in seconds."""

    hang_timeout: float = 20.0  # without progress, after which a child counts as hung
    load_timeout: float = 900.0
    restart_wait: float = 5.0  # how long a job waits for an engine that is being restarted
    first_restart_delay: float = 0.1  # doubled each time
    max_restart_delay: float = 30.0
    stable_after: float = 10.0  # a child that lived this long resets the delay
    max_restarts: int = 5  # within `restart_window`
    restart_window: float = 60.0
    stop_timeout: float = 5.0  # for a child to stop by itself


class RestartSchedule:
    """The restarts of one engine; `now` is the time of the event loop."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._delay = timing.first_restart_delay
        self._restart_times: deque[float] = deque(maxlen=timing.max_restarts)
        self.retry_at = 0.0  # when the next restart begins

    def plan(self, now: float) -> None:
        """Set when the next restart begins, counted from now."""
        self.retry_at = now + self._delay
        if len(self._restart_times) == self._restart_times.maxlen:
            earliest = self._restart_times[0] + self._timing.restart_window
            self.retry_at = max(self.retry_at, earliest)

    def add_restart(self, now: float) -> None:
        """Count a restart that begins now."""
        self._delay = min(2 * self._delay, self._timing.max_restart_delay)
        self._restart_times.append(now)

    def reset_delay_after(self, lifetime: float) -> None:
        """Return to the first, short delay if a child lived long enough."""
        if lifetime >= self._timing.stable_after:
            self._delay = self._timing.first_restart_delay
