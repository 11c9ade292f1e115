"""Compiles grammars in worker processes that may fail.

Compiling what a client sends can take any amount of time and memory. So worker processes do it,
each within a budget (see `worker`). A worker that exceeds it is killed and replaced, which fails
its own spec and no other. In front of the workers is a cache, which also stores errors, and equal
specs share one compile; both within one cache scope only (`types.cache_scope`), because the time of
a compile would reveal whether another owner has used the same schema. A spec is compiled at once if
fewer than `workers` compiles are running; otherwise it waits in a bounded queue, in which owners
take turns. The pool starts one process more than it runs at a time, so that a spec after a kill
need not wait for an interpreter to start.

Nothing is started before the first spec. A process that does not even start is logged, and not
replaced before the next spec comes.

Everything happens on one event loop, and state changes only between two awaits. No running compile
is ever cancelled: a caller that gives up stops waiting, and a compile that nobody waits for leaves
the queue if no worker has it yet. A queued compile and an idle worker are matched in one step, so
that neither is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import (
    BadRequest,
    DragomanError,
    Draining,
    Overloaded,
    SerializedError,
    Unavailable,
    deserialize_error,
    serialize_error,
)
from dragoman.grammar.compiler.compile_queue import CompileQueue
from dragoman.grammar.compiler.grammar_cache import GrammarCache, Key, Outcome
from dragoman.grammar.compiler.worker import MAX_FRAME_BYTES, CompileResult, result_decoder
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.processes.worker_loop import WALL_CLOCK_FACTOR
from dragoman.processes.worker_process import WorkerProcess
from dragoman.types.cache_scope import get_cache_scope
from dragoman.types.detached_task import start_detached

log = logging.getLogger("dragoman.grammar")

T = TypeVar("T")

QUEUE_LIMIT = 256  # specs that may wait for a worker
COMPILE_FUNCTION = "dragoman.grammar.compiler.compile:compile_grammar"
CPU_TIMEOUT_EXIT = -getattr(signal, "SIGPROF", 0)
# exits with these signals have causes other than the spec
EXTERNAL_EXITS = {
    -getattr(signal, f"SIG{name}", 0) for name in ("KILL", "TERM", "HUP", "INT", "ALRM")
}
# The worker imports the same modules as this process, from a checkout or an installed package.
# Importing takes a while, so it lowers its priority first, behind the server and the engine.
WORKER_CODE = (
    "import os, sys; getattr(os, 'nice', int)(5); sys.path[:] = sys.argv[4:]; "
    "from dragoman.grammar.compiler.worker import main; main()"
)

_encoder = msgspec.json.Encoder()


class CompilerStats(Struct, frozen=True, kw_only=True):
    """The state of a compiler pool at one moment."""

    entries: int  # of the cache
    bytes: int  # of the cache
    hits: int  # specs that needed no compile of their own
    misses: int
    restarts: int  # workers that ended, for any reason
    working: int
    waiting: int


class PendingCompile:
    """A compile that is queued or running, and the number of callers that wait for it."""

    def __init__(self, spec: GrammarSpec, data: bytes, scope: str) -> None:
        self.spec = spec
        self.data = data
        self.scope = scope  # of its owner
        self.waiters = 0
        self.worker: asyncio.Future[WorkerProcess | DragomanError] = (
            asyncio.get_running_loop().create_future()
        )
        self.task: asyncio.Task[Outcome] | None = None


class CompilerPool:
    """Compiles specs with `compile` until `aclose`."""

    def __init__(
        self,
        *,
        workers: int | None = None,  # compiles that run at once
        cpu_seconds: float = 1.5,  # processor time for one spec
        cache_entries: int = 512,
        cache_bytes: int = 32 * 2**20,
        worker_memory: int = 1 << 30,  # bytes of address space of one worker
        target: str = COMPILE_FUNCTION,
    ) -> None:
        self.workers = workers or min(2, os.cpu_count() or 1)
        self.queue_timeout = 10.0  # seconds that a spec may wait for a worker
        self._cpu_seconds = cpu_seconds
        self._cache = GrammarCache(cache_entries, cache_bytes)
        limits = str(worker_memory), str(cpu_seconds)
        self._command = [sys.executable, "-c", WORKER_CODE, target, *limits]
        self._pending: dict[Key, PendingCompile] = {}
        self.queue: CompileQueue[PendingCompile] = CompileQueue(QUEUE_LIMIT)
        self._workers: set[WorkerProcess] = set()  # all whose process may be alive
        self._idle: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._keeps_spare = False  # workers are needed and can be started: keep one more ready
        self._is_closed = False
        self._hits = self._misses = self._restarts = self._working = 0

    @property
    def stats(self) -> CompilerStats:
        return CompilerStats(
            entries=len(self._cache),
            bytes=self._cache.size,
            hits=self._hits,
            misses=self._misses,
            restarts=self._restarts,
            working=self._working,
            waiting=len(self.queue),
        )

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a spec; raise `BadRequest` if it is at fault, `Overloaded` if too many wait."""
        try:
            data = _encoder.encode(spec)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise BadRequest("This constraint is not valid JSON.", param=spec.param) from None
        key = hashlib.sha256(get_cache_scope().encode() + b"\n" + data).digest()
        outcome = self._cache.get(key)
        if outcome is not None:
            self._hits += 1
        else:
            outcome = await self._join_or_start(key, spec, data)
        if isinstance(outcome, SerializedError):
            raise deserialize_error(outcome)
        return outcome

    async def warm_up(self) -> None:
        """Start all workers ahead of the first spec."""
        self._keeps_spare = True
        self._start_workers()
        if starting := [worker.ready for worker in self._workers]:
            await asyncio.wait(starting)

    async def aclose(self) -> None:
        """Kill all workers; waiting callers get an error that the server is stopping."""
        self._is_closed = True
        for pending in self.queue:
            pending.worker.set_result(_make_stopping_error())
        self.queue.clear()
        for worker in self._workers:
            worker.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _join_or_start(self, key: Key, spec: GrammarSpec, data: bytes) -> Outcome:
        """Wait for the compile of this spec: one that is pending, or a new one."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._enqueue(key, spec, data)
        else:
            self._hits += 1
        assert pending.task is not None  # noqa: S101
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiters -= 1
            if not pending.waiters and not pending.worker.done():
                pending.worker.cancel()
                self.queue.remove(pending)
                del self._pending[key]

    def _enqueue(self, key: Key, spec: GrammarSpec, data: bytes) -> PendingCompile:
        if self._is_closed:
            raise _make_stopping_error()
        pending = PendingCompile(spec, data, get_cache_scope())
        excess = self.queue.push(pending)
        if excess is pending:
            raise _make_queue_full_error()
        if excess is not None:
            excess.worker.set_result(_make_queue_full_error())
        self._misses += 1
        self._pending[key] = pending
        self._start_workers()
        self._dispatch()
        task = asyncio.get_running_loop().create_task(self._run_pending(key, pending))
        pending.task = self._track(task)
        return pending

    async def _run_pending(self, key: Key, pending: PendingCompile) -> Outcome:
        """Wait in the queue for a worker, then compile."""
        try:
            await asyncio.wait({pending.worker}, timeout=self.queue_timeout)
            if not pending.worker.done():
                self.queue.remove(pending)
                pending.worker.set_result(_make_queue_full_error())
            if pending.worker.cancelled():
                return serialize_error(_make_queue_full_error())  # nobody waits for it any more
            worker = pending.worker.result()
            if isinstance(worker, DragomanError):
                return serialize_error(worker)
            return await self._compile_with(worker, key, pending)
        finally:
            if self._pending.get(key) is pending:
                del self._pending[key]

    async def _compile_with(
        self, worker: WorkerProcess, key: Key, pending: PendingCompile
    ) -> Outcome:
        """Compile with a worker; store the outcome if compiling again would give the same."""
        try:
            result = await self._call(worker, pending.data)
        except msgspec.DecodeError:
            worker.kill()
            result = None
        finally:
            self._working -= 1
        if result is None or result.needs_restart:
            worker.kill()
        else:
            self._idle.append(worker)
        self._dispatch()
        if result is not None:
            self._cache.put(key, result.outcome)
            return result.outcome
        if self._is_closed:
            return serialize_error(_make_stopping_error())
        is_slow = worker.has_timed_out or worker.returncode == CPU_TIMEOUT_EXIT
        problem = "took too long to compile" if is_slow else "is too complex to compile"
        error = serialize_error(make_too_complex_error(pending.spec.param, problem))
        if not worker.has_timed_out and worker.returncode not in EXTERNAL_EXITS:
            self._cache.put(key, error)
        return error

    async def _call(self, worker: WorkerProcess, data: bytes) -> CompileResult | None:
        body = await worker.call(data, WALL_CLOCK_FACTOR * self._cpu_seconds)
        return None if body is None else result_decoder.decode(body)

    def _dispatch(self) -> None:
        """Give queued compiles to idle workers."""
        self._idle = [worker for worker in self._idle if not worker.exited.done()]
        while self.queue and self._idle and self._working < self.workers:
            worker = self._idle.pop()
            worker.was_used = True
            self._working += 1
            self.queue.pop().worker.set_result(worker)

    def _start_workers(self) -> None:
        """Start the workers that are missing."""
        wanted = min(self.workers, len(self.queue) + self._working)
        if self._keeps_spare:
            wanted = self.workers + 1
        while len(self._workers) < wanted and not self._is_closed:
            worker = WorkerProcess(log, MAX_FRAME_BYTES)
            self._workers.add(worker)
            self._track(start_detached(self._run_worker(worker)))

    async def _run_worker(self, worker: WorkerProcess) -> None:
        """Start a worker, and clean up when it has exited."""
        paths = [entry for entry in sys.path if isinstance(entry, str)]
        if await worker.start([*self._command, *paths]):
            self._keeps_spare = True
            self._idle.append(worker)
            self._dispatch()
            self._start_workers()
            await worker.exited
            self._workers.discard(worker)
            self._restarts += not self._is_closed
            if worker.was_used or self.queue:  # one that dies idle could do so again, for ever
                self._start_workers()
            return
        await worker.exited
        self._workers.discard(worker)
        self._keeps_spare = False
        if self._is_closed:
            return
        for line in worker.last_lines:
            log.error("a grammar worker did not start: %s", line)
        if not self._workers:
            while self.queue:
                self.queue.pop().worker.set_result(_make_no_worker_error())

    def _track(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _make_queue_full_error() -> Overloaded:
    return Overloaded(
        "Too many constraints are waiting to be compiled. Try again soon.", retry_after=2
    )


def _make_stopping_error() -> Draining:
    return Draining("The server is stopping.", retry_after=1)


def _make_no_worker_error() -> Unavailable:
    return Unavailable("Constraints cannot be compiled at the moment.", retry_after=10)
