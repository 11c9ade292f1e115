"""What one owner may use, and the priority of what it sends.

An owner is who sent a request: the holder of an API key.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

# What runs first when slots are scarce: requests that a client waits for, then background
# responses, then batches.
Priority: TypeAlias = Literal["live", "background", "batch"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)  # the first is served first


class KeyLimits(Struct, frozen=True, kw_only=True):
    """The limits of one API key; None is no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    queue_share: float = 1.0  # its turns in a full queue, relative to other keys
    stored_bytes: int | None = None
    media_bytes: int | None = None  # of one request


class RateLimit(Struct, frozen=True):
    """What is left of a limit per minute."""

    limit: int
    remaining: int
    reset: float  # seconds until all of it is available again


class RateLimitStatus(Struct, frozen=True, kw_only=True):
    """What is left for an owner; None where there is no limit."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


NO_LIMITS = KeyLimits()
FindLimits: TypeAlias = Callable[[str], KeyLimits]  # takes the owner of a request


def find_no_limits(_owner: str) -> KeyLimits:
    """Return the limits where keys have none of their own."""
    return NO_LIMITS


# Of everything that the current task does: the lines of a batch have the lowest priority, whatever
# they choose (`service_tier`).
_highest: ContextVar[Priority] = ContextVar("highest_priority", default=PRIORITIES[0])


def limit_priority(highest: Priority) -> None:
    """Limit the priority of everything that this task does from now on."""
    _highest.set(highest)


def get_priority(wanted: Priority = PRIORITIES[0]) -> Priority:
    """Return the wanted priority, or the limit of the current task if that is lower."""
    highest = _highest.get()
    if highest == PRIORITIES[0]:
        return wanted
    return max(wanted, highest, key=PRIORITIES.index)
