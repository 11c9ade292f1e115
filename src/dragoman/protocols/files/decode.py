"""Decode the fields of an upload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from dragoman.errors import InvalidValue, UnknownParameter
from dragoman.protocols.shared.json_body import make_missing_field_error

Purpose: TypeAlias = Literal["batch", "user_data", "vision"]
PURPOSES: tuple[str, ...] = get_args(Purpose)
MIN_SECONDS, MAX_SECONDS = 3600, 30 * 24 * 3600  # of `expires_after`
MAX_FILENAME = 255  # characters
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class ExpiresAfter(Struct):
    """When a file expires."""

    seconds: int
    anchor: Literal["created_at"] = "created_at"


class FileUpload(Struct):
    """A form with a file."""

    file: bytes
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class UploadFields(Struct, frozen=True):
    """What a form says about its file."""

    purpose: str
    seconds: int | None  # until it expires
    warnings: list[str]
    seconds_field: str = "expires_after.seconds"  # the client's name of it


def decode_upload_fields(fields: Mapping[str, str], strict: bool = False) -> UploadFields:
    """Decode all fields of a form but its file."""
    unknown = [name for name in fields if name not in FIELDS]
    if strict and unknown:
        raise UnknownParameter(f"Unrecognized field `{unknown[0][:64]}`.", param=unknown[0][:64])
    purpose = fields.get("purpose")
    if purpose is None:
        raise make_missing_field_error("purpose")
    if purpose not in PURPOSES:
        allowed = ", ".join(f"`{name}`" for name in PURPOSES)
        raise InvalidValue(f"`purpose` must be one of {allowed}.", param="purpose")
    return UploadFields(
        purpose,
        decode_expiry(fields.get(FIELDS[1]), fields.get(FIELDS[2]), "expires_after"),
        [f"`{name[:64]}` is unknown and has no effect." for name in unknown],
    )


def decode_expiry(anchor: str | None, seconds: str | int | None, field: str) -> int | None:
    """Return after how many seconds a file expires; None if the client does not say."""
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidValue(f"`{field}.anchor` must be `created_at`.", param=f"{field}.anchor")
    text = str(seconds or "")
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not MIN_SECONDS <= value <= MAX_SECONDS:
        raise InvalidValue(
            f"`{field}.seconds` must be between {MIN_SECONDS} and {MAX_SECONDS}.",
            param=f"{field}.seconds",
        )
    return value


def clean_filename(name: str | None) -> str:
    """Return the last part of a client's path, without control characters. It is only a label."""
    last = re.split(r"[/\\]", name or "")[-1]
    text = _CONTROL.sub("", last).strip()[:MAX_FILENAME]
    return text if text.strip(".") else "file"
