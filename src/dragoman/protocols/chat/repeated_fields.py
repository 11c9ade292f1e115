"""Keeps what the fields of earlier requests came to, but for the one that differs each time.

Requests of one program have the same fields, but for their messages. So a body is compared with
those before it, and only its messages are decoded if all other fields are the same, byte by byte.
A body that is large, invalid or has unknown fields is decoded as a whole. Owners share nothing.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import Raw, Struct

from dragoman.protocols.shared.json_body import LARGE_BODY, RawFields, has_unknown_fields
from dragoman.protocols.shared.whole_numbers import get_decoder
from dragoman.types.bounded_cache import BoundedCache
from dragoman.types.cache_scope import get_cache_scope

T = TypeVar("T")
FieldT = TypeVar("FieldT")
FieldsKey: TypeAlias = tuple[str, bool, tuple[str, ...], tuple[bytes, ...]]
MAX_ENTRIES = 256
MAX_BYTES = 2 << 20  # of all fields that are kept
decode_fields = msgspec.json.Decoder(RawFields).decode


class SplitBody(Struct, frozen=True):
    """A body, split into the field that differs each time, and the others."""

    fields: RawFields
    varying: Raw
    key: FieldsKey


class RepeatedFields(Generic[FieldT, T]):
    """What the fields of a body of one kind came to, without the field `name`."""

    def __init__(self, kind: type[Struct], name: str) -> None:
        self._kind = kind
        self._name = name
        self._known: BoundedCache[FieldsKey, T] = BoundedCache(
            max_entries=MAX_ENTRIES,
            max_size=MAX_BYTES,
            measure=lambda key, value: sum(map(len, key[3])),
        )
        self._decoder = get_decoder(get_type_hints(kind, include_extras=True)[name])

    def split(self, body: bytes, strict: bool) -> SplitBody | None:
        """Split a body; None if it must be decoded as a whole."""
        if len(body) > LARGE_BODY:
            return None
        try:
            if not body.isascii():
                body.decode()
            fields = decode_fields(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        varying = fields.pop(self._name, None)
        if varying is None:
            return None
        key = (get_cache_scope(), strict, tuple(fields), tuple(map(bytes, fields.values())))
        return SplitBody(fields, varying, key)

    def find(self, split: SplitBody) -> tuple[FieldT, T] | None:
        """Return the decoded field and what the others came to; None to decode the whole body."""
        known = self._known.get(split.key)
        if known is None:
            return None
        try:
            return self._decoder.decode(split.varying), known
        except (msgspec.MsgspecError, RecursionError):
            return None

    def add(self, split: SplitBody, value: T) -> None:
        """Keep what the other fields came to."""
        if not has_unknown_fields(split.fields, self._kind):
            self._known.put(split.key, value)
