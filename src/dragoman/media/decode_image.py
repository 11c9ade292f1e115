"""Decodes a picture and normalises it: upright, RGB on white, not larger than a limit, as PNG.

Runs in the worker process. The result depends on the pixels alone: metadata, profiles and further
frames are dropped, and the encoder always has the same settings. So the same picture has the same
bytes, and a cache of the engine finds it again.
"""

from __future__ import annotations

import io
import struct
import warnings

from PIL import Image

from dragoman.media.errors import MediaError
from dragoman.media.image_header import check_size

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
PNG_LEVEL = 1  # fast: the bytes only go to the engine beside us
ORIENTATION = 0x0112  # the EXIF tag
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LINEAR_MODES = ("L", "LA", "RGB", "RGBA", "CMYK")
_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")
_DECODE_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError),
    *(AttributeError, OverflowError, ZeroDivisionError, struct.error, Image.DecompressionBombError),
)


def decode_image(data: bytes, name: str, max_pixels: int, max_side: int) -> tuple[bytes, int, int]:
    """Return the bytes of a normalized PNG, its width and its height."""
    if name not in FORMATS:
        raise MediaError("format", "is not of a known format.")
    Image.MAX_IMAGE_PIXELS = None  # the size is checked before anything is decoded
    warnings.simplefilter("ignore")
    try:
        with Image.open(io.BytesIO(data), formats=(name,)) as image:
            check_size(image.size, max_pixels)
            if name == "JPEG":
                image.draft(None, (max_side, max_side))  # decodes large pictures at half size
            image.load()
            normalized = normalize_image(image, max_side)
    except _DECODE_ERRORS:  # messages of the library contain addresses: they are dropped
        raise MediaError("parse", f"is not a valid {name}.") from None
    buffer = io.BytesIO()
    normalized.save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue(), normalized.width, normalized.height


def normalize_image(image: Image.Image, max_side: int) -> Image.Image:
    orientation = read_orientation(image)
    if image.mode in _LINEAR_MODES and "transparency" not in image.info:
        image = shrink(image, max_side)  # first, because converted pixels take more memory
    image = shrink(convert_colours(image), max_side)
    if image.mode == "RGBA":
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    if orientation in _TRANSPOSITIONS:
        image = image.transpose(_TRANSPOSITIONS[orientation])
    image.info = {}
    return image


def read_orientation(image: Image.Image) -> int:
    """Return how the picture was taken; 1 if it says nothing valid about that."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except _DECODE_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def convert_colours(image: Image.Image) -> Image.Image:
    """Convert to RGB, or to RGBA if a pixel may be transparent."""
    if image.mode.startswith(("I", "F")):  # 16 bits of grey
        image = image.convert("I").point(lambda value: value * (255 / 65535) + 0.5).convert("L")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        return image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def shrink(image: Image.Image, max_side: int) -> Image.Image:
    longest = max(image.size)
    if longest <= max_side:
        return image
    width, height = (max(1, round(side * max_side / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
