"""Who may ask: API keys, and admin keys apart from them.

Keys are kept and compared as digests, so that neither their length nor their first letters can be
read off the time an answer takes. A key file is looked at again when it changes; one that cannot
be read leaves the keys as they were. What a client keeps here belongs to its key, known by another
digest that tells nothing about the first.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger("dragoman.keys")
RECHECK = 1.0


def hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def normalize_key(key: str) -> bytes:
    """A key without the white space around it; an empty one would let everyone in."""
    if not key.strip():
        raise ValueError("An API key must not be empty.")
    return key.strip().encode()


class ApiKeys:
    """API keys and admin keys. Without API keys everyone may ask."""

    def __init__(
        self, keys: Iterable[str] = (), admin: Iterable[str] = (), file: Path | None = None
    ) -> None:
        self._given = frozenset(hash_key(normalize_key(key)) for key in keys)
        self._admin = frozenset(hash_key(normalize_key(key)) for key in admin)
        self._file = file
        self._from_file: frozenset[bytes] = frozenset()
        self._stamp: tuple[int, int] | None = None
        self._checked = float("-inf")
        if file is not None:
            self._from_file = self._read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._given or self._file)

    @property
    def has_admin_keys(self) -> bool:
        """Whether there is an admin key."""
        return bool(self._admin)

    def accepts(self, keys: Iterable[bytes]) -> bool:
        """Whether one of the shown keys is known; an admin key opens everything."""
        return not self.required or self._accepted(keys) is not None

    def owner_of(self, keys: Iterable[bytes]) -> str:
        """Who keeps things here: a digest of the key that is known, and "" where none is wanted."""
        key = self._accepted(keys) if self.required else None
        return "" if key is None else hashlib.blake2b(key, key=b"owner", digest_size=16).hexdigest()

    def _accepted(self, keys: Iterable[bytes]) -> bytes | None:
        known = self._current() | self._admin
        return next((key for key in keys if self._among(hash_key(key), known)), None)

    def accepts_admin(self, keys: Iterable[bytes]) -> bool:
        return any(self._among(hash_key(key), self._admin) for key in keys)

    @staticmethod
    def _among(shown: bytes, known: frozenset[bytes]) -> bool:
        found = False
        for one in known:
            found |= hmac.compare_digest(shown, one)
        return found

    def _current(self) -> frozenset[bytes]:
        if self._file is not None and time.monotonic() - self._checked > RECHECK:
            self._refresh(self._file)
        return self._given | self._from_file

    def _refresh(self, file: Path) -> None:
        self._checked = time.monotonic()
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._from_file = self._read(file)
        except (OSError, UnicodeDecodeError):
            log.warning("the key file cannot be read; the keys stay as they were")

    def _read(self, file: Path) -> frozenset[bytes]:
        status = file.stat()
        lines = file.read_text().splitlines()
        self._stamp = (status.st_mtime_ns, status.st_size)
        keys = [line.strip() for line in lines]
        return frozenset(hash_key(key.encode()) for key in keys if key and not key.startswith("#"))


def read_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys a request shows, as `Authorization: Bearer` or as `x-api-key`."""
    keys = []
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys
