"""Builds prompts with pictures or sound for the native server.

The server takes media only with a prompt that is a text, in which a random marker stands for each
item. It splits the text at the markers, tokenizes every part with special tokens read as such, and
adds the BOS token and the tokens that begin and end an item. So the ids of a prompt are turned back
into text here, and `is_exact` asks the server whether it reads that text as the same ids. Where it
does not, because a client's text spells a special token or because tokens that the model wrote are
no usual tokenization of their text, the prompt must not be sent.

A prompt whose text ends in media would end the server's process, and so would a sound of a few
samples. They are rejected in `build`, through which everything passes that is sent.

How many tokens an item takes is asked once in each cache scope: the server counts a conversation
with the item twice and once, without encoding it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.engines.limits import ENDS_IN_MEDIA, UNREADABLE_MEDIA, split_media_prompt
from dragoman.engines.llamacpp.choice import GgufVocabulary
from dragoman.engines.llamacpp.client import NativeClient
from dragoman.errors import BadRequest, EngineFailed
from dragoman.types import Json
from dragoman.types.bounded_cache import BoundedCache
from dragoman.types.cache_scope import get_cache_scope
from dragoman.types.media import MediaItem
from dragoman.types.media_ids import PromptCount, count_text_ids

COUNT_PATH = "/v1/chat/completions/input_tokens"
REMEMBERED_COUNTS = 4096
# how long encoding may take without being a hang: large items take longer per token than small ones
ENCODING_SECONDS, ENCODING_FACTOR = 10.0, 10.0
INEXACT = (
    "Beside pictures or sound, this text would be read as special tokens. Change the text that "
    "looks like a special token of the model."
)
MIN_SECONDS = 0.01  # of a sound
HAS_MARKER = "The text contains the engine's marker for media."


class _Tokens(Struct):
    tokens: list[int]


class _CountedChat(Struct):
    input_tokens: int


class TextRules(Struct, frozen=True):
    """What the server's tokenizer adds to a text."""

    bos: tuple[int, ...]  # before the first part
    adds_space: bool  # in front of every text


class MediaPrompts:
    """Builds, checks and counts the prompts with media of one server."""

    def __init__(
        self, client: NativeClient, vocabulary: GgufVocabulary, marker: str, rules: TextRules
    ) -> None:
        self._client = client
        self._pieces = vocabulary.pieces or []
        self._specials = vocabulary.special_ids
        self._marker = marker
        self._rules = rules
        self._counts = BoundedCache[tuple[str, str], int](max_entries=REMEMBERED_COUNTS)
        self.token_seconds = 0.0  # of encoding, per token of an item
        self._encoding_until = 0.0  # when the items that were sent should be encoded

    def build(self, prompt: Sequence[int], media: Sequence[MediaItem]) -> Json:
        """Return the prompt in the server's JSON form; reject media that would crash the server."""
        texts, items = self._split(prompt, media)
        parts = [self._decode(ids, is_first=not index) for index, ids in enumerate(texts)]
        if not parts[-1]:
            raise BadRequest(ENDS_IN_MEDIA, param="messages")
        if any(self._marker in part for part in parts):
            raise BadRequest(HAS_MARKER, param="messages")
        return {
            "prompt_string": self._marker.join(parts),
            "multimodal_data": [item.data for item in items],
        }

    async def count(self, prompt: Sequence[int], media: Sequence[MediaItem]) -> PromptCount:
        """Return how many tokens a prompt has, and whether the server reads it as it is."""
        texts, items = self._split(prompt, media)
        counts = tuple([await self._count_item(item) for item in items])
        tokens = count_text_ids(prompt) + sum(counts)
        for index, ids in enumerate(texts):
            if not await self._is_exact(ids, is_first=not index):
                return PromptCount(tokens, False, counts)
        return PromptCount(tokens, True, counts)

    @property
    def is_encoding(self) -> bool:
        """Whether the server may be encoding media, while it answers nothing."""
        return time.monotonic() < self._encoding_until

    def start_encoding(self, media: Sequence[MediaItem]) -> float:
        """Expect the server to encode these items; return how long the largest may take."""
        counts = [self._counts.get(_make_key(item)) or 0 for item in media]
        patience = ENCODING_SECONDS + ENCODING_FACTOR * sum(counts) * self.token_seconds
        self._encoding_until = max(self._encoding_until, time.monotonic() + patience)
        return max(counts) * self.token_seconds

    def _split(
        self, prompt: Sequence[int], media: Sequence[MediaItem]
    ) -> tuple[list[list[int]], list[MediaItem]]:
        texts, items = split_media_prompt(prompt, media)
        for item in items:
            check_item(item)
        return texts, items

    def _decode(self, ids: list[int], *, is_first: bool) -> str:
        """Return the text that the server's tokenizer reads as these ids.

        Some tokenizers put a space in front of the whole text and behind special tokens.
        """
        bos = len(self._rules.bos)
        if is_first and bos and tuple(ids[:bos]) == self._rules.bos:
            ids = ids[bos:]
        parts: list[bytes] = []
        after_special = True
        for token in ids:
            piece = self._pieces[token]
            is_special = token in self._specials
            if self._rules.adds_space and after_special and not is_special:
                piece = piece.removeprefix(b" ")
            parts.append(piece)
            after_special = is_special
        return b"".join(parts).decode(errors="replace")

    async def _is_exact(self, ids: list[int], *, is_first: bool) -> bool:
        text = self._decode(ids, is_first=is_first)
        if self._marker in text:
            return False
        read = await tokenize(self._client, text) if text else []
        return [*(self._rules.bos if is_first else ()), *read] == ids

    async def _count_item(self, item: MediaItem) -> int:
        key = _make_key(item)
        known = self._counts.get(key)
        if known is None:
            once, twice = await self._count_chat([item]), await self._count_chat([item, item])
            known = twice - once
            self._counts.put(key, known)
        return known

    async def _count_chat(self, items: Sequence[MediaItem]) -> int:
        content = [*map(_make_part, items), {"type": "text", "text": "a"}]
        body = {"messages": [{"role": "user", "content": content}]}
        status, answer = await self._client.post(COUNT_PATH, body)
        if status != 200:
            raise BadRequest(UNREADABLE_MEDIA, param="messages")
        return msgspec.json.decode(answer, type=_CountedChat).input_tokens


def check_item(item: MediaItem) -> None:
    """Reject an item that would end the server's process: a sound of a few samples."""
    if item.kind == "audio" and item.seconds < MIN_SECONDS:
        raise BadRequest(
            f"A sound must last at least {MIN_SECONDS * 1000:g} ms for this model.",
            param="messages",
        )


def _make_key(item: MediaItem) -> tuple[str, str]:
    return get_cache_scope(), item.digest


def _make_part(item: MediaItem) -> Json:
    if item.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": item.data, "format": "wav"}}
    encoded = msgspec.json.encode(item.data).decode().strip('"')
    return {"type": "image_url", "image_url": {"url": f"data:{item.media_type};base64,{encoded}"}}


async def tokenize(client: NativeClient, text: str, *, add_special: bool = False) -> list[int]:
    """Return the ids of a text, in which special tokens are read as such."""
    request = {"content": text, "add_special": add_special, "parse_special": True}
    status, body = await client.post("/tokenize", request)
    if status != 200:
        raise EngineFailed("The engine cannot tokenize a text.")
    return msgspec.json.decode(body, type=_Tokens).tokens
