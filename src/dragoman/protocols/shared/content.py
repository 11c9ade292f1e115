"""Message content: text and media parts, decoded alike for every wire API.

Content becomes a tuple of parts. Neighbouring texts are joined and empty text is dropped, so the
same content always has the same value, however the client divided it. Media parts keep the name of
their wire type and their path in the request, for errors. Nothing is decoded or fetched here: the
stage `media` of the pipeline does that, in the same way for every wire API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared.json_body import require
from dragoman.types import (
    AudioPart,
    Content,
    ContentPart,
    FilePart,
    ImagePart,
    Json,
    TextPart,
)

TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
IMAGE_TYPES = ("image_url", "input_image", "image", "computer_screenshot")
AUDIO_TYPES = ("input_audio", "audio_url", "audio")
VIDEO_TYPES = ("video_url", "input_video", "video")
FILE_TYPES = ("file", "input_file", "document", *VIDEO_TYPES)
MEDIA_TYPES = frozenset((*IMAGE_TYPES, *AUDIO_TYPES, *FILE_TYPES))


class ContentPartFields(Struct):
    """One part of a message's content; which fields it has depends on its type."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Json = None
    input_audio: Json = None
    audio_url: Json = None
    video_url: Json = None
    file: Json = None
    source: Json = None
    detail: Json = None
    file_id: Json = None
    file_url: Json = None
    file_data: Json = None
    filename: Json = None
    title: Json = None


WireContent: TypeAlias = str | Sequence[ContentPartFields] | None


def decode_content(content: WireContent, path: str) -> Content:
    """Decode content: a string, null or a list of parts. `path` is its path in the request."""
    if not content:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return merge_text(decode_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def decode_part(part: ContentPartFields, path: str) -> ContentPart:
    if part.type in TEXT_TYPES:
        return TextPart(_require_text(part, path))
    if part.type in MEDIA_TYPES:
        return decode_media(part, path)
    raise BadRequest(
        f"`{path}.type` is not a known content type: `{part.type[:64]}`.", param=f"{path}.type"
    )


def _require_text(part: ContentPartFields, path: str) -> str:
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if part.type == "refusal" else part.text
    return require(text, f"{path}.{name}")


def decode_media(part: ContentPartFields, path: str) -> ImagePart | AudioPart | FilePart:
    """Decode a part that is not text. Fields of the wrong type are ignored, not rejected."""
    if part.type in IMAGE_TYPES:
        return _decode_image(part, path)
    if part.type in AUDIO_TYPES:
        return _decode_audio(part, path)
    return _decode_file(part, path)


def _decode_audio(part: ContentPartFields, path: str) -> AudioPart:
    audio, url, source = part.input_audio, part.audio_url, part.source
    return AudioPart(
        wire_type=part.type,
        param=path,
        field=_find_field(part, "input_audio", "audio_url", "source"),
        url=_get_url(url) or _get_text(source, "url"),
        data=_get_text(audio, "data") or _get_text(source, "data"),
        media_type=_get_text(audio, "format") or _get_text(source, "media_type"),
    )


def _decode_image(part: ContentPartFields, path: str) -> ImagePart:
    url, source = part.image_url, part.source
    return ImagePart(
        wire_type=part.type,
        param=path,
        field=_find_field(part, "image_url", "source", "file_id"),
        url=_get_url(url) or _get_text(source, "url"),
        data=_get_text(source, "data"),
        media_type=_get_text(source, "media_type"),
        file_id=_as_text(part.file_id) or _get_text(source, "file_id"),
        detail=_as_text(part.detail) or _get_text(url, "detail"),
    )


def _decode_file(part: ContentPartFields, path: str) -> FilePart:
    file, source = part.file, part.source
    return FilePart(
        wire_type=part.type,
        param=path,
        field=_find_field(part, "file", "file_data", "file_url", "file_id", "source"),
        url=_as_text(part.file_url) or _get_text(source, "url"),
        data=_as_text(part.file_data) or _get_text(file, "file_data") or _get_text(source, "data"),
        media_type="video/*" if part.type in VIDEO_TYPES else _get_text(source, "media_type"),
        file_id=_as_text(part.file_id)
        or _get_text(file, "file_id")
        or _get_text(source, "file_id"),
        name=_as_text(part.filename) or _get_text(file, "filename") or _as_text(part.title),
    )


def _find_field(part: ContentPartFields, *names: str) -> str:
    """Return the first of these fields that a part has; the first of all if it has none."""
    return next((name for name in names if getattr(part, name) is not None), names[0])


def _get_url(value: Json) -> str | None:
    """Return a URL that is a string, or the `url` of an object."""
    return value if isinstance(value, str) else _get_text(value, "url")


def _as_text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _get_text(value: Json, name: str) -> str | None:
    return _as_text(value.get(name)) if isinstance(value, dict) else None


def merge_text(parts: Iterable[ContentPart]) -> Content:
    """Join neighbouring texts to one part and drop empty ones."""
    merged: list[ContentPart] = []
    for part in parts:
        if not isinstance(part, TextPart):
            merged.append(part)
        elif merged and isinstance(last := merged[-1], TextPart):
            merged[-1] = TextPart(last.text + part.text)
        elif part.text:
            merged.append(part)
    return tuple(merged)


def join_content(contents: Iterable[Sequence[ContentPart]], separator: str) -> Content:
    """Concatenate contents with a separator between them."""
    parts: list[ContentPart] = []
    for i, content in enumerate(contents):
        if i:
            parts.append(TextPart(separator))
        parts += content
    return merge_text(parts)
