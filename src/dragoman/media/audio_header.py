"""The length of a sound, read from its header, before anything is decoded.

WAV and FLAC declare it. MP3 does not, and its decoder stops at the limit (`decode_audio`).
"""

from __future__ import annotations

import struct

from msgspec import Struct

from dragoman.media.errors import MediaError
from dragoman.media.formats import FLAC, WAV, MediaFormat

MIN_RATE, MAX_RATE = 4000, 192_000  # samples per second
MAX_CHANNELS = 8
MAX_CHUNKS = 1000  # of a WAV file
SAMPLE_FORMATS = {1: "PCM", 3: "float", 6: "A-law", 7: "µ-law", 0xFFFE: "extensible"}


class AudioHeader(Struct, frozen=True):
    """What the header of a sound declares."""

    rate: int
    channels: int
    samples: int  # of one channel


def check_audio_header(data: bytes, media_format: MediaFormat, max_seconds: float) -> None:
    """Reject a sound whose header is invalid, or declares more than the limit."""
    try:
        if media_format == WAV:
            check_length(read_wav_header(data), max_seconds)
        elif media_format == FLAC:
            check_length(_read_flac_header(data), max_seconds)
    except (struct.error, IndexError):
        raise MediaError("parse", f"is not a complete {media_format.name}.") from None


def check_length(header: AudioHeader, max_seconds: float) -> None:
    if not MIN_RATE <= header.rate <= MAX_RATE or not 0 < header.channels <= MAX_CHANNELS:
        raise MediaError(
            "parse",
            f"must have {MIN_RATE:,} to {MAX_RATE:,} samples per second and at most "
            f"{MAX_CHANNELS} channels.",
        )
    if header.samples > max_seconds * header.rate:
        raise MediaError("too_large", f"is longer than the limit of {max_seconds:,.0f} seconds.")


def read_wav_header(data: bytes) -> AudioHeader:
    """Read the chunks of a WAV. Its declared length must be there: some decoders believe it."""
    position, layout = 12, b""
    for _ in range(MAX_CHUNKS):
        name = data[position : position + 4]
        (size,) = struct.unpack_from("<I", data, position + 4)
        position += 8
        if name == b"fmt ":
            layout = data[position : position + 16]
        elif name == b"data":
            return _read_wav_data(layout, size, len(data) - position)
        position += size + size % 2
    raise MediaError("parse", "is not a valid WAV.")


def _read_wav_data(layout: bytes, declared: int, available: int) -> AudioHeader:
    encoding, channels, rate, _, frame_bytes, _ = struct.unpack("<HHIIHH", layout)
    if encoding not in SAMPLE_FORMATS or not frame_bytes:
        raise MediaError("parse", "is a WAV of an encoding that is not supported.")
    if declared > available and declared < 0xFFFFFFFF - 256:  # streams declare the maximum
        raise MediaError("parse", "declares more samples than it has.")
    return AudioHeader(rate, channels, min(declared, available) // frame_bytes)


def _read_flac_header(data: bytes) -> AudioHeader:
    if data[4] & 0x7F != 0 or data[5:8] != b"\x00\x00\x22":
        raise MediaError("parse", "is not a valid FLAC.")
    packed = int.from_bytes(data[18:26], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    return AudioHeader(rate, channels, packed & 0xFFFFFFFFF)
