"""Pictures are decoded and normalised: the same picture always becomes the same bytes."""

from __future__ import annotations

import hashlib
import struct
import zlib
from contextlib import suppress

import pytest
from PIL import Image

from dragoman.errors import BadRequest
from dragoman.media.errors import MediaError
from dragoman.media.formats import detect_format
from dragoman.media.image_header import read_size
from dragoman.media.limits import MediaLimits
from dragoman.types import ImagePart, MediaItem
from tests.support.media_files import (
    encode_image,
    get_items,
    make_corner_image,
    make_gif,
    make_image,
    make_png,
    make_png_chunk,
    make_rotated,
    open_item,
    read_content,
    to_base64,
)

FORMATS = ["PNG", "JPEG", "GIF", "WEBP", "BMP"]
LOSSLESS = ["PNG", "GIF", "BMP"]
RED, WHITE = (255, 0, 0), (255, 255, 255)


def read_pictures(
    *pictures: bytes, detail: str | None = None, limits: MediaLimits | None = None
) -> list[MediaItem]:
    parts = [
        ImagePart(wire_type="image_url", param="p", data=to_base64(data), detail=detail)
        for data in pictures
    ]
    return get_items(read_content(*parts, limits=limits))


def get_pixel(item: MediaItem, x: int = 0, y: int = 0) -> tuple[int, int, int]:
    pixel = open_item(item).getpixel((x, y))
    assert isinstance(pixel, tuple)
    return pixel  # type: ignore[return-value]


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (300, 200)])
def test_sizes_are_read_from_headers(size: tuple[int, int]) -> None:
    variants = [make_image(kind, size) for kind in FORMATS]
    variants.append(encode_image(Image.new("RGB", size), "WEBP", lossless=True))
    variants.append(encode_image(Image.new("RGBA", size), "WEBP", exif=b"Exif\0\0"))
    variants.append(encode_image(Image.new("RGB", size), "JPEG", progressive=True, comment=b"x"))
    for data in variants:
        assert read_size(data, detect_format(data)) == size


@pytest.mark.parametrize("kind", FORMATS)
def test_a_header_that_breaks_off_is_an_error(kind: str) -> None:
    data = make_image(kind, (9, 9))
    for length in range(12, len(data) - 1):
        media_format = detect_format(data[:length])
        if media_format.kind != "image":
            continue
        with suppress(MediaError):
            assert read_size(data[:length], media_format) == (9, 9)


def test_all_formats_become_the_same_bytes() -> None:
    items = read_pictures(*(make_image(kind) for kind in LOSSLESS))
    assert len({item.data for item in items}) == 1
    [item, *_] = items
    assert item.kind == "image"
    assert item.media_type == "image/png"
    assert item.digest == hashlib.sha256(item.data).hexdigest()
    assert (item.width, item.height) == (40, 30)
    assert get_pixel(item) == RED
    for lossy in read_pictures(*(make_image(kind) for kind in ("JPEG", "WEBP"))):
        assert (lossy.width, lossy.height) == (40, 30)
        assert max(abs(a - b) for a, b in zip(get_pixel(lossy), RED, strict=True)) < 8


def test_the_bytes_of_a_normalised_picture_have_no_metadata() -> None:
    text = make_png_chunk(b"tEXt", b"Comment\0secret place")
    image = Image.new("RGB", (8, 8), "red")
    noted = encode_image(image, icc_profile=b"secret profile", dpi=(300, 300))
    plain = encode_image(image)
    with_text = plain[:33] + text + plain[33:]
    first, second, third = read_pictures(plain, noted, with_text)
    assert first.data == second.data == third.data
    assert b"secret" not in first.data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(orientation: int) -> None:
    [item] = read_pictures(make_rotated(orientation))
    assert (item.width, item.height) == (64, 32)
    dark = [(x, y) for x in (4, 60) for y in (4, 28) if sum(get_pixel(item, x, y)) < 200]
    assert dark == [(4, 4)]


def make_palette(transparent: bool) -> bytes:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    return encode_image(image, "PNG", **({"transparency": 0} if transparent else {}))


def make_grey16(value: int) -> bytes:
    header = make_png_chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 0, 0, 0, 0))
    rows = (b"\0" + struct.pack(">H", value) * 8) * 8
    data = make_png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + header + data + make_png_chunk(b"IEND", b"")


COLOURS = {
    "grey": (encode_image(Image.new("L", (8, 8), 128)), (128, 128, 128)),
    "one bit": (encode_image(Image.new("1", (8, 8), 1)), WHITE),
    "transparent": (encode_image(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), WHITE),
    "half transparent": (
        encode_image(Image.new("RGBA", (8, 8), (255, 0, 0, 128))),
        (255, 127, 127),
    ),
    "grey with alpha": (encode_image(Image.new("LA", (8, 8), (0, 0))), WHITE),
    "palette": (make_palette(False), RED),
    "transparent palette": (make_palette(True), WHITE),
    "transparent colour": (
        encode_image(Image.new("RGB", (8, 8), "red"), transparency=(255, 0, 0)),
        WHITE,
    ),
    "16 bits, white": (make_grey16(65535), WHITE),
    "16 bits, grey": (make_grey16(128 * 257), (128, 128, 128)),
    "16 bits, black": (make_grey16(0), (0, 0, 0)),
    "CMYK": (encode_image(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG"), WHITE),
}


@pytest.mark.parametrize("name", COLOURS)
def test_colours_become_rgb_on_white(name: str) -> None:
    data, expected = COLOURS[name]
    [item] = read_pictures(data)
    assert open_item(item).mode == "RGB"
    assert max(abs(a - b) for a, b in zip(get_pixel(item), expected, strict=True)) <= 2


@pytest.mark.parametrize(
    ("size", "detail", "expected"),
    [
        ((4000, 1000), None, (2048, 512)),
        ((1000, 4000), "high", (512, 2048)),
        ((4000, 1000), "low", (512, 128)),
        ((600, 300), "low", (512, 256)),
        ((600, 300), "auto", (600, 300)),
        ((600, 300), "original", (600, 300)),
        ((600, 300), "nonsense", (600, 300)),
        ((1, 20_000), None, (1, 2048)),
        ((1, 65_535), None, (1, 2048)),
        ((1, 1), "low", (1, 1)),
    ],
)
def test_large_pictures_are_shrunk(
    size: tuple[int, int], detail: str | None, expected: tuple[int, int]
) -> None:
    [item] = read_pictures(make_png(*size, rows=size[1]), detail=detail)
    assert (item.width, item.height) == expected == open_item(item).size


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("P", (8, 8), 0) for _ in range(3)]
    for frame, colour in zip(frames, ([255, 0, 0], [0, 255, 0], [0, 0, 255]), strict=True):
        frame.putpalette(colour)
    data = encode_image(frames[0], "GIF", save_all=True, append_images=frames[1:])
    [item] = read_pictures(data)
    assert get_pixel(item) == RED


def test_different_pictures_have_different_digests() -> None:
    items = read_pictures(*(make_image(colour=colour) for colour in ("red", "green", "blue")))
    items += read_pictures(make_image(size=(30, 40)), encode_image(make_corner_image()))
    assert len({item.digest for item in items}) == 5


INVALID = {
    "no picture": (b"hello there", "invalid_image_format"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "invalid_image_format"),
    "TIFF": (b"II*\0\x08\0\0\0" + bytes(50), "invalid_image_format"),
    "PSD": (b"8BPS\0\1" + bytes(50), "invalid_image_format"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(50), "invalid_image_format"),
    "PDF": (b"%PDF-1.4", "invalid_image_format"),
    "WAV": (b"RIFF\0\0\0\0WAVEfmt ", "invalid_image_format"),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "invalid_image_format"),
    "no pixels": (make_png(0, 5), "image_too_small"),
    "too many pixels": (make_png(7000, 7000), "image_too_large"),
    "no rows": (make_png(10, 10), "image_parse_error"),
    "few rows": (make_png(100, 100, rows=100)[:-30], "image_parse_error"),
    "only a signature": (b"\x89PNG\r\n\x1a\n", "image_parse_error"),
    "cut JPEG": (make_image("JPEG")[:60], "image_parse_error"),
    "GIF without a frame": (make_gif(8, 8, 0), "image_parse_error"),
    "cut WebP": (make_image("WEBP")[:40], "image_parse_error"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_pictures_are_errors_with_the_codes_of_openai(name: str) -> None:
    data, code = INVALID[name]
    part = ImagePart(
        wire_type="image_url",
        param="messages[0].content[1]",
        field="image_url",
        data=to_base64(data),
    )
    with pytest.raises(BadRequest) as caught:
        read_content(part)
    assert caught.value.code == code
    assert caught.value.param == "messages[0].content[1].image_url"
    assert "BytesIO" not in caught.value.message


def test_a_wrong_declared_type_is_an_error() -> None:
    part = ImagePart(
        wire_type="image", param="p", data=to_base64(make_image()), media_type="image/jpeg"
    )
    with pytest.raises(BadRequest, match="is declared as `image/jpeg`, but is not JPEG"):
        read_content(part)


@pytest.mark.parametrize("limit", [99, 100])
def test_the_number_of_pixels_is_limited(limit: int) -> None:
    limits = MediaLimits(pixels=limit)
    if limit == 100:
        assert read_pictures(make_image(size=(10, 10)), limits=limits)
        return
    with pytest.raises(BadRequest) as caught:
        read_pictures(make_image(size=(10, 10)), limits=limits)
    assert caught.value.code == "image_too_large"
