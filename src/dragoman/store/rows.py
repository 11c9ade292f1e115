"""What the store keeps, as its callers see it.

Bodies, inputs and items are JSON, but the store never looks into them: they come out as they went
in. An owner is whoever made a row; nobody else ever sees it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")  # every other state is the last one
ROW = 300  # bytes that a row of any table is counted as, besides its texts


class StoreError(Exception):
    """The store cannot be opened, or is used wrongly. The message is for the operator."""


class StoredResponse(Struct, kw_only=True):
    """One response."""

    id: str
    owner: str
    status: Status
    created: int
    body: bytes  # the resource, whatever its state
    input: bytes = b"[]"  # this turn's own input items
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
    messages: bytes = b"[]"  # what it was asked


class StoredItem(Struct):
    """One item of a conversation."""

    id: str
    body: bytes
    answered: bool = False  # the response that it comes with is found by it


class StoredTurn(Struct, frozen=True):
    """What a model said, under a key that a client gives back."""

    key: str
    model: str
    data: bytes
    source: str | None = None  # the response or chat completion that said it, and takes it along


class StoreLimits(Struct, frozen=True, kw_only=True):
    """How much is kept, and for how long. Seconds and bytes."""

    ttl: float = 30 * 24 * 3600.0
    size: int = 1 << 30  # of everything
    row: int = 32 << 20  # of one row


class SweepCounts(Struct, frozen=True, kw_only=True):
    """How many rows a sweep changed."""

    failed: int = 0  # their server is dead
    expired: int = 0
    evicted: int = 0  # the oldest, when there was too much
