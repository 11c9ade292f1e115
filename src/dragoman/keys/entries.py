"""Keys with a name, scopes and limits, as an operator writes them.

    - name: alice
      hash: sha256:…            # or `key:` with the key itself; several are a list
      routes: [chat, embeddings, models]
      models: [small-*]
      expires: 2027-01-31
      limits: {requests_per_minute: 60, tokens_per_minute: 100k, concurrent_requests: 4}

The data that a client stores belongs to the name of its entry, so that a new key of the same name
finds it. `owner` keeps the data of a key that had no name before. A mistake is a `KeyFileError`
that names file and line, and never shows a key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from datetime import time as day_time
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from dragoman.keys.digests import (
    hash_key,
    is_weak,
    make_key_owner,
    make_name_owner,
    normalize_key,
    parse_hash,
)
from dragoman.keys.scopes import ADMIN_GROUP, EVERYTHING, KeyScope, split_pattern
from dragoman.options import InvalidOption, Setting, list_fields, parse_options
from dragoman.types import Json
from dragoman.types.limits import NO_LIMITS, KeyLimits

Locate: TypeAlias = Callable[..., str]  # takes keys and indices, returns `FILE:LINE`
AnyOptions = TypeVar("AnyOptions", bound=Struct)
DAY = 86_400.0  # seconds
MAX_NAME = 64
_NAME = re.compile(rf"[\w.@:+-]{{1,{MAX_NAME}}}", re.ASCII)
_OWNER = re.compile(r"[0-9a-f]{32}")
_FIELD_LIKE = re.compile(r"[A-Za-z_ -]{1,24}")  # what may be shown: a key does not look like this


class KeyFileError(ValueError):
    """Keys cannot be read. The message names file and line, and shows no key."""


class LimitOptions(KeyLimits, frozen=True, kw_only=True):
    """The limits of an entry, and how each is written."""

    requests_per_minute: Annotated[
        int | None, Setting(help="requests that may start in a minute", minimum=1)
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Setting(help="tokens of prompts and answers in a minute", unit="tokens", minimum=1),
    ] = None
    concurrent_requests: Annotated[
        int | None,
        Setting(help="requests to models at the same time, in the background too", minimum=1),
    ] = None
    queue_share: Annotated[
        float, Setting(help="turns in a full queue, relative to other keys", above=0, maximum=1000)
    ] = 1.0
    stored_bytes: Annotated[
        int | None,
        Setting(help="stored responses and conversations", unit="bytes", minimum=0),
    ] = None
    media_bytes: Annotated[
        int | None, Setting(help="images, audio and files of one request", unit="bytes", minimum=0)
    ] = None


class EntryOptions(Struct, frozen=True, kw_only=True):
    """The fields of an entry, except for its limits."""

    name: Annotated[str, Setting(help="name of the key's holder in logs and metrics")] = ""
    key: Annotated[tuple[str, ...], Setting(help="the key, or a list of keys", is_secret=True)] = ()
    hash: Annotated[tuple[str, ...], Setting(help="the digest of the key, or a list of them")] = ()
    routes: Annotated[tuple[str, ...], Setting(help="routes that the key may use")] = (EVERYTHING,)
    models: Annotated[tuple[str, ...], Setting(help="models that the key may use")] = (EVERYTHING,)
    admin: Annotated[bool, Setting(help="allow the admin routes")] = False
    expires: Annotated[str, Setting(help="last day on which the key is valid, or a time")] = ""
    owner: Annotated[str, Setting(help="owner of data that a key without a name has stored")] = ""


class KeyEntry(Struct, frozen=True, kw_only=True):
    """One holder of keys: what they may use, and how much."""

    owner: str  # of the data that its clients store
    digests: frozenset[bytes]
    name: str = ""  # "" for a plain key
    is_admin: bool = False
    scope: KeyScope = KeyScope()
    expires: float | None = None  # seconds since the epoch
    limits: KeyLimits = NO_LIMITS
    where: str = ""  # file and line
    is_weak: bool = False  # one of its keys can be guessed
    is_readable: bool = False  # the file has a key itself, not its digest

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    @property
    def label(self) -> str:
        """The name in logs; of a plain key, the first characters of its owner."""
        return self.name or self.owner[:8]


def make_plain_entry(
    key: str, *, is_admin: bool = False, where: str = "", limits: KeyLimits = NO_LIMITS
) -> KeyEntry:
    """Make the entry of a key without a name, which may use everything but admin routes."""
    data = normalize_key(key)
    return KeyEntry(
        owner=make_key_owner(data),
        digests=frozenset((hash_key(data),)),
        is_admin=is_admin,
        limits=limits,
        where=where,
        is_weak=is_weak(key.strip()),
    )


def parse_default_limits(limits: Mapping[str, Json]) -> KeyLimits:
    """Read the defaults of limits that a key does not set, or raise `KeyFileError`."""
    values: dict[object, object] = dict(limits.items())
    return _parse_fields(LimitOptions, values, lambda *keys: "--key-limits")


def parse_entries(
    entries: Sequence[object], locate: Locate, default_limits: KeyLimits = NO_LIMITS
) -> list[KeyEntry]:
    """Read the entries of a list, or raise `KeyFileError`."""
    parsed = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise KeyFileError(
                f"{locate(str(index))}: an entry is a mapping with `name` and `hash`"
            )
        own = _parse_entry(entry, lambda *keys, at=str(index): locate(at, *keys))
        parsed.append(own if own.is_admin else _add_limits(own, entry, default_limits))
    return parsed


def _add_limits(parsed: KeyEntry, entry: Mapping[object, object], defaults: KeyLimits) -> KeyEntry:
    """Return an entry with the default limits where it does not mention its own."""
    own = entry.get("limits")
    names = own if isinstance(own, Mapping) else ()
    others = {name: value for name, value in asdict(defaults).items() if name not in names}
    return replace(parsed, limits=replace(parsed.limits, **others))


def _parse_entry(entry: Mapping[object, object], locate: Locate) -> KeyEntry:
    limits = entry.get("limits")
    if limits is not None and not isinstance(limits, Mapping):
        raise KeyFileError(f"{locate('limits')}: `limits` must be a mapping of limits")
    fields = {name: value for name, value in entry.items() if name != "limits"}
    if isinstance(fields.get("expires"), date):  # YAML reads dates
        fields["expires"] = str(fields["expires"])
    options = _parse_fields(EntryOptions, fields, locate, others=("limits",))
    _check_name(options.name, locate)
    return KeyEntry(
        name=options.name,
        owner=_parse_owner(options, locate),
        digests=_collect_digests(options, locate),
        is_admin=options.admin,
        scope=_make_scope(options, locate),
        expires=_parse_expiry(options.expires, locate),
        limits=_parse_fields(LimitOptions, limits or {}, lambda *keys: locate("limits", *keys)),
        where=locate(),
        is_weak=any(map(is_weak, options.key)),
        is_readable=bool(options.key),
    )


def _parse_fields(
    struct: type[AnyOptions],
    values: Mapping[object, object],
    locate: Locate,
    others: Iterable[str] = (),
) -> AnyOptions:
    """Read the fields of a mapping; an error names the line of the field."""
    with suppress(InvalidOption):
        return parse_options(struct, values)
    for name, value in values.items():
        if name not in list_fields(struct) and not _FIELD_LIKE.fullmatch(str(name)):
            raise KeyFileError(f"{locate()}: a field of this entry does not exist")
        try:
            parse_options(struct, {name: value}, others)
        except InvalidOption as error:
            raise KeyFileError(f"{locate(str(name))}: {error}") from None
    return parse_options(struct, values)


def _check_name(name: str, locate: Locate) -> None:
    if not name:
        raise KeyFileError(f"{locate()}: the entry needs a `name`")
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{locate('name')}: `name` must be at most {MAX_NAME} letters, digits and . @ : + - _"
        )


def _parse_owner(options: EntryOptions, locate: Locate) -> str:
    if options.owner and not _OWNER.fullmatch(options.owner):
        raise KeyFileError(
            f"{locate('owner')}: `owner` must be what `dragoman keys hash` printed for the key"
        )
    return options.owner or make_name_owner(options.name)


def _collect_digests(options: EntryOptions, locate: Locate) -> frozenset[bytes]:
    """Return the digests of all keys of an entry."""
    digests = set()
    for field, texts, read in (
        ("key", options.key, lambda text: hash_key(normalize_key(text))),
        ("hash", options.hash, parse_hash),
    ):
        for text in texts:
            try:
                digests.add(read(text))
            except ValueError as error:
                raise KeyFileError(f"{locate(field)}: `{field}`: {error}") from None
    if not digests:
        raise KeyFileError(f"{locate()}: `{options.name}` needs a `hash` or a `key`")
    return frozenset(digests)


def _make_scope(options: EntryOptions, locate: Locate) -> KeyScope:
    targets = [split_pattern(pattern)[1] for pattern in options.routes]
    if not options.admin and any(
        target == ADMIN_GROUP or target.startswith(f"/{ADMIN_GROUP}") for target in targets
    ):
        raise KeyFileError(f"{locate('routes')}: admin routes also need `admin: true`")
    return KeyScope(routes=options.routes, models=options.models)


def _parse_expiry(text: str, locate: Locate) -> float | None:
    """Return the time from which a key is invalid; a date is valid to its end, in UTC."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise KeyFileError(
            f"{locate('expires')}: `expires`: expected a date such as 2027-01-31, "
            "or a time such as 2027-01-31T12:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    is_day = len(text.strip()) <= len("2027-01-31") and moment.timetz() == day_time(tzinfo=UTC)
    return moment.timestamp() + (DAY if is_day else 0.0)  # no date is after 9999-12-31
