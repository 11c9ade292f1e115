"""The kind of a content, by its first bytes alone. What the client declares is only compared."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.media.errors import MediaError

Kind: TypeAlias = Literal["image", "audio", "pdf", "video", "text", "binary"]


class MediaFormat(Struct, frozen=True):
    """A format of media, and the media types that may be declared for it."""

    name: str
    kind: Kind
    media_types: tuple[str, ...] = ()


PNG = MediaFormat("PNG", "image", ("image/png", "image/x-png", "image/apng"))
JPEG = MediaFormat("JPEG", "image", ("image/jpeg", "image/jpg", "image/pjpeg"))
GIF = MediaFormat("GIF", "image", ("image/gif",))
WEBP = MediaFormat("WEBP", "image", ("image/webp",))
BMP = MediaFormat("BMP", "image", ("image/bmp", "image/x-ms-bmp", "image/x-bmp"))
WAV = MediaFormat(
    "WAV", "audio", ("wav", "audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave")
)
MP3 = MediaFormat("MP3", "audio", ("mp3", "audio/mp3", "audio/mpeg", "audio/mpga"))
FLAC = MediaFormat("FLAC", "audio", ("flac", "audio/flac", "audio/x-flac"))
PDF = MediaFormat("PDF", "pdf", ("application/pdf", "application/x-pdf"))
VIDEO = MediaFormat("video", "video")
TEXT = MediaFormat("text", "text")
BINARY = MediaFormat("binary", "binary")
READABLE = (PNG, JPEG, GIF, WEBP, BMP, WAV, MP3, FLAC, PDF)

_SIGNATURES: tuple[tuple[bytes, MediaFormat], ...] = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"fLaC", FLAC),
    (b"ID3", MP3),
    (b"%PDF-", PDF),
    (b"\x1a\x45\xdf\xa3", VIDEO),  # Matroska, WebM
    (b"FLV\x01", VIDEO),
    (b"\x00\x00\x01\xba", VIDEO),  # MPEG
    (b"\x00\x00\x01\xb3", VIDEO),
)
_RIFF_TYPES = {b"WAVE": WAV, b"WEBP": WEBP, b"AVI ": VIDEO}
_IMAGE_BRANDS = (b"heic", b"heix", b"heif", b"mif1", b"msf1", b"avif", b"avis", b"M4A ")
_CONTROL = bytes(set(range(32)) - {9, 10, 12, 13, 27})
_MAX_BMP_HEADER = 124


def detect_format(data: bytes) -> MediaFormat:
    """Find the format of a content."""
    for signature, media_format in _SIGNATURES:
        if data.startswith(signature):
            return media_format
    if data[:4] == b"RIFF" and data[8:12] in _RIFF_TYPES:
        return _RIFF_TYPES[data[8:12]]
    if data[4:8] == b"ftyp":
        return BINARY if data[8:12] in _IMAGE_BRANDS else VIDEO
    if data[:2] == b"BM" and 12 <= int.from_bytes(data[14:18], "little") <= _MAX_BMP_HEADER:
        return BMP
    if is_mp3_frame(data):
        return MP3
    return TEXT if is_text(data) else BINARY


def is_mp3_frame(data: bytes) -> bool:
    """Whether data begins with the header of an MPEG audio frame of layer III."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE6 != 0xE2 or data[1] & 0x18 == 0x08:
        return False
    bit_rate, sample_rate = data[2] >> 4, data[2] >> 2 & 3
    return bit_rate not in (0, 15) and sample_rate != 3


def is_text(data: bytes) -> bool:
    """Whether data is text, in UTF-8 or with a mark that says that it is UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return len(data) % 2 == 0
    if data.translate(None, _CONTROL) != data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def decode_text(data: bytes) -> str:
    """Decode data that `is_text`."""
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise MediaError("parse", "is not valid text.") from None


def check_declared_type(media_type: str | None, actual: MediaFormat) -> None:
    """Reject content that is not what the client declares it to be."""
    declared = (media_type or "").partition(";")[0].strip().lower()
    if not declared or declared in ("application/octet-stream", "binary/octet-stream", "image/*"):
        return
    for media_format in READABLE:
        if declared in media_format.media_types and media_format != actual:
            raise MediaError(
                "format", f"is declared as `{declared[:64]}`, but is not {media_format.name}."
            )
    if actual in READABLE and declared not in actual.media_types:
        raise MediaError("format", f"is {actual.name}, but is declared as `{declared[:64]}`.")
