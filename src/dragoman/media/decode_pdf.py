"""Extracts the text of a PDF. Runs in the worker process."""

from __future__ import annotations

import io
import logging

import pypdf

from dragoman.media.errors import MediaError

SEPARATOR = "\n\n"  # between pages


def extract_text(data: bytes, max_characters: int) -> str:
    """Return the text of all pages. Pictures in it are not read."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it describes what the client sent
    try:
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
