"""Digests of keys, and of owners.

A key that `make_key` makes has 256 random bits, so that nobody can guess it from its digest and a
plain SHA-256 is enough; slow hashes are for passwords that people choose. The owner of stored data
is another digest, which reveals nothing about the one that is compared.
"""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "sk-dragoman-"
HASH_PREFIX = "sha256:"
MIN_LENGTH, MIN_DISTINCT = 20, 10  # characters; keys with fewer can be guessed
HASH = re.compile(rf"{HASH_PREFIX}([0-9a-fA-F]{{64}})")


def hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def normalize_key(key: str) -> bytes:
    """Strip a key. An empty one would let everyone in and is rejected."""
    if not key.strip():
        raise ValueError("An API key must not be empty.")
    return key.strip().encode()


def format_hash(key: str) -> str:
    """Write the digest of a key as an entry has it."""
    return HASH_PREFIX + hash_key(normalize_key(key)).hex()


def parse_hash(text: str) -> bytes:
    """Return the digest that `format_hash` wrote, or raise `ValueError`."""
    match = HASH.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected `{HASH_PREFIX}` and 64 hexadecimal digits")
    return bytes.fromhex(match[1])


def make_key() -> str:
    """Make a random key."""
    return PREFIX + secrets.token_urlsafe(32)


def is_weak(key: str) -> bool:
    """Whether a key is so short or so uniform that it can be guessed."""
    return len(key) < MIN_LENGTH or len(set(key)) < MIN_DISTINCT


def make_key_owner(key: bytes) -> str:
    """Return the owner of the data that a key without a name stores."""
    return hashlib.blake2b(key, key=b"owner", digest_size=16).hexdigest()


def make_name_owner(name: str) -> str:
    """Return the owner of the data that the keys of a name store."""
    return hashlib.blake2b(name.encode(), key=b"owner name", digest_size=16).hexdigest()
