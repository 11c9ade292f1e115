"""The data types of the store.

Bodies, inputs and items are JSON, but the store never parses them: they are returned as they were
written. The owner of a row is the client that created it; no other client can see the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import StoreUnavailable
from dragoman.types.limits import FindLimits, find_no_limits

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")  # every other status is final
ROW = 300  # bytes that each row counts for, in addition to its texts

NumberedFrames: TypeAlias = Sequence[tuple[int, bytes]]  # encoded events and their numbers
# turns the body of a running response into that of one whose server died
RewriteBody: TypeAlias = Callable[[bytes], bytes]


class StoreError(Exception):
    """The store cannot be opened, or is used wrongly. The message is for the operator."""


class DatabaseLocked(StoreUnavailable):
    """Another process did not release its lock in time."""


class DiskFull(StoreUnavailable):
    """There is no space left for the database."""


class StoredResponse(Struct, kw_only=True):
    """One response."""

    id: str
    owner: str
    status: Status
    created: int
    body: bytes  # the response resource, whatever its status
    input: bytes = b"[]"  # the input items of this response alone
    previous: str | None = None
    conversation: str | None = None
    background: bool = False


class StoredConversation(Struct, kw_only=True):
    id: str
    owner: str
    created: int
    metadata: bytes = b"{}"


class StoredCompletion(Struct, kw_only=True):
    """A chat completion."""

    id: str
    owner: str
    created: int
    body: bytes
    messages: bytes = b"[]"  # the messages of its request


class StoredItem(Struct):
    """One item of a conversation or of a response."""

    id: str
    body: bytes
    is_output: bool = False  # the response can be looked up by this item's id


class StoredTurn(Struct, frozen=True):
    """The tokens of a turn that a model wrote, under a key of the replay cache."""

    key: str
    model: str
    data: bytes
    source: str | None = None  # the response or chat completion that it is deleted with


class Page(Struct, frozen=True, kw_only=True):
    """Which rows of a list to return, by age."""

    after: str | None = None  # the last id of the page before
    limit: int
    newest_first: bool


class StoreLimits(Struct, frozen=True, kw_only=True):
    """How much is stored, and for how long. Seconds and bytes."""

    ttl: float = 30 * 24 * 3600.0
    size: int = 1 << 30  # of all rows together
    row: int = 32 << 20  # of one row
    find_limits: FindLimits = find_no_limits  # of one owner


class SweepCounts(Struct, frozen=True, kw_only=True):
    """How many rows a sweep changed."""

    failed: int = 0  # responses whose server is dead
    expired: int = 0
    evicted: int = 0  # the oldest rows, deleted because the store was too large
