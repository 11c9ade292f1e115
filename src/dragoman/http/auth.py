"""API keys and admin keys.

Keys are stored and compared as digests, so that the time of a comparison reveals neither their
length nor their first characters. A key file is read again when it changes; if that fails, the keys
stay as they were. Data that a client stores belongs to its key. The owner is identified by
a different digest of the key, which reveals nothing about the one that is compared.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger("dragoman.keys")
RECHECK_SECONDS = 1.0


def hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def normalize_key(key: str) -> bytes:
    """Strip a key. An empty one would let everyone in and is rejected."""
    if not key.strip():
        raise ValueError("An API key must not be empty.")
    return key.strip().encode()


class ApiKeys:
    """API keys and admin keys. Without API keys every request is accepted."""

    def __init__(
        self, keys: Iterable[str] = (), admin: Iterable[str] = (), file: Path | None = None
    ) -> None:
        self._keys = frozenset(hash_key(normalize_key(key)) for key in keys)
        self._admin = frozenset(hash_key(normalize_key(key)) for key in admin)
        self._file = file
        self._file_keys: frozenset[bytes] = frozenset()
        self._file_stamp: tuple[int, int] | None = None
        self._checked_at = float("-inf")
        if file is not None:
            self._file_keys = self._read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._keys or self._file)

    @property
    def has_admin_keys(self) -> bool:
        return bool(self._admin)

    def accepts(self, keys: Iterable[bytes]) -> bool:
        """Whether one of these keys is valid; an admin key is valid everywhere."""
        return not self.required or self._find_valid(keys) is not None

    def get_owner(self, keys: Iterable[bytes]) -> str:
        """The owner of stored data: a digest of the valid key, or "" where no key is required."""
        key = self._find_valid(keys) if self.required else None
        return "" if key is None else hashlib.blake2b(key, key=b"owner", digest_size=16).hexdigest()

    def accepts_admin(self, keys: Iterable[bytes]) -> bool:
        return any(_contains(self._admin, hash_key(key)) for key in keys)

    def _find_valid(self, keys: Iterable[bytes]) -> bytes | None:
        valid = self._current_keys() | self._admin
        return next((key for key in keys if _contains(valid, hash_key(key))), None)

    def _current_keys(self) -> frozenset[bytes]:
        if self._file is not None and time.monotonic() - self._checked_at > RECHECK_SECONDS:
            self._refresh(self._file)
        return self._keys | self._file_keys

    def _refresh(self, file: Path) -> None:
        self._checked_at = time.monotonic()
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._file_stamp:
                self._file_keys = self._read(file)
        except (OSError, UnicodeDecodeError):
            log.warning("cannot read the key file; keeping the previous keys")

    def _read(self, file: Path) -> frozenset[bytes]:
        status = file.stat()
        lines = file.read_text().splitlines()
        self._file_stamp = (status.st_mtime_ns, status.st_size)
        keys = [line.strip() for line in lines]
        return frozenset(hash_key(key.encode()) for key in keys if key and not key.startswith("#"))


def _contains(digests: frozenset[bytes], digest: bytes) -> bool:
    """Compare with every digest, so that the time does not depend on which one is equal."""
    result = False
    for other in digests:
        result |= hmac.compare_digest(digest, other)
    return result


def read_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys that a request carries, as `Authorization: Bearer` or as `x-api-key`."""
    keys = []
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys
