"""Grammars made to order, in processes that may fail.

Compiling what a client sends can take any time and any memory, so it is done by workers: processes
with a budget (see `worker`), killed and replaced when they exceed it, which costs their own order
and nobody else's. Before them is a cache that also remembers what was refused, and orders that are
the same wait for one compile. An order runs at once if fewer than `workers` run; behind them is a
bounded first-come queue. One process more than can run is kept, so that an order after a kill does
not wait for an interpreter to start.

Nothing is started before the first order. A process that cannot even be started is reported and not
replaced until somebody asks again.

Everything happens on one event loop, and state changes only between two awaits. Nothing is ever
cancelled: who gives up leaves a flight, and a flight that all have left gives up its turn if it has
not begun. A turn and a worker meet in one step, so that neither is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
from collections import OrderedDict, deque
from collections.abc import Coroutine
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from dragoman.errors import (
    BadRequest,
    Draining,
    Overloaded,
    SerializedError,
    Unavailable,
    deserialize_error,
    serialize_error,
)
from dragoman.grammar.compiler.worker import WALL_CLOCK_FACTOR, find_param, too_complex
from dragoman.grammar.compiler.worker_process import WorkerProcess
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec

log = logging.getLogger("dragoman.constraint")

COMPILED = "dragoman.grammar.compiler.compile:compile_grammar"
OVERHEAD = 400  # bytes of an entry besides its texts
OVERRUN = -getattr(signal, "SIGPROF", 0)
# ends that say nothing about the order
OUTSIDE = {-getattr(signal, f"SIG{name}", 0) for name in ("KILL", "TERM", "HUP", "INT", "ALRM")}
# the same modules are found there as here, from a checkout as from an installed package; to read
# them takes a while, in which server and engine already come first
BOOT = (
    "import os, sys; getattr(os, 'nice', int)(5); sys.path[:] = sys.argv[4:]; "
    "from dragoman.grammar.compiler.worker import main; main()"
)

Key: TypeAlias = bytes  # a digest
Outcome: TypeAlias = CompiledGrammar | SerializedError

_encoder = msgspec.json.Encoder()


class CompilerStats(Struct, frozen=True, kw_only=True):
    """A workshop at one moment."""

    entries: int  # in the cache
    bytes: int
    hits: int  # orders that needed no compile of their own
    misses: int
    restarts: int  # workers that ended, for whatever reason
    working: int
    waiting: int


class GrammarCache:
    """What came of orders, the latest used last; bounded by number and by bytes."""

    def __init__(self, entries: int, limit: int) -> None:
        self.bytes = 0
        self._entries = entries
        self._limit = limit
        self._items: OrderedDict[Key, tuple[Outcome, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Outcome | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: Key, kept: Outcome) -> None:
        size = OVERHEAD + _size(kept)
        if size > self._limit // 4:  # one order shall not push out all others
            return
        self._subtract(self._items.pop(key, None))
        self._items[key] = kept, size
        self.bytes += size
        while len(self._items) > self._entries or self.bytes > self._limit:
            self._subtract(self._items.popitem(last=False)[1])

    def _subtract(self, entry: tuple[Outcome, int] | None) -> None:
        if entry is not None:
            self.bytes -= entry[1]


def _size(kept: Outcome) -> int:
    if isinstance(kept, CompiledGrammar):
        texts = [kept.grammar or "", *kept.warnings]
    else:
        texts = [kept.message, kept.param or "", kept.code or ""]
    return sum(map(sys.getsizeof, texts))


class PendingCompile:
    """One compile, and how many wait for it."""

    def __init__(self, order: GrammarSpec, data: bytes) -> None:
        self.spec = order
        self.data = data
        self.waiters = 0
        self.worker: asyncio.Future[WorkerProcess | SerializedError] = (
            asyncio.get_running_loop().create_future()
        )
        self.task: asyncio.Task[Outcome] | None = None


class CompilerPool:
    """Makes grammars: `make` as often as you like, then `aclose`."""

    def __init__(
        self,
        *,
        workers: int | None = None,  # that run at once
        cpu_seconds: float = 1.5,  # of processor time for an order
        cache_entries: int = 512,
        cache_bytes: int = 32 * 2**20,
        worker_memory: int = 1 << 30,  # bytes for a worker
        target: str = COMPILED,
    ) -> None:
        self.workers = workers or min(2, os.cpu_count() or 1)
        self.queue_limit = 256  # orders that may wait for a worker
        self.queue_timeout = 10.0  # seconds that one waits
        self._cpu_seconds = cpu_seconds
        self._cache = GrammarCache(cache_entries, cache_bytes)
        self._command = [sys.executable, "-c", BOOT, target, str(worker_memory), str(cpu_seconds)]
        self._pending: dict[Key, PendingCompile] = {}
        self._queue: deque[PendingCompile] = deque()
        self._workers: set[WorkerProcess] = set()  # all whose process may be alive
        self._idle: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._can_start_workers = False  # a worker can be started here, and was wanted
        self._closed = False
        self._hits = self._misses = self._restarts = self._working = 0

    @property
    def stats(self) -> CompilerStats:
        return CompilerStats(
            entries=len(self._cache),
            bytes=self._cache.bytes,
            hits=self._hits,
            misses=self._misses,
            restarts=self._restarts,
            working=self._working,
            waiting=len(self._queue),
        )

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [bench.pid for bench in self._workers if bench.pid is not None]

    async def compile(self, order: GrammarSpec) -> CompiledGrammar:
        """The grammar of an order; `BadRequest` if it has none, `Overloaded` if it must wait."""
        try:
            data = _encoder.encode(order)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise BadRequest("This constraint cannot be read.", param=find_param(order)) from None
        key = hashlib.sha256(data).digest()
        kept = self._cache.get(key)
        if kept is not None:
            self._hits += 1
        else:
            kept = await self._join_or_start(key, order, data)
        if isinstance(kept, SerializedError):
            raise deserialize_error(kept)
        return kept

    async def warm_up(self) -> None:
        """Start all workers ahead of the first order."""
        self._can_start_workers = True
        self._start_workers()
        if starting := [bench.ready for bench in self._workers]:
            await asyncio.wait(starting)

    async def aclose(self) -> None:
        """End all workers; who waits for an order is told that the server stops."""
        self._closed = True
        for flight in self._queue:
            _assign(flight, _stopping_error())
        self._queue.clear()
        for bench in self._workers:
            bench.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _join_or_start(self, key: Key, order: GrammarSpec, data: bytes) -> Outcome:
        """Wait for a compile of this order, one that is under way or a new one."""
        flight = self._pending.get(key)
        if flight is None:
            flight = self._enqueue(key, order, data)
        else:
            self._hits += 1
        task = cast("asyncio.Task[Outcome]", flight.task)
        flight.waiters += 1
        try:
            return await asyncio.shield(task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.worker.done():
                flight.worker.cancel()
                self._queue.remove(flight)
                del self._pending[key]

    def _enqueue(self, key: Key, order: GrammarSpec, data: bytes) -> PendingCompile:
        if self._closed:
            raise deserialize_error(_stopping_error())
        if len(self._queue) >= self.queue_limit:
            raise deserialize_error(_queue_full_error())
        self._misses += 1
        flight = self._pending[key] = PendingCompile(order, data)
        self._queue.append(flight)
        self._start_workers()
        self._dispatch()
        flight.task = self._start_task(self._run_pending(key, flight))
        return flight

    async def _run_pending(self, key: Key, flight: PendingCompile) -> Outcome:
        try:
            await asyncio.wait({flight.worker}, timeout=self.queue_timeout)
            if not flight.worker.done():
                self._queue.remove(flight)
                _assign(flight, _queue_full_error())
            if flight.worker.cancelled():
                return _queue_full_error()  # nobody is there to hear it
            given = flight.worker.result()
            return (
                given
                if isinstance(given, SerializedError)
                else await self._compile_with(given, key, flight)
            )
        finally:
            if self._pending.get(key) is flight:
                del self._pending[key]

    async def _compile_with(
        self, bench: WorkerProcess, key: Key, flight: PendingCompile
    ) -> Outcome:
        """Have a worker do it, and remember what is certain to be so again."""
        try:
            answer = await bench.compile(flight.data, WALL_CLOCK_FACTOR * self._cpu_seconds)
        except msgspec.DecodeError:
            bench.kill()
            answer = None
        finally:
            self._working -= 1
        if answer is None or answer.needs_restart:
            bench.kill()
        else:
            self._idle.append(bench)
        self._dispatch()
        if answer is not None:
            kept = (
                answer.compiled
                if answer.compiled is not None
                else cast(SerializedError, answer.error)
            )
        elif self._closed:
            return _stopping_error()
        else:
            slow = bench.timed_out or bench.exit_code == OVERRUN
            why = "took too long" if slow else "is too complex"
            kept = too_complex(flight.spec, f"This constraint {why} to compile.")
            if bench.timed_out or bench.exit_code in OUTSIDE:
                return kept
        self._cache.put(key, kept)
        return kept

    def _dispatch(self) -> None:
        """Bring those who wait and those who are free together."""
        self._idle = [bench for bench in self._idle if not bench.exited.done()]
        while self._queue and self._idle and self._working < self.workers:
            bench = self._idle.pop()
            bench.was_used = True
            self._working += 1
            _assign(self._queue.popleft(), bench)

    def _start_workers(self) -> None:
        """Start as many workers as should be there."""
        wanted = min(self.workers, len(self._queue) + self._working)
        if self._can_start_workers:
            wanted = self.workers + 1
        while len(self._workers) < wanted and not self._closed:
            bench = WorkerProcess()
            self._workers.add(bench)
            self._start_task(self._run_worker(bench))

    async def _run_worker(self, bench: WorkerProcess) -> None:
        """A worker from its first day to its last."""
        if await bench.start([*self._command, *filter(_is_text, sys.path)]):
            self._can_start_workers = True
            self._idle.append(bench)
            self._dispatch()
            self._start_workers()
            await bench.exited
            self._workers.discard(bench)
            self._restarts += not self._closed
            if bench.was_used or self._queue:  # one that died idle may do so again, for ever
                self._start_workers()
            return
        await bench.exited
        self._workers.discard(bench)
        self._can_start_workers = False
        if self._closed:
            return
        for line in bench.stderr_lines:
            log.error("a worker for constraints did not start: %s", line)
        if not self._workers:
            while self._queue:
                _assign(self._queue.popleft(), _no_worker_error())

    def _start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _assign(flight: PendingCompile, given: WorkerProcess | SerializedError) -> None:
    flight.worker.set_result(given)


def _is_text(entry: object) -> bool:
    return isinstance(entry, str)


def _queue_full_error() -> SerializedError:
    return serialize_error(
        Overloaded("Too many constraints wait to be compiled. Try again soon.", retry_after=2)
    )


def _stopping_error() -> SerializedError:
    return serialize_error(Draining("The server is stopping.", retry_after=1))


def _no_worker_error() -> SerializedError:
    return serialize_error(
        Unavailable("Constraints cannot be compiled at the moment.", retry_after=10)
    )
