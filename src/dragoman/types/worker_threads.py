"""Threads for work that would block the event loop.

Large requests are decoded, rendered and tokenized here. There are few threads on purpose: each of
them competes with the event loop for the interpreter, and each holds the memory of one request.
Work that waits for something else, such as a file, belongs into `asyncio.to_thread`.
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


async def run_in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread, with the context variables of the caller."""
    context = copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_pool, lambda: context.run(function, *args, **kwargs))
