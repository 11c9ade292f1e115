"""The limits of media in requests."""

from __future__ import annotations

from msgspec import Struct

LOW_DETAIL = 512  # pixels of the longer side of a picture with `detail: low`


class MediaLimits(Struct, frozen=True, kw_only=True):
    """What one request may send; an operator sets them."""

    items: int = 16
    size: int = 20 << 20  # bytes of one picture, sound or file, before it is decoded
    pixels: int = 40_000_000  # of one picture
    side: int = 2048  # pixels; larger pictures are shrunk
    seconds: float = 300.0  # of one sound
    text: int = 4 << 20  # characters of one file, or of the text of one PDF
    cpu_seconds: float = 5.0  # to decode one item
