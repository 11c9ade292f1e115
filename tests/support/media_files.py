"""Pictures, sounds and documents for tests, and files that would take a decoder a long time."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from dragoman.media.limits import MediaLimits
from dragoman.media.service import MediaReading, MediaService
from dragoman.types import Chat, Content, ContentPart, MediaItem, MediaPart, Message, Role

ORIENTATION = 0x0112


def encode_image(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def make_image(
    kind: str = "PNG", size: tuple[int, int] = (40, 30), colour: str = "red", mode: str = "RGB"
) -> bytes:
    return encode_image(Image.new(mode, size, colour), kind)


def make_corner_image() -> Image.Image:
    """A white picture whose left upper corner is black."""
    image = Image.new("RGB", (64, 32), "white")
    image.paste("black", (0, 0, 16, 16))
    return image


def make_rotated(orientation: int) -> bytes:
    """A JPEG that is upright once its EXIF orientation is applied."""
    turns = {
        1: [],
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    image = make_corner_image()
    for turn in turns[orientation]:
        image = image.transpose(turn)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode_image(image, "JPEG", exif=exif, quality=100, subsampling=0)


def make_sound(
    kind: str = "WAV", seconds: float = 0.5, rate: int = 16000, channels: int = 1
) -> bytes:
    wave = np.sin(np.arange(int(seconds * rate)) * 0.1) * 0.5
    if kind != "MP3":  # whose encoder reads beyond the end of integers
        wave = np.rint(wave * 32768).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([wave] * channels, axis=1), rate, format=kind)
    return buffer.getvalue()


def make_pdf(text: str = "Hello from a PDF.") -> bytes:
    """A PDF of one page."""
    stream = f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R"
        b"/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    body, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    body += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    body += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, start)
    return bytes(body)


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def to_data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{to_base64(data)}"


def read_content(
    *parts: ContentPart,
    limits: MediaLimits | None = None,
    modalities: Sequence[str] = ("text", "image", "audio"),
    role: Role = "user",
) -> Content:
    """Read the media of one message."""
    chat = Chat(messages=(Message(role=role, content=parts),))
    return READER.read(chat, MediaReading(modalities=modalities), limits).messages[0].content


class MediaReader:
    """Services on an event loop of their own, so that each test need not start a worker."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._services: dict[MediaLimits, MediaService] = {}

    def read(self, chat: Chat, reading: MediaReading, limits: MediaLimits | None) -> Chat:
        if self._runner is None:
            self._runner = asyncio.Runner()
        key = limits or MediaLimits()
        service = self._services.setdefault(key, MediaService(key))
        return self._runner.run(service.read_chat(chat, reading))

    def close(self) -> None:
        if self._runner is not None:
            for service in self._services.values():
                self._runner.run(service.aclose())
            self._runner.close()
        self._runner, self._services = None, {}


READER = MediaReader()


def get_items(content: Content) -> list[MediaItem]:
    return [part.item for part in content if isinstance(part, MediaPart) and part.item is not None]


def open_item(item: MediaItem) -> Image.Image:
    image = Image.open(io.BytesIO(item.data))
    image.load()
    return image


# Bombs


def make_png_chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def make_png(width: int, height: int, rows: int | None = None, *, is_grey: bool = True) -> bytes:
    """A black PNG that declares a size, with as many rows of data as wanted."""
    kind = 0 if is_grey else 2
    header = make_png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    data = b""
    if rows:
        squeeze = zlib.compressobj(9)
        row = bytes(1 + width * (1 if is_grey else 3))
        data = b"".join(squeeze.compress(row) for _ in range(rows)) + squeeze.flush()
    end = make_png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + make_png_chunk(b"IDAT", data) + end


def make_gif(width: int, height: int, frames: int) -> bytes:
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + frame * frames + b";"


def make_wav_header(
    rate: int, channels: int, declared: int, data: bytes = b"", width: int = 2
) -> bytes:
    frame = channels * width % 2**16
    layout = struct.pack("<HHIIHH", 1, channels, rate, rate * frame % 2**32, frame, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", declared)
    return b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + body + data
