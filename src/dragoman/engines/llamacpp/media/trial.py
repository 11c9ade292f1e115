"""Tries a projector when its model is loaded, with a small picture or a short sound.

A projector that cannot encode its own kind of media makes the model broken: at best the server
refuses the trial, at worst its process ends, which is before it has taken any request.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from dragoman.engines.llamacpp.choice import GgufVocabulary
from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.media.media_prompts import MediaPrompts, TextRules, tokenize
from dragoman.engines.llamacpp.media.projector import Projector
from dragoman.errors import ModelBroken
from dragoman.types.media import MediaItem
from dragoman.types.media_ids import make_media_ids

SIDE = 64  # pixels
SAMPLE_RATE, SAMPLES = 16_000, 1_600


class _Props(Struct):
    media_marker: str = ""


def open_media_prompts(
    client: NativeClient, vocabulary: GgufVocabulary, projector: Projector | None
) -> MediaPrompts | None:
    """Find out how the server reads prompts with media, and try it; None without a projector."""
    if projector is None:
        return None
    if vocabulary.pieces is None:
        raise ModelBroken(
            "Pictures and sound need a vocabulary that can be rebuilt. Set `mmproj: none` to serve "
            "text only."
        )
    trial = make_trial_items(projector.modalities)
    with ThreadPoolExecutor(1) as thread:  # an event loop runs in this one
        return thread.submit(asyncio.run, _open(client, vocabulary, trial)).result()


async def _open(
    client: NativeClient, vocabulary: GgufVocabulary, trial: Sequence[MediaItem]
) -> MediaPrompts:
    status, body = await client.get("/props")
    marker = msgspec.json.decode(body, type=_Props).media_marker if status == 200 else ""
    if not marker:
        raise ModelBroken("The engine does not say how it marks media in a prompt.")
    plain = await tokenize(client, "a")
    whole = await tokenize(client, "a", add_special=True)
    if not plain or whole[-len(plain) :] != plain:
        raise ModelBroken("Its tokenizer ends every prompt, which media prompts must not have.")
    pieces = vocabulary.pieces or []
    rules = TextRules(
        tuple(whole[: -len(plain)]), b"".join(pieces[token] for token in plain) == b" a"
    )
    prompts = MediaPrompts(client, vocabulary, marker, rules)
    for item in trial:
        await _try_item(client, prompts, item, marker)
    return prompts


async def _try_item(
    client: NativeClient, prompts: MediaPrompts, item: MediaItem, marker: str
) -> None:
    prompt = {"prompt_string": f"{marker}a", "multimodal_data": [item.data]}
    started_at = time.perf_counter()
    status, _ = await client.post(
        "/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": False, "stream": False}
    )
    seconds = time.perf_counter() - started_at
    if status != 200:
        raise ModelBroken(
            "Its projector (`mmproj`) and its vocabulary do not belong together: the engine cannot "
            "read a picture or sound with them. Set `mmproj: none` to serve text only."
        )
    tokens = (await prompts.count([*make_media_ids(item.digest), 0], [item])).tokens
    prompts.token_seconds = max(prompts.token_seconds, seconds / max(1, tokens))


def make_trial_items(modalities: tuple[str, ...]) -> list[MediaItem]:
    """Make one item for each modality but text."""
    makers = {"image": _make_picture, "audio": _make_sound}
    return [makers[name]() for name in modalities if name in makers]


def _make_picture() -> MediaItem:
    row = b"\0" + b"\x80" * 3 * SIDE
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * SIDE)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return MediaItem(
        kind="image", data=data, digest=hashlib.sha256(data).hexdigest(), width=SIDE, height=SIDE
    )


def _make_sound() -> MediaItem:
    size = 2 * SAMPLES
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", size) + bytes(size)
    data = struct.pack("<4sI", b"RIFF", len(body)) + body
    return MediaItem(
        kind="audio",
        data=data,
        digest=hashlib.sha256(data).hexdigest(),
        sample_rate=SAMPLE_RATE,
        samples=SAMPLES,
    )
