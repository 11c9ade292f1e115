"""Tries a projector when its model is loaded, with a small picture or a short sound.

A projector that cannot encode its own kind of media makes the model broken: at best the server
rejects the trial, at worst its process ends, but before it has taken any request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from dragoman.engines.llamacpp.choice import GgufVocabulary
from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.media.media_prompts import MediaPrompts, TextRules, tokenize
from dragoman.engines.llamacpp.media.projector import Projector
from dragoman.engines.trial_media import make_trial_items
from dragoman.errors import ModelBroken
from dragoman.types.media import MediaItem
from dragoman.types.media_ids import make_media_ids


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
        raise ModelBroken(
            "Its tokenizer adds an end token to every prompt, which prompts with media cannot have."
        )
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
