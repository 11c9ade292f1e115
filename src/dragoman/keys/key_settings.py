"""Where the keys of a server are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.config import Settings, make_locator
from dragoman.keys.entries import Locate
from dragoman.types import Json


class KeySettings(Struct, frozen=True, kw_only=True, eq=False):
    """The keys in the settings of a server, and the files that may have others."""

    api: Sequence[str] = ()
    admin: Sequence[str] = ()
    entries: Sequence[object] = ()
    limits: Mapping[str, Json] = {}  # of keys that have none of their own
    locate: Locate = lambda *_: "keys"  # finds file and line of an entry
    file: Path | None = None
    config_file: Path | None = None  # that has the settings above

    @property
    def has_api_keys(self) -> bool:
        return bool(self.api or self.entries or self.file)


def make_key_settings(settings: Settings) -> KeySettings:
    config_file = Path(settings.config) if settings.config else None
    locate: Locate = _locate_option
    if config_file is not None:
        locate = make_locator(config_file, "keys", "entries")
    return KeySettings(
        api=settings.api_key,
        admin=settings.admin_key,
        entries=settings.key_entries,
        limits=settings.key_limits,
        locate=locate,
        file=Path(settings.api_key_file) if settings.api_key_file else None,
        config_file=config_file,
    )


def _locate_option(*keys: str) -> str:
    """Name an entry that a program gave."""
    return "key_entries" + "".join(f"[{key}]" for key in keys)
