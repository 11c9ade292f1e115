"""Worker processes that decode media, each within limits of time and memory.

Nothing is started before the first task, and a worker that has been idle for a while ends. A worker
that exceeds its limits is killed, which fails its own task and no other. As many tasks run at a
time as there are workers; others wait in a bounded queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import msgspec

from dragoman.errors import Draining, Overloaded, Unavailable
from dragoman.media.worker import (
    TOO_COSTLY,
    DecodeResult,
    DecodeTask,
    encoder,
    result_decoder,
)
from dragoman.processes.worker_loop import WALL_CLOCK_FACTOR
from dragoman.processes.worker_process import WorkerProcess

log = logging.getLogger("dragoman.media")

MAX_WAITING = 64  # tasks
IDLE_SECONDS = 60.0
BASE_MEMORY = 512 << 20  # bytes of address space for the interpreter and the libraries
BYTES_PER_PIXEL = 12  # a picture, converted, with a transparent channel
MAX_FRAME_BYTES = 256 << 20  # of a result
# The worker imports the same modules as this process, from a checkout or an installed package, at a
# lower priority than the server. Threads of numerical libraries would take address space.
WORKER_CODE = (
    "import os, sys; getattr(os, 'nice', int)(5); sys.path[:] = sys.argv[3:]; "
    "os.environ['OPENBLAS_NUM_THREADS'] = '1'; "
    "from dragoman.media.worker import main; main()"
)


class MediaDecoder:
    """Decodes tasks with `decode` until `aclose`."""

    def __init__(self, *, max_pixels: int, cpu_seconds: float, workers: int | None = None) -> None:
        memory = BASE_MEMORY + BYTES_PER_PIXEL * max_pixels
        self._seconds = WALL_CLOCK_FACTOR * cpu_seconds
        self._command = [sys.executable, "-c", WORKER_CODE, str(memory), str(cpu_seconds)]
        self._slots = asyncio.Semaphore(workers or min(2, os.cpu_count() or 1))
        self._idle: list[WorkerProcess] = []
        self._workers: set[WorkerProcess] = set()
        self._waiting = 0
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def decode(self, task: DecodeTask) -> DecodeResult:
        """Decode a content. A worker that dies fails the task with a result that says so."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded(
                "Too many pictures, sounds and files are waiting to be decoded. Try again soon.",
                retry_after=2,
            )
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._decode_with(await self._take_worker(), task)
        finally:
            self._slots.release()

    async def aclose(self) -> None:
        """Kill all workers; tasks that run get an error."""
        self._is_closed = True
        self._stop_timer()
        for worker in self._workers:
            worker.kill()
        if exits := [worker.exited for worker in self._workers]:
            await asyncio.wait(exits)

    async def _take_worker(self) -> WorkerProcess:
        self._stop_timer()
        while self._idle:
            if not (worker := self._idle.pop()).exited.done():
                return worker
        if self._is_closed:
            raise Draining("The server is stopping.", retry_after=1)
        worker = WorkerProcess(log, MAX_FRAME_BYTES)
        self._workers.add(worker)
        worker.exited.add_done_callback(lambda _: self._workers.discard(worker))
        paths = [entry for entry in sys.path if isinstance(entry, str)]
        try:
            started = await worker.start([*self._command, *paths])
        except asyncio.CancelledError:
            worker.kill()
            raise
        if started:
            return worker
        for line in worker.last_lines:
            log.error("a media worker did not start: %s", line)
        raise Unavailable("Media cannot be decoded at the moment.", retry_after=10)

    async def _decode_with(self, worker: WorkerProcess, task: DecodeTask) -> DecodeResult:
        result = None
        try:
            body = await worker.call(encoder.encode(task), self._seconds)
            result = None if body is None else result_decoder.decode(body)
        except msgspec.DecodeError:
            log.error("a media worker sent an invalid result")
        finally:  # also of a request that is cancelled
            if result is None or result.needs_restart:
                worker.kill()
            else:
                self._idle.append(worker)
                self._start_timer()
        if self._is_closed:
            raise Draining("The server is stopping.", retry_after=1)
        return result or DecodeResult(message=TOO_COSTLY)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._kill_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _kill_idle(self) -> None:
        while self._idle:
            self._idle.pop().kill()
