"""Sounds are decoded to one channel of 16-bit samples."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from dragoman.errors import BadRequest
from dragoman.media.limits import MediaLimits
from dragoman.types import AudioPart, MediaItem
from tests.support.media_files import (
    get_items,
    make_image,
    make_sound,
    make_wav_header,
    read_content,
    to_base64,
)


def read_sounds(*sounds: bytes, limits: MediaLimits | None = None) -> list[MediaItem]:
    parts = [
        AudioPart(wire_type="input_audio", param="p", field="input_audio", data=to_base64(data))
        for data in sounds
    ]
    return get_items(read_content(*parts, limits=limits))


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (8000, 2)])
def test_sounds_become_wav_of_one_channel(kind: str, rate: int, channels: int) -> None:
    [item] = read_sounds(make_sound(kind, rate=rate, channels=channels))
    samples, read_rate = soundfile.read(io.BytesIO(item.data))
    assert item.kind == "audio"
    assert item.media_type == "audio/wav"
    assert samples.ndim == 1
    assert read_rate == item.sample_rate == rate
    assert len(samples) == item.samples
    assert item.seconds == pytest.approx(0.5, abs=0.1)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.1)


def test_the_same_sound_has_the_same_bytes() -> None:
    wav, flac, stereo = (make_sound("WAV"), make_sound("FLAC"), make_sound("WAV", channels=2))
    items = read_sounds(wav, flac, stereo)
    assert len({item.digest for item in items}) == 1
    [other] = read_sounds(make_sound("WAV", seconds=0.4))
    assert other.digest != items[0].digest


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_the_length_is_limited(kind: str) -> None:
    limits = MediaLimits(seconds=1.0)
    assert read_sounds(make_sound(kind, seconds=0.8), limits=limits)
    with pytest.raises(BadRequest) as caught:
        read_sounds(make_sound(kind, seconds=3), limits=limits)
    assert caught.value.code == "audio_too_large"
    assert caught.value.param == "p.input_audio"


def make_float_wav(*samples: float) -> bytes:
    data = struct.pack(f"<{len(samples)}f", *samples)
    layout = struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
    body = b"WAVEfmt \x10\0\0\0" + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_samples_that_are_no_numbers_are_silent_or_loud() -> None:
    [item] = read_sounds(make_float_wav(float("nan"), float("inf"), -9e9, 0.5))
    assert struct.unpack("<4h", item.data[44:]) == (0, 32767, -32768, 16384)


INVALID = {
    "no sound": (b"hello there", "invalid_audio_format"),
    "a picture": (make_image(), "invalid_audio_format"),
    "Ogg": (b"OggS" + bytes(50), "invalid_audio_format"),
    "declares too much": (make_wav_header(16000, 1, 4000, bytes(100)), "audio_parse_error"),
    "no samples": (make_wav_header(16000, 1, 0), "audio_too_small"),
    "no data": (b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0" + bytes(16), "audio_parse_error"),
    "rate of zero": (make_wav_header(0, 1, 100, bytes(100)), "audio_parse_error"),
    "huge rate": (make_wav_header(2**31, 1, 100, bytes(100)), "audio_parse_error"),
    "many channels": (make_wav_header(16000, 60_000, 100, bytes(100)), "audio_parse_error"),
    "only a signature": (b"fLaC", "audio_parse_error"),
    "cut FLAC": (make_sound("FLAC")[:60], "audio_parse_error"),
    "MP3 tag alone": (b"ID3\x04" + bytes(60), "audio_parse_error"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_sounds_are_errors(name: str) -> None:
    data, code = INVALID[name]
    with pytest.raises(BadRequest) as caught:
        read_sounds(data)
    assert caught.value.code == code
