"""Frames: cut in any way, limited in length, and incomplete."""

from __future__ import annotations

import io

import pytest

from dragoman.processes.framing import FrameDecoder, FramingError, encode_frame, read_frame

BODIES = [b"", b"a", "é".encode() * 40, bytes(300)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_frames_are_decoded_however_they_are_cut(size: int) -> None:
    data = b"".join(map(encode_frame, BODIES))
    decoder, bodies = FrameDecoder(limit=1000), []
    for start in range(0, len(data), size):
        bodies += decoder.feed(data[start : start + size])
    assert bodies == BODIES


def test_a_frame_that_is_too_long_is_rejected_before_its_body_is_read() -> None:
    with pytest.raises(FramingError):
        FrameDecoder(limit=100).feed((101).to_bytes(4, "big"))


def test_frames_are_read_from_a_blocking_stream() -> None:
    stream = io.BytesIO(b"".join(map(encode_frame, BODIES)))
    assert [read_frame(stream) for _ in BODIES] == BODIES
    assert read_frame(stream) is None


@pytest.mark.parametrize("length", [1, 4, 6])
def test_a_stream_that_ends_inside_a_frame_has_no_more_frames(length: int) -> None:
    assert read_frame(io.BytesIO(encode_frame(b"abc")[:length])) is None
