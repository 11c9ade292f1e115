"""The keys that are valid now.

Keys come from settings (`--api-key`, `--admin-key`), from `keys:` in dragoman.yaml and from a key
file. The files are looked at once a second while requests arrive, and read again in a thread when
they have changed; the request that notices it waits for that, so a removed key is refused from the
next second on. If a file has a mistake, the keys stay as they were, and the log says why, once. A
server that needed a key needs one until it stops, even if all keys are removed.

Keys are held and compared as digests. Looking up a digest takes the same time whatever the key
is, because nobody can choose the first bytes of a digest.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from dragoman.keys.digests import hash_key
from dragoman.keys.entries import (
    KeyEntry,
    KeyFileError,
    make_plain_entry,
    parse_default_limits,
    parse_entries,
)
from dragoman.keys.key_file import read_key_file
from dragoman.keys.key_settings import KeySettings
from dragoman.keys.scopes import RouteName, find_unknown_route
from dragoman.types.limits import NO_LIMITS, KeyLimits

log = logging.getLogger("dragoman.keys")
CHECK_INTERVAL = 1.0  # seconds
MAX_WAIT = 1.0  # seconds that a request waits until changed keys are read
SETTLE_TIME = 0.2  # seconds after a change in which a file may not be complete yet

FileStamp: TypeAlias = tuple[int, int, int] | None  # time of change, size and inode


class KeyChanges(Struct, frozen=True):
    """What a reload changed, by the names of keys; those without a name are counted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        parts = ((getattr(self, kind), kind) for kind in self.__struct_fields__)
        return "; ".join(f"{kind} {', '.join(names)}" for names, kind in parts if names)


class KeyTable:
    """The entries of one reading, by digest and by owner."""

    def __init__(self, entries: Iterable[KeyEntry] = ()) -> None:
        self.by_digest: dict[bytes, KeyEntry] = {}
        self.by_owner: dict[str, KeyEntry] = {}
        self.has_admin = False
        for entry in entries:
            self._add(entry)

    def _add(self, entry: KeyEntry) -> None:
        known = self.by_owner.get(entry.owner)
        if entry.name and known is not None:
            same = "name" if known.name == entry.name else "owner"
            raise KeyFileError(f"{entry.where}: another entry has the same `{same}`")
        for digest in entry.digests:
            other = self.by_digest.get(digest)
            if other is not None and (other.name or entry.name):
                raise KeyFileError(
                    f"{(entry if entry.name else other).where}: the key of "
                    f"`{entry.name or other.name}` is in the configuration twice"
                )
            if other is None or entry.is_admin:
                self.by_digest[digest] = entry
        if known is None or entry.is_admin:
            self.by_owner[entry.owner] = entry
        self.has_admin |= entry.is_admin

    def find(self, key: bytes) -> KeyEntry | None:
        digest = hash_key(key)
        entry = self.by_digest.get(digest)
        if entry is None or not any(hmac.compare_digest(digest, own) for own in entry.digests):
            return None
        return entry


class KeyStore:
    """All keys of a server."""

    def __init__(
        self, settings: KeySettings | None = None, load: Callable[[], KeySettings] | None = None
    ) -> None:
        """Read the keys, or raise `KeyFileError`. `load` reads the settings again."""
        self._settings = settings or KeySettings()
        self._load = load or (lambda: self._settings)
        self._routes: tuple[RouteName, ...] = ()  # that exist; () while they are unknown
        self._stamps = self._stat_files()
        self._checked_at = time.monotonic()
        self._table = self._read(self._settings)
        self._loading: asyncio.Task[KeyChanges | None] | None = None
        self._loading_since = 0.0
        self.required = self._settings.has_api_keys  # a request needs a key
        self.on_change: Callable[[KeyChanges], None] = lambda changes: None

    @property
    def has_admin_keys(self) -> bool:
        return self._table.has_admin

    @property
    def entries(self) -> list[KeyEntry]:
        return list(self._table.by_owner.values())

    def find(self, key: bytes) -> KeyEntry | None:
        """Return the entry of a key, if it is valid."""
        entry = self._table.find(key)
        return None if entry is None or entry.has_expired else entry

    def has_expired(self, key: bytes) -> bool:
        """Whether a key was valid once."""
        entry = self._table.find(key)
        return entry is not None and entry.has_expired

    def find_owner(self, owner: str) -> KeyEntry | None:
        """Return the entry of an owner, if a key of it is valid."""
        entry = self._table.by_owner.get(owner)
        return None if entry is None or entry.has_expired else entry

    def find_limits(self, owner: str) -> KeyLimits:
        entry = self._table.by_owner.get(owner)
        return NO_LIMITS if entry is None else entry.limits

    def allows_model(self, owner: str, names: Iterable[str]) -> bool:
        """Whether an owner may use the model with these names."""
        entry = self._table.by_owner.get(owner)
        if entry is not None:
            return entry.scope.allows_model(names)
        return not owner  # the key of any other owner was removed

    def set_routes(self, routes: Iterable[RouteName]) -> None:
        """Set the routes that exist, or raise `KeyFileError` if a scope names another."""
        self._routes = tuple(routes)
        self._check_routes(self._table)

    def log_warnings(self) -> None:
        """Log which keys can be guessed, and which the configuration shows."""
        entries = self.entries
        weak = _name_all(entry for entry in entries if entry.is_weak)
        readable = _name_all(entry for entry in entries if entry.is_readable)
        if weak:
            log.warning(
                "API keys that can be guessed: %s; `dragoman keys new NAME` makes a random one",
                ", ".join(weak),
            )
        if readable:
            log.info(
                "API keys in plain text in the configuration: %s; `dragoman keys hash NAME` prints "
                "entries that have digests instead",
                ", ".join(readable),
            )

    # Reading again

    async def refresh(self) -> None:
        """Read the keys again if a file has changed; looks at most once a second."""
        if self._loading is None:
            if time.monotonic() - self._checked_at < CHECK_INTERVAL:
                return
            self._checked_at = time.monotonic()
            if self._stat_files() == self._stamps:
                return
            await self._wait_until_settled()
        elif time.monotonic() - self._loading_since > MAX_WAIT:
            return  # a file that cannot be read to its end delays no more requests
        with suppress(TimeoutError):  # thousands of keys take longer; then the old ones still count
            async with asyncio.timeout(MAX_WAIT):
                await self.reload()

    async def reload(self) -> KeyChanges | None:
        """Read the keys again now; None if they have a mistake."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._reload())
            self._loading_since = time.monotonic()
        return await asyncio.shield(self._loading)

    async def _reload(self) -> KeyChanges | None:
        try:
            self._stamps = self._stat_files()
            settings, table, changes = await asyncio.to_thread(self._read_again)
        except ValueError as error:  # of the settings, too
            log.error("the keys stay as they were: %s", error)
            return None
        except Exception:
            log.exception("reading the keys again failed; they stay as they were")
            return None
        finally:
            self._checked_at = time.monotonic()
            self._loading = None
        self._settings, self._table = settings, table
        self.required = self.required or settings.has_api_keys
        if changes:
            log.info("keys were read again: %s", changes)
            self.log_warnings()
        self.on_change(changes)
        return changes

    def _read_again(self) -> tuple[KeySettings, KeyTable, KeyChanges]:
        settings = self._load()
        table = self._read(settings)
        return settings, table, _compare(self._table, table)

    async def _wait_until_settled(self) -> None:
        """Wait while a file that has just changed may still be written."""
        times = [stamp[0] for stamp in self._stat_files() if stamp is not None]
        age = time.time() - max(times, default=0) / 1e9
        if 0 <= age < SETTLE_TIME:
            await asyncio.sleep(SETTLE_TIME - age)

    def _stat_files(self) -> list[FileStamp]:
        return [_stat(path) for path in (self._settings.file, self._settings.config_file)]

    def _read(self, settings: KeySettings) -> KeyTable:
        limits = parse_default_limits(settings.limits)
        entries = [make_plain_entry(key, limits=limits) for key in settings.api]
        entries += [make_plain_entry(key, is_admin=True) for key in settings.admin]
        entries += parse_entries(settings.entries, settings.locate, limits)
        if settings.file is not None:
            entries += read_key_file(settings.file, limits)
        table = KeyTable(entries)
        self._check_routes(table)
        return table

    def _check_routes(self, table: KeyTable) -> None:
        if not self._routes:
            return
        for entry in table.by_owner.values():
            problem = find_unknown_route(entry.scope.routes, self._routes)
            if problem is not None:
                raise KeyFileError(f"{entry.where}: `routes`: {problem}")


def _stat(path: Path | None) -> FileStamp:
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _compare(old: KeyTable, new: KeyTable) -> KeyChanges:
    """Say which entries were added, removed or changed."""
    before, after = old.by_owner, new.by_owner
    changed = [
        after[owner]
        for owner in before.keys() & after.keys()
        if _strip_place(before[owner]) != _strip_place(after[owner])
    ]
    return KeyChanges(
        _name_all(after[owner] for owner in after.keys() - before.keys()),
        _name_all(before[owner] for owner in before.keys() - after.keys()),
        _name_all(changed),
    )


def _strip_place(entry: KeyEntry) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in entry.__struct_fields__ if name != "where")


def _name_all(entries: Iterable[KeyEntry]) -> tuple[str, ...]:
    return tuple(sorted(entry.label for entry in entries))
