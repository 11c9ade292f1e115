"""Assigns the slots of the native server to jobs, and tracks whose prompts the slots contain.

The server accepts any number of requests and assigns its slots by a rule of its own, under which a
request for several choices can wait forever. So it never gets more requests than it has slots. Jobs
wait here instead, in order of arrival; cancelling a waiting job does not involve the server.

**Cache scopes.** A slot keeps the KV cache of the last prompt and answer that ran in it, and a
request whose prompt begins the same reuses it. The server compares tokens alone, so it would reuse
what another owner has sent, and the number of cached tokens and the time to the first token would
tell one owner what another has asked. So the pool chooses the slot of every request (`id_slot`) and
knows the label of each: the cache scope (and the adapters) that all of its content belongs to. A
request may reuse a slot of its own label; in any other it runs with `cache_prompt` false, which
makes the server forget the content first. The label is None where the content is not known for
sure: at the start, in slots that the server used for further choices of a job (it picks those
itself), and while a request with another label is on its way. It becomes the label of a request
when the server's response to that begins, which is after the slot has forgotten what was in it.
For the same reason, cancelling a job does not free its slot before the server has answered to its
last request: a request that is still on its way could otherwise run later, after the slot
has another label.

**Choosing a slot.** As the server would, within one label: the free slot with the longest common
prefix, if that is more than a tenth of the prompt, else an empty slot, else one of the label that
has the most slots, the least recently used first. What would be lost is saved in memory and
restored when its conversation continues (`saved_states`); the server's own cache for this cannot
keep scopes apart and is off.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias, TypeVar

from msgspec import Struct

from dragoman.engines.llamacpp.saved_states import StateStore
from dragoman.engines.llamacpp.shared_prefill import MAX_WAITS, SharedPrefills
from dragoman.engines.llamacpp.slot import CacheLabel, Slot
from dragoman.types import Job

T = TypeVar("T")
Prefill: TypeAlias = Callable[[Sequence[int]], Coroutine[object, None, object]]

MIN_SIMILARITY = 0.1  # the part of a prompt that must be in a slot to choose the slot for it
MIN_GAIN = 16  # tokens; fewer are not worth saving or restoring


class SlotLease:
    """The slots that a job holds: one that takes its requests, and others for further choices."""

    def __init__(
        self,
        slots: list[Slot],
        label: CacheLabel,
        store: StateStore | None,
        prefills: SharedPrefills | None = None,
    ) -> None:
        self.slots = slots
        self.label = label
        self.computed_prefix = 0  # tokens that this job processed before its request
        self.pending: set[asyncio.Task[object]] = set()
        self._store = store
        self._prefills = prefills
        self._prompt: list[int] = []
        self._answer: list[int] = []

    @property
    def slot(self) -> Slot:
        return self.slots[0]

    @property
    def may_reuse(self) -> bool:
        """Whether a request may reuse what is in the slot."""
        return self.slot.label == self.label

    async def run(
        self, work: Coroutine[object, None, T], discard: Callable[[T], object] = bool
    ) -> T:
        """Return the result of work on the slot. Cancelling this does not stop the work.

        The slot is not free before the work is done; its result is then passed to `discard`.
        """
        task = asyncio.ensure_future(work)
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(_discard_result, discard))
            raise

    async def request(
        self,
        prompt: Sequence[int],
        work: Coroutine[object, None, T],
        discard: Callable[[T], object] = bool,
    ) -> T:
        """Wait until the server responds to a request of this job."""
        return await self.run(self._start(prompt, work), discard)

    async def _start(self, prompt: Sequence[int], work: Coroutine[object, None, T]) -> T:
        slot = self.slot
        if slot.label != self.label:
            slot.clear_content()
        response = await work
        slot.label, slot.tokens = self.label, list(prompt)
        return response

    def watch_answer(self, prompt: list[int], ids: list[int]) -> None:
        """Remember the list that collects the answer's tokens, which will be in the slot."""
        self._prompt, self._answer = prompt, ids

    def record_content(self) -> None:
        """Record the content of the slot at the end of the job, as far as it is known."""
        if self.may_reuse and self._answer:
            self.slot.tokens = self._prompt + self._answer

    async def prepare(self, job: Job, prompt: Sequence[int], prefill: Prefill) -> None:
        """Save what the job will overwrite, and restore what it can reuse."""
        store, slot = self._store, self.slot
        if store is None:
            return
        kept = slot.count_reusable(self.label, prompt)
        await self._save_content(kept)
        if not job.cache_prompt:
            return
        known = store.count_reusable(self.label, prompt)
        if self.label.scope and job.public_prefix > max(kept, known):
            await self._share_prefix(store, prompt[: job.public_prefix], prefill)
            return
        has_waited = not job.media and await self._wait_for_prefills(
            store, prompt, max(kept, known)
        )
        if store.count_reusable(self.label, prompt) >= kept + MIN_GAIN:
            await self.run(store.restore(slot, self.label, prompt, keeps_state=has_waited))
        if self._prefills is not None and not job.media:
            await self._run_prefill(store, self._prefills, prompt, prefill)

    async def _wait_for_prefills(
        self, store: StateStore, prompt: Sequence[int], known: int
    ) -> bool:
        """Wait for jobs that process the beginning of this prompt; False if there are none."""
        for waits in range(MAX_WAITS):
            leading = None
            if self._prefills is not None:
                leading = self._prefills.find(self.label, prompt, known)
            if leading is None:
                return waits > 0
            await leading.wait()
            if store.count_reusable(self.label, prompt) > known:
                break
        return True

    async def _run_prefill(
        self, store: StateStore, prefills: SharedPrefills, prompt: Sequence[int], prefill: Prefill
    ) -> None:
        """Process a long prompt up to its last token, also for jobs that begin with the same."""
        kept = self.slot.count_reusable(self.label, prompt)
        beginning = prompt[:-1]
        if not prefills.is_worthwhile(len(beginning) - kept):
            return
        with prefills.lead(self.label, beginning) as leading:
            await prefill(beginning)
            self.computed_prefix = len(beginning) - kept
            if leading.followers:
                await self.run(store.save(self.slot))

    async def vacate(self) -> None:
        """Save the content of the slot, and mark the slot as empty."""
        await self._save_content(0)
        self.slot.clear_content()

    async def _save_content(self, kept: int) -> None:
        """Save the content if less than half of it stays in the slot."""
        slot = self.slot
        if self._store is not None and len(slot.tokens) >= max(MIN_GAIN, 2 * kept + 1):
            await self.run(self._store.save(slot))

    async def _share_prefix(
        self, store: StateStore, prefix: Sequence[int], prefill: Prefill
    ) -> None:
        """Put a public prefix into the slot: the saved one, or else compute and save it."""
        if await self.run(store.restore_public(self.slot, self.label, prefix)):
            return
        self.slot.clear_content()
        await prefill(prefix)
        self.computed_prefix = len(prefix)
        await self.run(store.save_public(self.slot, prefix))


class _Waiter(Struct, eq=False):
    count: int
    label: CacheLabel
    prompt: Sequence[int]
    lease: asyncio.Future[SlotLease]


class SlotPool:
    """All slots of a server, and a queue for them."""

    def __init__(
        self, count: int, store: StateStore | None = None, prefills: SharedPrefills | None = None
    ) -> None:
        self._slots = [Slot(number) for number in range(count)]
        self._store = store
        self.prefills = prefills
        self._queue: deque[_Waiter] = deque()
        self._clock = 0

    @property
    def free(self) -> int:
        """How many slots are free."""
        return sum(slot.is_free for slot in self._slots)

    @asynccontextmanager
    async def acquire(
        self, count: int, label: CacheLabel, prompt: Sequence[int] = ()
    ) -> AsyncGenerator[SlotLease, None]:
        """Hold `count` slots for a prompt."""
        if self._queue or self.free < count:
            lease = await self._wait(count, label, prompt)
        else:
            lease = self._grant(count, label, prompt)
        try:
            yield lease
        finally:
            self._release(lease)

    @asynccontextmanager
    async def borrow(
        self, lease: SlotLease, prompt: Sequence[int]
    ) -> AsyncGenerator[SlotLease, None]:
        """Hold one more slot if one is free now, else the one that the job has already."""
        if self._queue or not self.free:
            yield lease
            return
        async with self.acquire(1, lease.label, prompt) as another:
            yield another

    async def _wait(self, count: int, label: CacheLabel, prompt: Sequence[int]) -> SlotLease:
        future: asyncio.Future[SlotLease] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(count, label, prompt, future)
        self._queue.append(waiter)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(future.result())
            elif waiter in self._queue:  # else a slot has become free in this turn
                self._queue.remove(waiter)
                self._serve_queue()  # a smaller request behind this one may fit now
            raise

    def _release(self, lease: SlotLease) -> None:
        """Free the slots, once the server is done with what the job has sent to it."""
        if lease.pending:
            done = asyncio.gather(*lease.pending, return_exceptions=True)
            done.add_done_callback(lambda _: self._free(lease))
        else:
            self._free(lease)

    def _free(self, lease: SlotLease) -> None:
        lease.record_content()
        for slot in lease.slots:
            self._clock += 1
            slot.used_at, slot.is_free = self._clock, True
        for slot in lease.slots[1:]:
            slot.clear_content()  # the server may have used other slots than these
        self._serve_queue()

    def _serve_queue(self) -> None:
        while self._queue and self._queue[0].count <= self.free:
            waiter = self._queue.popleft()
            if not waiter.lease.cancelled():
                waiter.lease.set_result(self._grant(waiter.count, waiter.label, waiter.prompt))

    def _grant(self, count: int, label: CacheLabel, prompt: Sequence[int]) -> SlotLease:
        """Take slots: the best one for the prompt, and those that the server picks for choices."""
        free = [slot for slot in self._slots if slot.is_free]
        best = self._choose(free, label, prompt)
        # the server picks the first free ones
        others = [slot for slot in free if slot is not best][: count - 1]
        for slot in (best, *others):
            slot.is_free = False
        return SlotLease([best, *others], label, self._store, self.prefills)

    def _choose(self, free: list[Slot], label: CacheLabel, prompt: Sequence[int]) -> Slot:
        best, reusable = max(
            ((slot, slot.count_reusable(label, prompt)) for slot in free), key=lambda pair: pair[1]
        )
        saved = self._store.count_reusable(label, prompt) if self._store is not None else 0
        if reusable >= max(saved, 1) and reusable > MIN_SIMILARITY * len(prompt):
            return best
        shares = Counter(slot.label for slot in self._slots if not slot.is_empty)
        # from the end, because the server takes the first ones for further choices
        return min(
            reversed(free),
            key=lambda slot: (not slot.is_empty, -shares[slot.label], slot.used_at),
        )


def _discard_result(discard: Callable[[T], object], task: asyncio.Task[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())
