"""A small picture and a short sound, which engines read once when a model is loaded."""

from __future__ import annotations

import hashlib
import struct
import zlib

from dragoman.types.media import MediaItem

SIDE = 64  # pixels
SAMPLE_RATE, SAMPLES = 16_000, 1_600


def make_trial_items(modalities: tuple[str, ...]) -> list[MediaItem]:
    """Make one item for each modality but text."""
    makers = {"image": _make_picture, "audio": _make_sound}
    return [makers[name]() for name in modalities if name in makers]


def _make_picture() -> MediaItem:
    row = b"\0" + b"\x80" * 3 * SIDE
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * SIDE)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return MediaItem(
        kind="image", data=data, digest=hashlib.sha256(data).hexdigest(), width=SIDE, height=SIDE
    )


def _make_sound() -> MediaItem:
    size = 2 * SAMPLES
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", size) + bytes(size)
    data = struct.pack("<4sI", b"RIFF", len(body)) + body
    return MediaItem(
        kind="audio",
        data=data,
        digest=hashlib.sha256(data).hexdigest(),
        sample_rate=SAMPLE_RATE,
        samples=SAMPLES,
    )
