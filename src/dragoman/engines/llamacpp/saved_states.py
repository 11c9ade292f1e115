"""Saves the KV caches of prompts that are no longer in a slot.

The native server writes the state of a slot to a file and reads it back. The file is an anonymous
one in memory, which has no name and ends with the process; where the system has none, it is a file
in the directory of the server's socket, which only this user can enter.

Each state has a label, and only jobs with the same label find it. When the states exceed their
memory limit, the label that uses the most loses its least recently used one, so that one owner
cannot push out all others. A public state holds exactly one prefix that the operator has
made public; it has no label and is never dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.loading.settings import can_save_states
from dragoman.engines.llamacpp.slot import CacheLabel, Slot
from dragoman.types.common_prefix import count_common_prefix

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.loading.native_params import LoadPlan
    from dragoman.engines.llamacpp.loading.server import NativeServer

log = logging.getLogger("dragoman.llamacpp")

DESCRIPTORS = "/proc/self/fd/"
MAX_STATES = 256


class _SlotResponse(Struct):
    n_saved: int = 0
    n_written: int = 0


class StateFile:
    """A file that the server can write a state to, by its name in `get_save_path`."""

    def __init__(self, folder: str) -> None:
        self._descriptor: int | None = None
        self._path: Path | None = None
        if has_memory_files():
            self._descriptor = os.memfd_create("dragoman-prompt", os.MFD_CLOEXEC)
            self.name = str(self._descriptor)
        else:
            self.name = f"prompt-{id(self)}"
            self._path = Path(folder) / self.name

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def has_memory_files() -> bool:
    return hasattr(os, "memfd_create") and os.path.isdir(DESCRIPTORS)


def get_save_path(folder: str) -> str:
    """Return the setting of the server that makes the names of `StateFile`s paths."""
    return DESCRIPTORS if has_memory_files() else f"{folder}/"


class SavedState:
    """The state of a slot, saved."""

    def __init__(self, label: CacheLabel | None, tokens: list[int], file: StateFile) -> None:
        self.label = label  # None: public
        self.tokens = tokens
        self.file = file
        self.size = 0  # bytes
        self.used_at = 0
        self.readers = 0  # slots that are being restored from it


def make_state_store(plan: LoadPlan, native: NativeServer) -> StateStore | None:
    """Return where prompts are saved that are no longer in a slot; None if they cannot be.

    A saved state has neither the KV cache of a draft model nor the adapters it was computed with,
    and a server with a projector saves none.
    """
    memory, settings = plan.memory, plan.settings
    if not can_save_states(settings) or not memory.cache_ram or plan.projector is not None:
        return None
    token_size = memory.memory.cache // (memory.slots * memory.context)
    return StateStore(native.client, native.folder, memory.cache_ram << 20, token_size)


class StateStore:
    """Saved states, up to a number of bytes."""

    def __init__(self, client: NativeClient, folder: str, limit: int, token_size: int) -> None:
        """`token_size` is about how many bytes one token needs."""
        self._client = client
        self._folder = folder
        self._limit = limit
        self._token_size = max(1, token_size)
        self._states: list[SavedState] = []
        self._clock = 0
        self._has_failed = False

    @property
    def size(self) -> int:
        """The size of all states in bytes."""
        return sum(state.size for state in self._states)

    def count_reusable(self, label: CacheLabel, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt the best state with this label holds."""
        best = self._find(label, prompt)
        return 0 if best is None else count_common_prefix(best.tokens, prompt)

    def _find(self, label: CacheLabel, prompt: Sequence[int]) -> SavedState | None:
        return max(
            (state for state in self._states if state.label == label),
            key=lambda state: count_common_prefix(state.tokens, prompt),
            default=None,
        )

    async def save(self, slot: Slot) -> None:
        """Save the content of a slot, unless it is saved already or too large."""
        label, tokens = slot.label, slot.tokens
        if label is None or len(tokens) * self._token_size > self._limit:
            return
        if any(
            state.label == label and state.tokens[: len(tokens)] == tokens for state in self._states
        ):
            return
        self._make_room(len(tokens) * self._token_size)
        state = await self._write(slot, SavedState(label, [*tokens], StateFile(self._folder)))
        if state is None:
            return
        for other in [*self._states]:  # those that the new one continues
            is_part = other.label == label and state.tokens[: len(other.tokens)] == other.tokens
            if is_part and not other.readers:
                self._drop(other)
        self._states.append(state)
        self._make_room(0)

    async def save_public(self, slot: Slot, prefix: Sequence[int]) -> None:
        """Save a slot whose content is a public prefix and nothing else."""
        state = await self._write(slot, SavedState(None, [*prefix], StateFile(self._folder)))
        if state is None:
            return
        if state.tokens != [*prefix] or self._find_public(prefix) is not None:
            state.file.close()
            return
        self._states.append(state)

    async def restore(
        self, slot: Slot, label: CacheLabel, prompt: Sequence[int], *, keeps_state: bool = False
    ) -> None:
        """Put the best state for a prompt into a slot."""
        state = self._find(label, prompt)
        if state is None:
            return
        await self._read(slot, label, state)
        # the slot has it now; if the prompt needs only a part of it, the rest may still be wanted
        is_wanted = keeps_state or state.readers
        if not is_wanted and 2 * count_common_prefix(state.tokens, prompt) >= len(state.tokens):
            self._drop(state)

    async def restore_public(self, slot: Slot, label: CacheLabel, prefix: Sequence[int]) -> bool:
        """Put a public prefix into a slot; return whether it was saved."""
        state = self._find_public(prefix)
        return state is not None and await self._read(slot, label, state)

    def _find_public(self, prefix: Sequence[int]) -> SavedState | None:
        tokens = [*prefix]
        return next(
            (state for state in self._states if state.label is None and state.tokens == tokens),
            None,
        )

    async def _write(self, slot: Slot, state: SavedState) -> SavedState | None:
        saved = await self._act(slot, "save", state)
        if saved is None or not saved.n_saved:
            state.file.close()
            return None
        del state.tokens[saved.n_saved :]  # a cancelled job may have processed less than its prompt
        state.size = saved.n_written
        self._touch(state)
        return state

    async def _read(self, slot: Slot, label: CacheLabel, state: SavedState) -> bool:
        slot.clear_content()
        state.readers += 1
        self._touch(state)
        try:
            is_read = await self._act(slot, "restore", state) is not None
        finally:
            state.readers -= 1
        if is_read:
            slot.label, slot.tokens = label, [*state.tokens]
        elif not state.readers:
            self._drop(state)
        return is_read

    async def _act(self, slot: Slot, action: str, state: SavedState) -> _SlotResponse | None:
        path = f"/slots/{slot.number}?action={action}"
        status, body = await self._client.post(path, {"filename": state.file.name})
        if status == 200:
            return msgspec.json.decode(body, type=_SlotResponse)
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True  # warn only once, since it may fail each time
        log.log(level, "cannot %s the state of a slot: %s", action, body[:200])
        return None

    def _touch(self, state: SavedState) -> None:
        self._clock += 1
        state.used_at = self._clock

    def _drop(self, state: SavedState) -> None:
        with contextlib.suppress(ValueError):
            self._states.remove(state)
            state.file.close()

    def _make_room(self, needed: int) -> None:
        """Drop states until there is room for another one."""
        while self.size + needed > self._limit or len(self._states) > MAX_STATES:
            idle = [state for state in self._states if state.label and not state.readers]
            if not idle:
                return
            shares: Counter[CacheLabel | None] = Counter()
            for state in self._states:
                shares[state.label] += state.size
            self._drop(min(idle, key=lambda state: (-shares[state.label], state.used_at)))

    def close(self) -> None:
        for state in [*self._states]:
            self._drop(state)
