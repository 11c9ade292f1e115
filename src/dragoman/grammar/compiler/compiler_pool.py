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
    SerializedError,
    Overloaded,
    Unavailable,
    deserialize_error,
    serialize_error,
)
from dragoman.grammar.compiler.worker import WALL, blamed, too_complex
from dragoman.grammar.compiler.worker_process import Bench
from dragoman.grammar.spec import Made, Order

log = logging.getLogger("dragoman.constraint")

COMPILED = "dragoman.grammar.compiler.compile:compiled"
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
Kept: TypeAlias = Made | SerializedError

_encoder = msgspec.json.Encoder()


class Stats(Struct, frozen=True, kw_only=True):
    """A workshop at one moment."""

    entries: int  # in the cache
    bytes: int
    hits: int  # orders that needed no compile of their own
    misses: int
    restarts: int  # workers that ended, for whatever reason
    working: int
    waiting: int


class Cache:
    """What came of orders, the latest used last; bounded by number and by bytes."""

    def __init__(self, entries: int, limit: int) -> None:
        self.bytes = 0
        self._entries = entries
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[Kept, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Kept | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, kept: Kept) -> None:
        size = OVERHEAD + _size(kept)
        if size > self._limit // 4:  # one order shall not push out all others
            return
        self._forget(self._kept.pop(key, None))
        self._kept[key] = kept, size
        self.bytes += size
        while len(self._kept) > self._entries or self.bytes > self._limit:
            self._forget(self._kept.popitem(last=False)[1])

    def _forget(self, entry: tuple[Kept, int] | None) -> None:
        if entry is not None:
            self.bytes -= entry[1]


def _size(kept: Kept) -> int:
    if isinstance(kept, Made):
        texts = [kept.grammar or "", *kept.warnings]
    else:
        texts = [kept.message, kept.param or "", kept.code or ""]
    return sum(map(sys.getsizeof, texts))


class Flight:
    """One compile, and how many wait for it."""

    def __init__(self, order: Order, data: bytes) -> None:
        self.order = order
        self.data = data
        self.passengers = 0
        self.turn: asyncio.Future[Bench | SerializedError] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[Kept] | None = None


class Workshop:
    """Makes grammars: `make` as often as you like, then `aclose`."""

    def __init__(
        self,
        *,
        workers: int | None = None,  # that run at once
        seconds: float = 1.5,  # of processor time for an order
        entries: int = 512,
        bytes: int = 32 * 2**20,  # noqa: A002  (of the cache)
        memory: int = 1 << 30,  # bytes for a worker
        target: str = COMPILED,
    ) -> None:
        self.workers = workers or min(2, os.cpu_count() or 1)
        self.queue = 256  # orders that may wait for a worker
        self.patience = 10.0  # seconds that one waits
        self._seconds = seconds
        self._cache = Cache(entries, bytes)
        self._start = [sys.executable, "-c", BOOT, target, str(memory), str(seconds)]
        self._flights: dict[Key, Flight] = {}
        self._queue: deque[Flight] = deque()
        self._crew: set[Bench] = set()  # all whose process may be alive
        self._free: list[Bench] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._proven = False  # a worker can be started here, and was wanted
        self._closed = False
        self._hits = self._misses = self._restarts = self._working = 0

    @property
    def stats(self) -> Stats:
        return Stats(
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
        return [bench.pid for bench in self._crew if bench.pid is not None]

    async def make(self, order: Order) -> Made:
        """The grammar of an order; `BadRequest` if it has none, `Overloaded` if it must wait."""
        try:
            data = _encoder.encode(order)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise BadRequest("This constraint cannot be read.", param=blamed(order)) from None
        key = hashlib.sha256(data).digest()
        kept = self._cache.get(key)
        if kept is not None:
            self._hits += 1
        else:
            kept = await self._fly(key, order, data)
        if isinstance(kept, SerializedError):
            raise deserialize_error(kept)
        return kept

    async def warm(self) -> None:
        """Start all workers ahead of the first order."""
        self._proven = True
        self._hire()
        if starting := [bench.ready for bench in self._crew]:
            await asyncio.wait(starting)

    async def aclose(self) -> None:
        """End all workers; who waits for an order is told that the server stops."""
        self._closed = True
        for flight in self._queue:
            _give(flight, _stopping())
        self._queue.clear()
        for bench in self._crew:
            bench.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _fly(self, key: Key, order: Order, data: bytes) -> Kept:
        """Wait for a compile of this order, one that is under way or a new one."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._board(key, order, data)
        else:
            self._hits += 1
        task = cast("asyncio.Task[Kept]", flight.task)
        flight.passengers += 1
        try:
            return await asyncio.shield(task)
        finally:
            flight.passengers -= 1
            if not flight.passengers and not flight.turn.done():
                flight.turn.cancel()
                self._queue.remove(flight)
                del self._flights[key]

    def _board(self, key: Key, order: Order, data: bytes) -> Flight:
        if self._closed:
            raise deserialize_error(_stopping())
        if len(self._queue) >= self.queue:
            raise deserialize_error(_crowded())
        self._misses += 1
        flight = self._flights[key] = Flight(order, data)
        self._queue.append(flight)
        self._hire()
        self._dispatch()
        flight.task = self._begin(self._complete(key, flight))
        return flight

    async def _complete(self, key: Key, flight: Flight) -> Kept:
        try:
            await asyncio.wait({flight.turn}, timeout=self.patience)
            if not flight.turn.done():
                self._queue.remove(flight)
                _give(flight, _crowded())
            if flight.turn.cancelled():
                return _crowded()  # nobody is there to hear it
            given = flight.turn.result()
            return given if isinstance(given, SerializedError) else await self._use(given, key, flight)
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _use(self, bench: Bench, key: Key, flight: Flight) -> Kept:
        """Have a worker do it, and remember what is certain to be so again."""
        try:
            answer = await bench.ask(flight.data, WALL * self._seconds)
        except msgspec.DecodeError:
            bench.kill()
            answer = None
        finally:
            self._working -= 1
        if answer is None or answer.spoilt:
            bench.kill()
        else:
            self._free.append(bench)
        self._dispatch()
        if answer is not None:
            kept = answer.made if answer.made is not None else cast(SerializedError, answer.note)
        elif self._closed:
            return _stopping()
        else:
            slow = bench.late or bench.code == OVERRUN
            why = "took too long" if slow else "is too complex"
            kept = too_complex(flight.order, f"This constraint {why} to compile.")
            if bench.late or bench.code in OUTSIDE:
                return kept
        self._cache.put(key, kept)
        return kept

    def _dispatch(self) -> None:
        """Bring those who wait and those who are free together."""
        self._free = [bench for bench in self._free if not bench.gone.done()]
        while self._queue and self._free and self._working < self.workers:
            bench = self._free.pop()
            bench.used = True
            self._working += 1
            _give(self._queue.popleft(), bench)

    def _hire(self) -> None:
        """Start as many workers as should be there."""
        wanted = min(self.workers, len(self._queue) + self._working)
        if self._proven:
            wanted = self.workers + 1
        while len(self._crew) < wanted and not self._closed:
            bench = Bench()
            self._crew.add(bench)
            self._begin(self._employ(bench))

    async def _employ(self, bench: Bench) -> None:
        """A worker from its first day to its last."""
        if await bench.start([*self._start, *filter(_is_text, sys.path)]):
            self._proven = True
            self._free.append(bench)
            self._dispatch()
            self._hire()
            await bench.gone
            self._crew.discard(bench)
            self._restarts += not self._closed
            if bench.used or self._queue:  # one that died idle may do so again, for ever
                self._hire()
            return
        await bench.gone
        self._crew.discard(bench)
        self._proven = False
        if self._closed:
            return
        for line in bench.said:
            log.error("a worker for constraints did not start: %s", line)
        if not self._crew:
            while self._queue:
                _give(self._queue.popleft(), _unable())

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _give(flight: Flight, given: Bench | SerializedError) -> None:
    flight.turn.set_result(given)


def _is_text(entry: object) -> bool:
    return isinstance(entry, str)


def _crowded() -> SerializedError:
    return serialize_error(
        Overloaded("Too many constraints wait to be compiled. Try again soon.", retry_after=2)
    )


def _stopping() -> SerializedError:
    return serialize_error(Draining("The server is stopping.", retry_after=1))


def _unable() -> SerializedError:
    return serialize_error(Unavailable("Constraints cannot be compiled at the moment.", retry_after=10))
