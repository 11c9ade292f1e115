"""Keeps what is cached for one owner apart from what is cached for another.

A cache that several owners share tells each of them what the others have sent: a guess that is
right is answered sooner, or with more cached tokens, than one that is wrong. So every cache whose
keys are texts of clients has the cache scope in its key. A scope is a digest of the owner under a
key that only this process has, so that engines and other processes can tell scopes apart without
learning who the owner is. Where no API key is required, there is one scope, "".

Jobs carry the scope to the engine, and one that lists `cache_scopes` reuses cached prompts within a
scope only. Any other engine that caches prompts would let one owner learn about another, so jobs
with a scope tell it not to reuse any (`cache_prompt` false); `testing.check_engine` checks that it
obeys. A prefix that the operator has made public may be reused by every scope (`pipeline.render`).

The scope of the request that is being served is in a context variable, so that caches deep inside
the pipeline need no parameter for it. A task that a request starts inherits it, and the process of
an engine sets it from the message that starts a task.
"""

from __future__ import annotations

import hashlib
import secrets
from contextvars import ContextVar
from functools import lru_cache

_SECRET = secrets.token_bytes(32)
_current_scope: ContextVar[str] = ContextVar("cache_scope", default="")


def make_cache_scope(owner: str, salt: str = "") -> str:
    """Return the cache scope of an owner; each salt of its requests has one of its own."""
    if salt:
        return _compute_scope(f"{owner}\0{salt}")
    return _make_owner_scope(owner) if owner else ""


@lru_cache(maxsize=256)  # each request needs that of its owner several times
def _make_owner_scope(owner: str) -> str:
    return _compute_scope(owner)


def _compute_scope(name: str) -> str:
    return hashlib.blake2b(name.encode(), key=_SECRET, digest_size=12).hexdigest()


def get_cache_scope() -> str:
    """Return the cache scope of the request that is being served."""
    return _current_scope.get()


def set_cache_scope(owner: str) -> None:
    """Set the scope of this task, which serves a request of this owner."""
    _current_scope.set(make_cache_scope(owner))


def restore_cache_scope(scope: str) -> None:
    """Set the scope of this task, which serves a request of another process."""
    _current_scope.set(scope)
