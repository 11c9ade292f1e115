"""The size of a picture, read from its header.

Pure Python, and it never looks at the pixels: a picture that would take too much memory is rejected
before any decoder sees it. Only what a decoder also reads counts, so the two cannot disagree: the
worker compares the size again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from dragoman.media.errors import MediaError
from dragoman.media.formats import BMP, GIF, JPEG, PNG, WEBP, MediaFormat

Size = tuple[int, int]
MAX_JPEG_SEGMENTS = 4096
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))  # without a length


def read_size(data: bytes, media_format: MediaFormat) -> Size:
    """Return width and height of a picture."""
    try:
        width, height = _READERS[media_format](data)
    except (struct.error, IndexError):
        raise MediaError("parse", f"is not a complete {media_format.name}.") from None
    if not width or not height:
        raise MediaError("too_small", "has no pixels.")
    return width, height


def check_size(size: Size, max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise MediaError(
            "too_large",
            f"has {width:,} × {height:,} pixels; at most {max_pixels:,} pixels are allowed.",
        )


def _read_png(data: bytes) -> Size:
    if data[12:16] != b"IHDR":
        raise MediaError("parse", "is not a valid PNG.")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _read_gif(data: bytes) -> Size:
    """Return the size of the screen, or of the first frame where that is larger."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[position] == 0x21:  # an extension: a label, and blocks up to an empty one
        position += 2
        while data[position]:
            position += data[position] + 1
        position += 1
    if data[position] != 0x2C:
        raise MediaError("parse", "has no frame.")
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, position + 1)
    if not frame_width or not frame_height:
        return 0, 0
    return max(width, left + frame_width), max(height, top + frame_height)


def _read_bmp(data: bytes) -> Size:
    if int.from_bytes(data[14:18], "little") == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    if width < 0:
        raise MediaError("parse", "is not a valid BMP.")
    return width, abs(height)


def _read_webp(data: bytes) -> Size:
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise MediaError("parse", "is not a valid WebP.")


def _read_jpeg(data: bytes) -> Size:
    position = 2
    for _ in range(MAX_JPEG_SEGMENTS):
        position = data.find(b"\xff", position)
        if position < 0:
            break
        while data[position] == 0xFF:  # fill bytes
            position += 1
        marker = data[position]
        if marker in _BARE_MARKERS or marker == 0:
            position += 1
            continue
        if marker in _SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", data, position + 4)
            return width, height
        if marker in (0xD9, 0xDA):  # the end, or the pixels
            break
        position += 1 + struct.unpack_from(">H", data, position + 1)[0]
    raise MediaError("parse", "is not a valid JPEG.")


_READERS: dict[MediaFormat, Callable[[bytes], Size]] = {
    PNG: _read_png,
    JPEG: _read_jpeg,
    GIF: _read_gif,
    WEBP: _read_webp,
    BMP: _read_bmp,
}
