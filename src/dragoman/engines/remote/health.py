"""Whether an upstream server is up, judged by what it does.

Tokens that flow and connections that are accepted prove life; a health route does not, since it is
served by another thread than the one that generates. So requests report what they meet here:
refused connections, stalls and invalid answers make the server unreachable, and requests then fail
at once. It is tried again after ever longer delays, by a token that it has to generate. Statuses
such as 400, 429 and 503 are answers, and change nothing. An answer with wrong tokens is enough; of
text and chats, whose form may depend on the request, several in a row are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from dragoman.engines.remote.failures import FailureKind, UpstreamFailure
from dragoman.engines.remote.identity import Difference
from dragoman.engines.remote.settings import RemoteSettings
from dragoman.errors import ENGINE_STOPPED, DragomanError, EngineDown
from dragoman.types.detached_task import start_detached

log = logging.getLogger("dragoman.remote")

HealthState: TypeAlias = Literal["ready", "unreachable", "stopped"]
DownReason: TypeAlias = FailureKind | Literal["replaced", "smaller_context"]
MESSAGES: dict[str, str] = {
    "stalled": "The upstream server makes no progress.",
    "invalid": "The upstream server returned invalid answers.",
    "replaced": "The upstream server runs another model than this server was started with.",
    "smaller_context": "The upstream server has a smaller context than this server was started "
    "with.",
}
UNREACHABLE = "The upstream server cannot be reached."


class UpstreamHealth:
    """The state of one server, and the task that waits for it to come back."""

    def __init__(
        self, name: str, settings: RemoteSettings, try_again: Callable[[], Awaitable[None]]
    ) -> None:
        self.state: HealthState = "ready"
        self.failure: DownReason | None = None
        self.failures = 0  # how often it went down
        self._name = name
        self._settings = settings
        self._try_again = try_again
        self._is_ready = asyncio.Event()
        self._is_ready.set()
        self._retry_at = 0.0
        self._recovery: asyncio.Task[None] | None = None
        self._invalid_answers = 0  # in a row

    @property
    def retry_after(self) -> float:
        """When the server is tried again, in seconds from now."""
        return max(1.0, float(round(self._retry_at - asyncio.get_running_loop().time())))

    def check(self) -> None:
        """Raise `EngineDown` unless the server is up."""
        if self.state == "stopped":
            raise EngineDown(ENGINE_STOPPED)
        if self.state != "ready":
            raise self.make_error()

    def make_error(self) -> EngineDown:
        message = MESSAGES.get(self.failure or "", UNREACHABLE)
        return EngineDown(message, retry_after=self.retry_after)

    def mark_down(self, reason: DownReason, details: object) -> None:
        """Fail requests from now on, until the server is back."""
        if self.state == "stopped":
            return
        if self.state == "ready":
            text = self._settings.hide_key(details)
            log.error("upstream server %s is unreachable: %s", self._name, text)
            self.failures += 1
            self.state = "unreachable"
            self._is_ready.clear()
        self.failure = reason
        if self._recovery is None or self._recovery.done():
            self._set_retry(self._settings.first_retry_delay)
            self._recovery = start_detached(self._recover())

    def mark_replaced(self, difference: Difference) -> None:
        """Fail requests until the earlier server is back."""
        reason: DownReason = "smaller_context" if difference == "context" else "replaced"
        self.mark_down(reason, f"it has another {difference}")

    def count_invalid(self, details: object, allowed: int) -> None:
        """Count an invalid answer; more than `allowed` in a row make the server unreachable."""
        self._invalid_answers += 1
        if self._invalid_answers > allowed:
            self.mark_down("invalid", details)

    def mark_valid(self) -> None:
        """Reset the count of invalid answers: one was read to its end."""
        self._invalid_answers = 0

    def _set_retry(self, delay: float) -> None:
        self._retry_at = asyncio.get_running_loop().time() + delay

    async def _recover(self) -> None:
        """Try the server until it is back."""
        delay = self._settings.first_retry_delay
        while True:
            await asyncio.sleep(delay)
            try:
                await self._try_again()
            except (UpstreamFailure, DragomanError) as error:
                delay = min(delay * 2, self._settings.max_retry_delay)
                self._set_retry(delay)
                reason = self._settings.hide_key(error)
                log.info("upstream server %s is still unreachable: %s", self._name, reason)
                continue
            log.warning("upstream server %s is back", self._name)
            self.state, self.failure = "ready", None
            self._is_ready.set()
            return

    async def wait_ready(self) -> None:
        await self._is_ready.wait()

    async def aclose(self) -> None:
        self.state = "stopped"
        recovery, self._recovery = self._recovery, None
        if recovery is not None:
            recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await recovery
