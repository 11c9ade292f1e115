"""The inputs of all calls, computed in shared batches.

A batch takes one input of each waiting call in turn, so that a call with many inputs delays others
by one batch and not by all of its inputs. Inputs of a cancelled call are dropped, and a batch that
nobody waits for any more is cancelled. If a batch fails, each of its inputs is computed alone, so
that an input of one call cannot fail another.

An input may share a batch only where that does not change its result. On the CPU, attention over 64
tokens and more uses another kernel. Its rounding errors become large where activations are
quantized: numbers of vectors of the default model differ by up to 0.017, also with a KV cache of 32
bits. So the inputs of a shared batch have fewer tokens together, and a longer input is computed
alone, as it would be in a request of its own. Larger batches would save nothing: the default model
takes the same CPU time for 64 texts in batches of 63 and of 512 tokens, with flash attention or
without. About a quarter of that time goes into the logits of all tokens, which the native library
computes for embeddings as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import ENGINE_STOPPED, EngineDown

SHARED_TOKENS = 63  # of a shared batch on the CPU
MAX_INPUTS = 32  # of a batch, each of which needs a slot of the server

Vector: TypeAlias = list[float]
ComputeBatch: TypeAlias = Callable[[list[list[int]]], Awaitable[list[Vector]]]


class BatchInput(Struct, eq=False):
    """An input, and where its result goes."""

    ids: list[int]
    result: asyncio.Future[Vector]


class InputBatches:
    """Waiting inputs of one model, and the batch that is being computed."""

    def __init__(self, compute: ComputeBatch, max_inputs: int, shared_tokens: int) -> None:
        """`shared_tokens` is how many tokens the inputs of one batch may have together."""
        self._compute = compute
        self._max_inputs = max_inputs
        self._shared_tokens = shared_tokens
        self._calls: deque[deque[BatchInput]] = deque()
        self._batch: list[BatchInput] = []
        self._running: asyncio.Task[list[Vector]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def run(self, inputs: Sequence[list[int]]) -> list[Vector]:
        """Return a vector for each input. Cancelling skips those that are not computed yet."""
        if self._is_closed:
            raise EngineDown(ENGINE_STOPPED)
        loop = asyncio.get_running_loop()
        waiting = deque(BatchInput(ids, loop.create_future()) for ids in inputs)
        results = [entry.result for entry in waiting]
        self._calls.append(waiting)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await asyncio.gather(*results)
        finally:
            for result in results:
                result.cancel()
            if self._running is not None and all(entry.result.done() for entry in self._batch):
                self._running.cancel()

    async def aclose(self) -> None:
        """Fail what waits, and cancel the batch that is being computed."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail([entry for call in self._calls for entry in call])
        self._calls.clear()

    async def _run(self) -> None:
        try:
            while batch := self._select_batch():
                await self._run_batch(batch)
        finally:
            self._fail(self._batch)

    def _select_batch(self) -> list[BatchInput]:
        """Take inputs for the next batch, of each call in turn."""
        batch: list[BatchInput] = []
        tokens = skipped = 0
        while self._calls and len(batch) < self._max_inputs and skipped < len(self._calls):
            call = self._calls[0]
            while call and call[0].result.done():  # cancelled
                call.popleft()
            if not call:
                self._calls.popleft()
                continue
            size = len(call[0].ids)
            if batch and tokens + size > self._shared_tokens:
                skipped += 1
            else:
                batch.append(call.popleft())
                tokens += size
                skipped = 0
            self._calls.rotate(-1)
        return batch

    async def _run_batch(self, batch: list[BatchInput]) -> None:
        """Compute a batch; if it fails, each of its inputs alone."""
        self._batch = batch
        self._running = asyncio.ensure_future(self._compute([entry.ids for entry in batch]))
        try:
            await asyncio.wait([self._running])
            if self._running.cancelled():
                return
            error = self._running.exception()
            if error is None:
                for entry, vector in zip(batch, self._running.result(), strict=True):
                    if not entry.result.done():
                        entry.result.set_result(vector)
        finally:
            self._running.cancel()  # if this task is cancelled
            self._running = None
        if error is not None and len(batch) > 1:
            for entry in batch:
                if not entry.result.done():
                    await self._run_batch([entry])
        elif error is not None:
            self._fail(batch, error)

    @staticmethod
    def _fail(entries: Sequence[BatchInput], error: BaseException | None = None) -> None:
        for entry in entries:
            if not entry.result.done():
                entry.result.set_exception(error or EngineDown(ENGINE_STOPPED))
