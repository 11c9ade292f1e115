"""Reads the media of a chat: each image and audio part gets its `MediaItem`, files become text.

The checks come in the order of the package's description, cheapest first, and each problem is a 400
with the code of OpenAI's API and the path of the part. A kind of media that this server cannot read
is rejected by name. Tool results are an exception: an agent sends its whole history every time and
could never continue. There, a part that cannot be read, or whose URL or file cannot be fetched,
stays as it is, and the prompt has a sentence in its place.

Decoded items are cached within one owner, because agents send the same screenshots again and again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection
from importlib.util import find_spec
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, InvalidMedia, TooLarge
from dragoman.media.audio_header import check_audio_header
from dragoman.media.data_url import check_base64_length, decode_base64, is_data_url, parse_data_url
from dragoman.media.decoder import MediaDecoder
from dragoman.media.errors import (
    MediaError,
    UnreadableMedia,
    make_media_error,
    make_unsupported_error,
)
from dragoman.media.fetch import MediaFetcher
from dragoman.media.formats import (
    MediaFormat,
    check_declared_type,
    decode_text,
    detect_format,
)
from dragoman.media.image_header import check_size, read_size
from dragoman.media.limits import LOW_DETAIL, MediaLimits
from dragoman.media.worker import DecodeResult, DecodeTask
from dragoman.types import (
    AudioPart,
    Chat,
    Content,
    ContentPart,
    FilePart,
    ImagePart,
    MediaItem,
    MediaPart,
    Message,
    TextPart,
)
from dragoman.types.bounded_cache import BoundedCache

CACHE_BYTES = 32 << 20
SMALL = 1 << 18  # bytes that are hashed on the event loop, not in a thread
SEPARATOR = "\n\n"  # between a file and the text around it
EXPECTED = {"image": "a PNG, JPEG, GIF, WebP or BMP picture", "audio": "a WAV, MP3 or FLAC sound"}
LIBRARIES = {"image": ("PIL", "media"), "audio": ("soundfile", "media"), "pdf": ("pypdf", "pdf")}
NO_VIDEO = "Video is not supported. Send frames of it as pictures."
NAMES = {"image": "Pictures", "audio": "Sounds", "pdf": "PDF files"}

FindFile: TypeAlias = Callable[[str, str], Awaitable[tuple[bytes, str] | None]]
_CacheKey: TypeAlias = tuple[str, bytes, str]


async def find_no_file(_owner: str, _file_id: str) -> tuple[bytes, str] | None:
    """Find the content and name of an uploaded file, where there are none."""
    return None


class MediaReading(Struct, kw_only=True):
    """For whom the media of one chat are read, and how much of them has been."""

    modalities: Collection[str]  # what the engine reads
    owner: str = ""
    max_bytes: int | None = None  # of all media, by the API key
    bytes_read: int = 0


class MediaService:
    """Reads media within limits, until `aclose`."""

    def __init__(
        self,
        limits: MediaLimits | None = None,
        fetcher: MediaFetcher | None = None,
        find_file: FindFile = find_no_file,
    ) -> None:
        self.limits = limits or MediaLimits()
        self.find_file = find_file
        self._fetcher = fetcher or MediaFetcher()
        self._decoder = MediaDecoder(
            max_pixels=self.limits.pixels, cpu_seconds=self.limits.cpu_seconds
        )
        self._cache: BoundedCache[_CacheKey, MediaItem] = BoundedCache(
            max_size=CACHE_BYTES, measure=lambda _, item: len(item.data)
        )

    @property
    def worker_pids(self) -> list[int]:
        return self._decoder.pids

    async def read_chat(self, chat: Chat, reading: MediaReading) -> Chat:
        """Return the chat with its media read; raise `BadRequest` for the first problem."""
        self._check_count(chat, reading)
        messages = [
            await self._read_message(message, reading) if has_media(message) else message
            for message in chat.messages
        ]
        return replace(chat, messages=tuple(messages))

    async def aclose(self) -> None:
        await self._fetcher.aclose()
        await self._decoder.aclose()

    def _check_count(self, chat: Chat, reading: MediaReading) -> None:
        parts = [
            part
            for message in chat.messages
            for part in message.content
            if isinstance(part, MediaPart) and should_read(part, reading)
        ]
        limit = self.limits.items
        if len(parts) > limit:
            raise InvalidMedia(
                f"This request has {len(parts)} pictures, sounds and files; at most {limit} are "
                "allowed. The server's --media-items can raise this.",
                param=parts[limit].param,
                code="too_many_images",
            )

    async def _read_message(self, message: Message, reading: MediaReading) -> Message:
        content: list[ContentPart] = []
        for part in message.content:
            read: ContentPart = part
            if not isinstance(part, TextPart) and should_read(part, reading):
                try:
                    read = await self._read_part(part, reading)
                except (UnreadableMedia, MediaError) as error:
                    if message.role != "tool" or not may_keep(error):
                        raise make_error(error, part) from None
            content.append(read)
        return replace(message, content=join_files(message.content, content))

    async def _read_part(
        self, part: ImagePart | AudioPart | FilePart, reading: MediaReading
    ) -> ContentPart:
        reject_video(part.media_type)
        data, media_type, name = await self._read_bytes(part, reading)
        self._count_bytes(len(data), part, reading)
        if not data:
            raise MediaError("empty", "is empty.")
        media_format = detect_format(data)
        check_declared_type(media_type, media_format)
        kind = find_kind(part, media_format, reading)
        if kind == "text":
            return self._make_text(name, decode_text(data))
        if kind == "pdf":
            return self._make_text(name, await self._extract_text(data))
        detail = part.detail if isinstance(part, ImagePart) else None
        item = await self._decode(data, media_format, detail, reading.owner)
        part_type = ImagePart if kind == "image" else AudioPart
        return part_type(wire_type=part.wire_type, param=part.param, field=part.field, item=item)

    async def _read_bytes(
        self, part: ImagePart | AudioPart | FilePart, reading: MediaReading
    ) -> tuple[bytes, str | None, str | None]:
        """Return the content of a part, its declared media type, and its name."""
        name = part.name if isinstance(part, FilePart) else None
        file_id = None if isinstance(part, AudioPart) else part.file_id
        media_type, limit = part.media_type, self.limits.size
        source = part.data if part.data is not None else part.url
        if source is not None and is_data_url(source):
            parsed = parse_data_url(source)
            source, media_type = parsed.base64, parsed.media_type or media_type
            reject_video(media_type)
        elif part.data is None and part.url is not None:
            data, fetched_type = await self._fetcher.fetch(part.url, limit)
            return data, media_type or fetched_type, name
        if source is not None:
            check_base64_length(source, limit)
            return await decode_base64(source), media_type, name
        if file_id is None:
            raise MediaError("invalid", "has no content.")
        found = await self.find_file(reading.owner, file_id)
        if found is None:
            raise MediaError("not_found", "refers to a file that does not exist.")
        data, file_name = found
        if len(data) > limit:
            raise MediaError("file_too_large", f"is larger than the limit of {limit:,} bytes.")
        return data, media_type, name or file_name

    def _count_bytes(self, size: int, part: MediaPart, reading: MediaReading) -> None:
        reading.bytes_read += size
        if reading.max_bytes is not None and reading.bytes_read > reading.max_bytes:
            raise TooLarge(
                f"The media of this request is larger than the {reading.max_bytes:,} bytes that "
                "this API key may send.",
                param=part.param,
            )

    def _make_text(self, name: str | None, text: str) -> TextPart:
        limit = self.limits.text
        if len(text) > limit:
            raise MediaError("too_large", f"has more than {limit:,} characters, the limit.")
        return TextPart(f"{name}\n{text}" if name else text)

    async def _decode(
        self, data: bytes, media_format: MediaFormat, detail: str | None, owner: str
    ) -> MediaItem:
        """Decode a picture or sound, unless it was decoded recently."""
        limits = self.limits
        side = min(LOW_DETAIL, limits.side) if detail == "low" else limits.side
        if media_format.kind == "image":
            check_size(read_size(data, media_format), limits.pixels)
            task = DecodeTask(
                kind="image",
                format=media_format.name,
                data=data,
                pixels=limits.pixels,
                side=side,
            )
        else:
            check_audio_header(data, media_format, limits.seconds)
            task = DecodeTask(
                kind="audio", format=media_format.name, data=data, seconds=limits.seconds
            )
        key = owner, await hash_bytes(data), f"{media_format.name} {side}"
        item = self._cache.get(key)
        if item is None:
            item = (await self._run(task)).item
            if item is None:
                raise MediaError("invalid", "cannot be decoded.")
            self._cache.put(key, item)
        return item

    async def _extract_text(self, data: bytes) -> str:
        task = DecodeTask(kind="pdf", format="PDF", data=data, characters=self.limits.text)
        return (await self._run(task)).text or ""

    async def _run(self, task: DecodeTask) -> DecodeResult:
        check_library(task.kind)
        result = await self._decoder.decode(task)
        if result.message:
            raise MediaError(result.problem, result.message)
        return result


def may_keep(error: UnreadableMedia | MediaError) -> bool:
    """Whether a part with this error may stay in a tool result."""
    return isinstance(error, UnreadableMedia) or error.problem in ("url", "download", "not_found")


def make_error(error: UnreadableMedia | MediaError, part: MediaPart) -> BadRequest:
    if isinstance(error, UnreadableMedia):
        return make_unsupported_error(error, part.param)
    return make_media_error(error, part.modality, part.content_param)


def has_media(message: Message) -> bool:
    return any(not isinstance(part, TextPart) for part in message.content)


def reject_video(media_type: str | None) -> None:
    if (media_type or "").lower().startswith("video/"):
        raise UnreadableMedia(NO_VIDEO)


def should_read(part: MediaPart, reading: MediaReading) -> bool:
    """Whether the service reads a part: files always, others if the engine can."""
    return isinstance(part, FilePart) or part.modality in reading.modalities


def find_kind(
    part: MediaPart, media_format: MediaFormat, reading: MediaReading
) -> Literal["image", "audio", "pdf", "text"]:
    """Return what a part's content is; reject what the part may not contain."""
    kind = media_format.kind
    if kind == "video":
        raise UnreadableMedia(NO_VIDEO)
    if not isinstance(part, FilePart):
        if kind != part.modality:
            raise MediaError("format", f"is not {EXPECTED[part.modality]}.")
    elif kind in EXPECTED and kind not in reading.modalities:
        raise UnreadableMedia(f"This model does not support {kind} files.")
    if kind == "binary":
        raise MediaError("media_type", "is neither text nor a PDF.")
    return kind


def check_library(kind: Literal["image", "audio", "pdf"]) -> None:
    """Reject media whose library is not installed."""
    module, extra = LIBRARIES[kind]
    if find_spec(module) is None:
        raise UnreadableMedia(
            f"{NAMES[kind]} are not supported: the server needs `pip install 'dragoman[{extra}]'`."
        )


async def hash_bytes(data: bytes) -> bytes:
    if len(data) <= SMALL:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()


def join_files(before: Content, after: list[ContentPart]) -> Content:
    """Join neighbouring texts, with an empty line between a file and other text."""
    joined: list[ContentPart] = []
    was_file = False
    for old, part in zip(before, after, strict=True):
        is_file = isinstance(part, TextPart) and not isinstance(old, TextPart)
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            has_gap = last.text.endswith("\n") or part.text.startswith("\n")
            gap = SEPARATOR if (is_file or was_file) and not has_gap else ""
            joined[-1] = TextPart(last.text + gap + part.text)
        else:
            joined.append(part)
        was_file = is_file
    return tuple(joined)
