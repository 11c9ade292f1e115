"""Threads for work that would block the event loop.

Large requests are decoded, rendered and tokenized here. There are few threads on purpose: each of
them competes with the event loop for the interpreter, and each holds the memory of one request.
Work that waits for something else, such as a file, belongs in `asyncio.to_thread`.

Decoding a large body is one long call of native code, which holds the interpreter from beginning to
end. If several threads made such calls, the event loop would have to wait for one after the other.
So there is one thread for them.

Owners take turns, so that the work of one with many large requests delays that of another by one
piece of work for each thread at most. An owner is known by its cache scope.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Generic, ParamSpec, TypeVar

from dragoman.types.cache_scope import get_cache_scope

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 2


class _Work(Generic[T]):
    """A call, and the future of its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._function = function

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:
            self.future.set_exception(error)
            del self  # break the reference cycle


class FairThreads:
    """Threads that work for one owner after the other."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def submit(self, owner: str, function: Callable[[], T]) -> Future[T]:
        work = _Work(function)
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(work.run)
        self._pool.submit(self._run_next)
        return work.future

    def _run_next(self) -> None:
        """Run one piece of work of the owner whose turn it is, which then goes to the end."""
        self._take_next()()

    def _take_next(self) -> Callable[[], None]:
        with self._lock:
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            run = queue.popleft()
            if queue:
                self._waiting[owner] = queue
        return run


_workers = FairThreads(THREADS, "dragoman-worker")
_decoder = FairThreads(1, "dragoman-decoder")


async def run_in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread, with the context variables of the caller."""
    return await _run(_workers, function, *args, **kwargs)


async def run_in_decoder(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that decodes a request, one at a time; otherwise like `run_in_worker`."""
    return await _run(_decoder, function, *args, **kwargs)


async def _run(
    threads: FairThreads, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    context = copy_context()
    return await asyncio.wrap_future(
        threads.submit(get_cache_scope(), lambda: context.run(function, *args, **kwargs))
    )
