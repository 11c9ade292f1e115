"""Extracts the text of a PDF. Runs in the worker process."""

from __future__ import annotations

import io
import logging
from typing import Any

import pypdf

from dragoman.media.errors import MediaError

SEPARATOR = "\n\n"  # between pages
MAX_STREAM = 16 << 20  # bytes of one stream; the library's own limits are several times larger
LIMITS: dict[str, Any] = dict.fromkeys(
    (
        "array_based_stream_maximum_output_length",
        "brotli_maximum_output_length",
        "jbig2_maximum_output_length",
        "lzw_maximum_output_length",
        "run_length_maximum_output_length",
        "stream_decoding_work_maximum_length",
        "zlib_maximum_output_length",
    ),
    MAX_STREAM,
)


def extract_text(data: bytes, max_characters: int) -> str:
    """Return the text of all pages. Pictures in it are not read."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it describes what the client sent
    try:
        with pypdf.apply_configuration(**LIMITS):
            pages = read_pages(data, max_characters)
    except (MediaError, MemoryError):
        raise
    except Exception:  # the library raises whatever a broken file leads to
        raise MediaError("parse", "is not a valid PDF.") from None
    text = SEPARATOR.join(page for page in pages if page)
    if not text:
        raise MediaError("parse", "has no text. Send its pages as pictures.")
    return text


def read_pages(data: bytes, max_characters: int) -> list[str]:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise MediaError("parse", "is encrypted.")
    pages, size = [], 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > max_characters:
            raise MediaError(
                "too_large", f"has more than {max_characters:,} characters, which is the limit."
            )
    return pages
