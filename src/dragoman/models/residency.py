"""Decides which models stay in memory: users, idle timers, and memory for the next model.

A `ModelSlot` is the place of one model, loaded or not. A `LoadedModel` is a model in memory; when
it is taken out of service it leaves its slot at once and is closed when its last user is gone.
Until then its bytes still count. `Residency` does the counting. It runs on one event loop and never
awaits while it decides: choosing which models to evict, detaching them and reserving memory is one
step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal

from dragoman.engines.system_memory import format_memory
from dragoman.errors import DragomanError, ModelBroken, Unavailable
from dragoman.models.catalog import FileStamp, ModelSource
from dragoman.models.model import Model

log = logging.getLogger("dragoman.models")

ENGINE_START_SECONDS = 2.0  # without reading the file
LOAD_BYTES_PER_SECOND = 200e6  # of a slow disk
MAX_RETRY_SECONDS = 60  # until a client asks again whether a model is loaded
LoadState = Literal["unloaded", "loading", "ready", "failed"]


class ModelSlot:
    """The place of one model."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.loaded: LoadedModel | None = None
        self.task: asyncio.Task[None] | None = None  # the running load
        self.waiting = 0  # requests that wait for the load
        self.reserved = 0  # bytes, while it loads
        self.last_load_seconds: float | None = None  # how long the last load took
        self._load_started = 0.0
        self.progress = 0.0
        self.error: DragomanError | None = None  # of the last load, for waiting requests
        self.failed_stamp: FileStamp | None = None  # the version of the file that failed to load

    def start_load(self, task: asyncio.Task[None]) -> None:
        """Start a load that runs in this task."""
        self.error, self.failed_stamp = None, None
        self._load_started, self.progress = time.monotonic(), 0.0
        self.task = task
        task.add_done_callback(self._end_load)

    def _end_load(self, task: asyncio.Task[None]) -> None:
        """Forget the task, which did nothing at all if it was cancelled before it began."""
        if self.task is task:
            self.task = None
        if task.cancelled():
            self.error = Unavailable("The model was unloaded while it was loading.", retry_after=1)

    @property
    def is_active(self) -> bool:
        return self.loaded is not None or self.task is not None

    @property
    def seconds_loading(self) -> float:
        return time.monotonic() - self._load_started

    def estimate_seconds_left(self) -> float:
        """Estimate in how many seconds a load is done. During one load, the result only shrinks."""
        expected = self.last_load_seconds
        if expected is None:
            expected = ENGINE_START_SECONDS + self.source.size / LOAD_BYTES_PER_SECOND
        rest = round(expected - self.seconds_loading)
        return float(min(MAX_RETRY_SECONDS, max(1, rest)))

    @property
    def state(self) -> LoadState:
        if self.loaded is not None:
            return "ready"
        if self.task is not None:
            return "loading"
        broken = self.source.broken is not None or self.failed_stamp == self.source.stamp
        return "failed" if broken else "unloaded"


class LoadedModel:
    """A model in memory. A model that is not `owned` is never closed here."""

    def __init__(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        self.slot = slot
        self.model = model
        self.size = slot.reserved or slot.source.size
        self.is_owned = owned
        self.users = 0
        self.keep_alive: float | None = None  # seconds, of the last request that set it
        self.last_use = 0  # on a clock that counts uses
        self.timer: asyncio.TimerHandle | None = None
        self.expires_at: float | None = None  # when the timer unloads it, in seconds since 1970
        self.closing: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        return self.slot.loaded is self

    @property
    def is_evictable(self) -> bool:
        pinned = bool(self.slot.source.options.pin) or not self.is_owned
        return self.is_serving and not self.users and not self.slot.waiting and not pinned

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = self.expires_at = None


class Residency:
    """Counts users and bytes. A negative `keep_alive` is forever.

    `memory` is the operator's limit, 0 is none. Then models share the bytes that are `available`
    (0 is any number), and a model that needs more is loaded alone.
    """

    def __init__(self, memory: int, keep_alive: float, available: int = 0) -> None:
        self.memory = memory
        self.available = available
        self.keep_alive = keep_alive
        self.loaded: set[LoadedModel] = set()
        self._loading: set[ModelSlot] = set()
        self._use_counter = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def list_serving(self) -> list[LoadedModel]:
        return [loaded for loaded in self.loaded if loaded.is_serving]

    def reserve_memory(self, slot: ModelSlot, needed: int) -> list[asyncio.Task[None]]:
        """Reserve bytes for a load, evicting the least recently used models.

        Returns the tasks to await before the memory is free.
        """
        if self.memory and needed > self.memory:
            raise ModelBroken(
                f"It needs {format_memory(needed)}; this server loads at most "
                f"{format_memory(self.memory)}."
            )
        limit = self.memory or self.available
        needed = min(needed, limit) if limit else needed
        used = sum(loaded.size for loaded in self.loaded)
        used += sum(other.reserved for other in self._loading)
        closing = [loaded for loaded in self.loaded if loaded.closing is not None]
        idle = [loaded for loaded in self.loaded if loaded.is_evictable]
        idle.sort(key=lambda loaded: loaded.last_use)
        evicted: list[LoadedModel] = []
        while limit and used + needed > limit:
            if not closing and not idle:
                raise Unavailable(
                    "There is not enough memory for this model while others are in use.",
                    retry_after=5,
                )
            evicted.append((closing or idle).pop(0))
            used -= evicted[-1].size
        slot.reserved = needed
        self._loading.add(slot)
        return [task for loaded in evicted if (task := self.detach(loaded)) is not None]

    def release_reservation(self, slot: ModelSlot) -> None:
        slot.reserved = 0
        self._loading.discard(slot)

    def add_model(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        """Put a loaded model into its slot."""
        slot.loaded = loaded = LoadedModel(slot, model, owned)
        self.release_reservation(slot)
        self.loaded.add(loaded)
        self._touch(loaded)
        self.start_idle_timer(loaded)

    def add_user(self, loaded: LoadedModel, keep_alive: float | None = None) -> None:
        """Count a user; its `keep_alive` holds until another one sets it."""
        loaded.users += 1
        if keep_alive is not None:
            loaded.keep_alive = keep_alive
        if loaded.timer is not None:
            loaded.stop_timer()
        self._touch(loaded)

    def remove_user(self, loaded: LoadedModel) -> None:
        loaded.users -= 1
        self._touch(loaded)
        if loaded.users:
            return
        if loaded.is_serving:
            self.start_idle_timer(loaded)
        else:
            self._schedule_close(loaded)

    def get_keep_alive(self, loaded: LoadedModel) -> float:
        """Return how many seconds a model stays loaded when it is idle."""
        if loaded.keep_alive is not None:
            return loaded.keep_alive
        own = loaded.slot.source.options.keep_alive
        return self.keep_alive if own is None else own

    def start_idle_timer(self, loaded: LoadedModel) -> None:
        """Start the timer that unloads an idle model."""
        loaded.stop_timer()
        if loaded.is_evictable and (seconds := self.get_keep_alive(loaded)) >= 0:
            loaded.timer = asyncio.get_running_loop().call_later(seconds, self._expire, loaded)
            loaded.expires_at = time.time() + seconds

    def detach(self, loaded: LoadedModel, force: bool = False) -> asyncio.Task[None] | None:
        """Take a model out of service and return the task that closes it.

        A model in use is closed later, and has no such task yet, unless this is forced.
        """
        loaded.stop_timer()
        if loaded.is_serving:
            loaded.slot.loaded = None
        if force or not loaded.users:
            self._schedule_close(loaded)
        return loaded.closing

    def _touch(self, loaded: LoadedModel) -> None:
        self._use_counter += 1
        loaded.last_use = self._use_counter

    async def put_to_sleep(self, loaded: LoadedModel) -> bool:
        """Free the device of an idle model until its next request; False if that is impossible."""
        sleep = getattr(loaded.model.engine, "sleep", None)
        if sleep is None or not loaded.model.capabilities.can_sleep or not loaded.is_evictable:
            return False
        loaded.stop_timer()
        try:
            await sleep()
        except DragomanError as error:
            log.warning("%s: cannot free its device memory: %s", loaded.model.id, error)
            return False
        log.info("%s: its device memory is free until the next request", loaded.model.id)
        return True

    def _expire(self, loaded: LoadedModel) -> None:
        loaded.timer = loaded.expires_at = None
        if loaded.is_evictable:
            task = asyncio.get_running_loop().create_task(self._sleep_or_unload(loaded))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sleep_or_unload(self, loaded: LoadedModel) -> None:
        """Put an idle model to sleep, or unload it."""
        if not await self.put_to_sleep(loaded) and loaded.is_evictable:
            log.info("unloading %s: it is idle", loaded.model.id)
            self.detach(loaded)

    def _schedule_close(self, loaded: LoadedModel) -> None:
        if loaded.closing is None:
            loaded.closing = asyncio.get_running_loop().create_task(self._close(loaded))

    async def _close(self, loaded: LoadedModel) -> None:
        try:
            close = getattr(loaded.model.engine, "aclose", None)
            if loaded.is_owned and close is not None:
                await close()
        except Exception:
            log.exception("failed to close %s", loaded.model.id)
        finally:
            self.loaded.discard(loaded)


class Lease:
    """Keeps a model in memory until it is released. Releasing twice is harmless."""

    def __init__(
        self, residency: Residency, loaded: LoadedModel, name: str, keep_alive: float | None
    ) -> None:
        self.model = loaded.model
        self.model_name = name  # in the answer
        self._residency = residency
        self._loaded: LoadedModel | None = loaded
        residency.add_user(loaded, keep_alive)

    def release(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._residency.remove_user(loaded)

    def __enter__(self) -> Model:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()
