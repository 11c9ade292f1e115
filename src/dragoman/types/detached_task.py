"""Tasks that outlive the request in which they start."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import TypeVar

T = TypeVar("T")


def start_detached(work: Coroutine[object, None, T]) -> asyncio.Task[T]:
    """Start a task without the context variables of the caller.

    With them, it would keep the request that happened to start it, and write to its record.
    """
    return asyncio.get_running_loop().create_task(work, context=Context())
