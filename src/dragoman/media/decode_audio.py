"""Decodes a sound and normalises it: one channel of 16-bit samples, as WAV.

Runs in the worker process. The sample rate stays as it is; engines convert it to that of their
model. Decoding goes block by block and stops at the limit, whatever the header declares.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

from dragoman.media.audio_header import AudioHeader, check_length
from dragoman.media.errors import MediaError

BLOCK = 1 << 16  # samples of one channel
_CONTAINERS = {"WAV": ("WAV", "WAVEX"), "FLAC": ("FLAC",), "MP3": ("MP3",)}


def decode_audio(data: bytes, name: str, max_seconds: float) -> tuple[bytes, int, int]:
    """Return the bytes of a normalised WAV, its sample rate and its number of samples."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            if sound.format not in _CONTAINERS[name]:
                raise MediaError("format", f"is not {name}.")
            header = AudioHeader(sound.samplerate, sound.channels, 0)
            check_length(header, max_seconds)
            samples = read_samples(sound, int(max_seconds * header.rate), max_seconds)
    except (soundfile.SoundFileError, OSError, ValueError, TypeError):
        raise MediaError("parse", f"is not a valid {name}.") from None
    if not samples:
        raise MediaError("too_small", "has no samples.")
    return make_wav(samples, header.rate), header.rate, len(samples) // 2


def read_samples(sound: soundfile.SoundFile, limit: int, max_seconds: float) -> bytes:
    """Return the mean of all channels as 16-bit samples."""
    blocks: list[bytes] = []
    total = 0
    while True:
        block = sound.read(BLOCK, dtype="float32", always_2d=True)
        if not len(block):
            return b"".join(blocks)
        total += len(block)
        if total > limit:
            check_length(AudioHeader(sound.samplerate, sound.channels, total), max_seconds)
        mono = np.nan_to_num(block.mean(axis=1), posinf=1.0, neginf=-1.0)
        scaled = np.clip(np.rint(mono * 32768), -32768, 32767)  # exact for 16-bit files
        blocks.append(scaled.astype("<i2").tobytes())


def make_wav(samples: bytes, rate: int) -> bytes:
    layout = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout
    body += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body
