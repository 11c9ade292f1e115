"""Reports what blocks the event loop.

An engine that a program brings runs on the server's event loop. If it computes or sleeps there, no
request is served meanwhile, and no callback can report it. A thread therefore schedules a callback
on the loop once a second. If it does not run in time, the thread logs where the loop is: the
innermost calls of its stack, which name the function that does not return.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

log = logging.getLogger("dragoman.loop")
INTERVAL = 1.0  # seconds between two callbacks
LIMIT = 2.0  # seconds until one must have run; a busy machine delays it by less
SHOWN_CALLS = 4  # of the stack, the innermost ones


class LoopWatch:
    """Watches the event loop that it is started on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the running loop from now on, unless that is done already."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self.stop()
        self._loop, self._stopped = loop, threading.Event()
        arguments = (loop, threading.get_ident(), self._stopped)
        threading.Thread(target=_watch, args=arguments, name="loop watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._loop = None


def _watch(loop: asyncio.AbstractEventLoop, thread: int, stopped: threading.Event) -> None:
    while not stopped.wait(INTERVAL):
        answered = threading.Event()
        asked_at = time.monotonic()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return
        if answered.wait(LIMIT) or stopped.is_set():
            continue
        log.error(
            "the event loop has been blocked for more than %g s and serves no request; it is in %s",
            LIMIT,
            _describe_stack(thread),
        )
        while not answered.wait(INTERVAL):
            if stopped.is_set() or loop.is_closed():
                return
        log.error("the event loop was blocked for %.1f s", time.monotonic() - asked_at)


def _describe_stack(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    calls = traceback.extract_stack(frame)[-SHOWN_CALLS:] if frame is not None else []
    return ", called by ".join(
        f"{call.name} ({call.filename}:{call.lineno})" for call in reversed(calls)
    )
