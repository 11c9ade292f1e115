"""Base64 and data URLs, read strictly.

A decoder that skips what it does not know lets two readers see different content. So only the
standard alphabet with its padding is accepted, without spaces.
"""

from __future__ import annotations

import binascii
import re

from msgspec import Struct

from dragoman.media.errors import MediaError
from dragoman.types.loop_share import LoopShare

SLICE = 1 << 18  # characters decoded at a time, a multiple of four
MAX_HEADER = 256  # characters before the comma of a data URL
_HEADER = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[\w.+\"-]*)*)(;base64)?", re.ASCII)


class DataUrl(Struct, frozen=True):
    """The parts of a data URL whose content is base64."""

    media_type: str | None
    base64: str


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def parse_data_url(url: str) -> DataUrl:
    """Split a data URL; only base64 content is accepted."""
    header, comma, content = url[:MAX_HEADER].partition(",")
    match = _HEADER.fullmatch(header[:5].lower() + header[5:].replace(";BASE64", ";base64"))
    if not comma or match is None:
        raise MediaError("url", "is not a valid data URL.")
    if match[3] is None:
        raise MediaError("base64", "must be encoded as base64: `data:TYPE;base64,…`.")
    content = url[len(header) + 1 :]
    return DataUrl(match[1].lower() if match[1] else None, content)


def check_base64_length(text: str, limit: int) -> None:
    """Reject content that is too large, before it is decoded."""
    if not text:
        raise MediaError("empty", "is empty.")
    if len(text) // 4 * 3 - text[-2:].count("=") > limit:
        raise MediaError("file_too_large", f"is larger than the limit of {limit:,} bytes.")


async def decode_base64(text: str) -> bytes:
    """Decode strict base64, letting others use the event loop in between."""
    decoded, share = bytearray(), LoopShare()
    if len(text) % 4:
        raise _make_base64_error()
    for start in range(0, len(text), SLICE):
        await share.yield_if_due()
        piece = text[start : start + SLICE]
        decoded += decode_slice(piece, is_last=start + SLICE >= len(text))
    return bytes(decoded)


def decode_slice(text: str, *, is_last: bool) -> bytes:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also of a text that is not ASCII
        raise _make_base64_error() from None
    if not is_last and len(data) * 4 != len(text) * 3:  # padding in the middle
        raise _make_base64_error()
    return data


def _make_base64_error() -> MediaError:
    return MediaError("base64", "is not valid base64.")
