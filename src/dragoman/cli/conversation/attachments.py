"""Images that a message names by path: `What is in ./photo.jpg?`"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path

from dragoman.cli.console.errors import CommandFailed
from dragoman.types import Json

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
}
_SUFFIXES = "|".join(suffix.removeprefix(".") for suffix in MEDIA_TYPES)
# A path in quotes may contain spaces, else spaces in it are escaped, as terminals paste it. A word
# is matched as a whole, and then searched once: other patterns are slow for long words.
WORD = re.compile(
    rf"""(?P<quote>["'])(?P<quoted>[^"'\n]+\.(?:{_SUFFIXES}))(?P=quote)"""
    r"""|(?P<word>(?:\\.|[^\s"'\\])+)""",
    re.IGNORECASE,
)
IMAGE_PATH = re.compile(rf"(?P<path>.+\.(?:{_SUFFIXES}))(?!\w|\.\w)", re.IGNORECASE)
MAX_BYTES = 20 << 20


def find_images(text: str) -> list[Path]:
    """Return the files that a message names, if they exist and are images."""
    paths = []
    for match in WORD.finditer(text):
        name = match["quoted"]
        if name is None:
            bare = IMAGE_PATH.match(match["word"])
            if bare is None:
                continue
            name = re.sub(r"\\(.)", r"\1", bare["path"])
        path = os.path.expanduser(name)
        if os.path.isfile(path):  # unlike the method of Path, it takes a name of any length
            paths.append(Path(path))
    return paths


def make_content(text: str, model: str, modalities: Sequence[str]) -> Json:
    """Return the content of a message: its text, or parts if it names images."""
    images = find_images(text)
    if not images:
        return text
    if "image" not in modalities:
        raise CommandFailed(f"{model} does not read images, and the message names {images[0]}.")
    return [{"type": "text", "text": text}, *map(_make_part, images)]


def _make_part(path: Path) -> Json:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandFailed(f"The image {path} is too large.")
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise CommandFailed(f"Cannot read {path}: {error.strerror}.") from None
    url = f"data:{MEDIA_TYPES[path.suffix.lower()]};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}
