"""Threads for work that would block the event loop.

Large requests are decoded, rendered and tokenized here. There are few threads on purpose: each of
them competes with the event loop for the interpreter, and each holds the memory of one request.
Work that waits for something else, such as a file, belongs into `asyncio.to_thread`.

Decoding a large body is one long call of native code, which holds the interpreter from beginning to
end. If several threads made such calls, the event loop would have to wait for one after the other.
So there is one thread for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 2
_pool = ThreadPoolExecutor(THREADS, "dragoman-worker")
_decoder = ThreadPoolExecutor(1, "dragoman-decoder")


async def run_in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread, with the context variables of the caller."""
    return await _run(_pool, function, *args, **kwargs)


async def run_in_decoder(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the same with a function that decodes what a client has sent, one at a time."""
    return await _run(_decoder, function, *args, **kwargs)


async def _run(
    pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    context = copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: context.run(function, *args, **kwargs))
