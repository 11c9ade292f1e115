"""A worker: a child process that does one task at a time, see `worker_loop`.

The frames of a worker are the caller's own; this only sends a task and waits for its result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from dragoman.processes.supervisor import ChildProcess

START_TIMEOUT = 60.0  # seconds for a process to import what it needs


class WorkerProcess:
    """A process that does one task at a time."""

    def __init__(self, logger: logging.Logger, frame_limit: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = loop.create_future()  # False: it never will be
        self.has_timed_out = False
        self.was_used = False
        self._log = logger
        self._child = ChildProcess(logger, frame_limit=frame_limit, on_frame=self._deliver)
        self._child.exited.add_done_callback(self._end)
        self._reply: asyncio.Future[bytes | None] | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def exited(self) -> asyncio.Future[None]:
        return self._child.exited

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    @property
    def last_lines(self) -> deque[str]:
        return self._child.last_lines

    async def start(self, command: list[str]) -> bool:
        """Start the process; return whether it can take tasks."""
        try:
            await self._child.start(command)
        except (OSError, ValueError) as error:
            self._log.error("cannot start a worker: %r", error)
        await asyncio.wait({self._child.ready}, timeout=START_TIMEOUT)
        ready = self._child.ready.done() and self._child.ready.result() is not None
        if not ready:
            self.kill()
        self.ready.set_result(ready)
        return ready

    async def call(self, task: bytes, seconds: float) -> bytes | None:
        """Do a task; None if the process died or was killed for taking too long."""
        if self.exited.done():
            return None
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._reply = reply
        self._child.send(task)
        await asyncio.wait({reply}, timeout=seconds)
        if not reply.done():
            self.has_timed_out = True
            self.kill()
        return await reply

    def kill(self) -> None:
        self._child.kill()

    def _deliver(self, body: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(body)

    def _end(self, _: asyncio.Future[None]) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)
