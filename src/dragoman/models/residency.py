"""Who stays in memory: users, idle clocks, and room for the next model.

A `Slot` is the place of one model, loaded or not. `Held` is a model in memory; when it is taken
out of service it leaves its slot at once and is closed when its last user is gone, and until then
its bytes still count. The `Keeper` does the counting. It runs on one event loop and never awaits
while it decides: choosing who has to go, taking them out and reserving the room is one step.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

from dragoman.errors import DragomanError, ModelBroken, Unavailable
from dragoman.models.catalog import FileStamp, ModelSource
from dragoman.models.model import Model

log = logging.getLogger("dragoman.models")

LoadState = Literal["unloaded", "loading", "ready", "failed"]


class ModelSlot:
    """The place of one model."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.loaded: LoadedModel | None = None
        self.task: asyncio.Task[None] | None = None  # the load that is going on
        self.waiting = 0  # requests that wait for it
        self.reserved = 0  # bytes, while it loads
        self.load_started = 0.0
        self.progress = 0.0
        self.error: DragomanError | None = None  # what those who wait are told
        self.failed_stamp: FileStamp | None = None  # the state of the file that could not be loaded

    @property
    def active(self) -> bool:
        return self.loaded is not None or self.task is not None

    @property
    def state(self) -> LoadState:
        if self.loaded is not None:
            return "ready"
        if self.task is not None:
            return "loading"
        broken = self.source.broken is not None or self.failed_stamp == self.source.stamp
        return "failed" if broken else "unloaded"


class LoadedModel:
    """A model in memory. One that is not `owned` is somebody else's, and is never closed here."""

    def __init__(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        self.slot = slot
        self.model = model
        self.size = slot.source.size
        self.owned = owned
        self.users = 0
        self.last_use = 0  # when it was last used, on a clock that counts uses
        self.timer: asyncio.TimerHandle | None = None
        self.closing: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        return self.slot.loaded is self

    @property
    def is_evictable(self) -> bool:
        pinned = bool(self.slot.source.options.pin) or not self.owned
        return self.is_serving and not self.users and not self.slot.waiting and not pinned

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Residency:
    """Counts users and bytes. `memory` 0 is no limit, `keep_alive` below 0 is for ever."""

    def __init__(self, memory: int, keep_alive: float) -> None:
        self.memory = memory
        self.keep_alive = keep_alive
        self.loaded: set[LoadedModel] = set()
        self._loading: set[ModelSlot] = set()
        self._use_counter = 0

    def list_serving(self) -> list[LoadedModel]:
        return [held for held in self.loaded if held.is_serving]

    def reserve_memory(self, slot: ModelSlot) -> list[asyncio.Task[None]]:
        """Reserve memory for a load, sending away what was unused for longest; what to await."""
        limit, need = self.memory, slot.source.size
        if limit and need > limit:
            raise ModelBroken(
                f"It needs {_format_size(need)}, and this server keeps at most {_format_size(limit)} loaded."
            )
        used = sum(held.size for held in self.loaded) + sum(
            other.reserved for other in self._loading
        )
        leaving = [held for held in self.loaded if held.closing is not None]
        idle = sorted(
            (held for held in self.loaded if held.is_evictable), key=lambda held: held.last_use
        )
        going: list[LoadedModel] = []
        while limit and used + need > limit:
            if not leaving and not idle:
                raise Unavailable(
                    "There is no room for this model while the others are in use.", retry_after=5
                )
            going.append((leaving or idle).pop(0))
            used -= going[-1].size
        slot.reserved = need
        self._loading.add(slot)
        return [task for held in going if (task := self.retire(held)) is not None]

    def release_reservation(self, slot: ModelSlot) -> None:
        slot.reserved = 0
        self._loading.discard(slot)

    def adopt(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        """Put a loaded model into its slot."""
        self.release_reservation(slot)
        slot.loaded = held = LoadedModel(slot, model, owned)
        self.loaded.add(held)
        self._touch(held)
        self.start_idle_timer(held)

    def add_user(self, held: LoadedModel) -> None:
        held.users += 1
        held.stop_timer()
        self._touch(held)

    def remove_user(self, held: LoadedModel) -> None:
        held.users -= 1
        self._touch(held)
        if held.is_serving:
            self.start_idle_timer(held)
        elif not held.users:
            self._schedule_close(held)

    def start_idle_timer(self, held: LoadedModel) -> None:
        """Start the clock of a model that nobody uses."""
        chosen = held.slot.source.options.keep_alive
        seconds = self.keep_alive if chosen is None else chosen
        held.stop_timer()
        if seconds >= 0 and held.is_evictable:
            held.timer = asyncio.get_running_loop().call_later(seconds, self._expire, held)

    def retire(self, held: LoadedModel, force: bool = False) -> asyncio.Task[None] | None:
        """Take a model out of service. The task that closes it, unless it still has users."""
        held.stop_timer()
        if held.is_serving:
            held.slot.loaded = None
        if force or not held.users:
            self._schedule_close(held)
        return held.closing

    def _touch(self, held: LoadedModel) -> None:
        self._use_counter += 1
        held.last_use = self._use_counter

    def _expire(self, held: LoadedModel) -> None:
        held.timer = None
        if held.is_evictable:
            log.info("%s was idle and is unloaded", held.model.id)
            self.retire(held)

    def _schedule_close(self, held: LoadedModel) -> None:
        if held.closing is None:
            held.closing = asyncio.get_running_loop().create_task(self._close(held))

    async def _close(self, held: LoadedModel) -> None:
        try:
            close: Any = getattr(held.model.engine, "aclose", None)
            if held.owned and close is not None:
                await close()
        except Exception:
            log.exception("closing %s failed", held.model.id)
        finally:
            self.loaded.discard(held)


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
