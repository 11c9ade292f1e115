"""Finds the turns of a conversation that the model wrote, and measures how much of a prompt is new.

The service has a `ReplayCache` of turns, one `PrefixIndex` per model, and the `LearnedBoundaries`
of each renderer's template. `recorder` fills the first two.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.models.model import Model
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.replay.cache import ReplayCache, ReplayStore
from dragoman.replay.digest import (
    ReplayEntry,
    digest_message,
    digest_prefixes,
    digest_reasoning,
    make_call_key,
    make_turn_key,
)
from dragoman.replay.prefix_index import WIDTH, PrefixIndex, pack_ids, unpack_ids
from dragoman.replay.splice import TurnSplicer
from dragoman.replay.turn_boundaries import LearnedBoundaries, make_boundaries
from dragoman.types import Adapter, Chat, Message, ReplayedTurn
from dragoman.types.worker_threads import run_in_worker

SkipReasons: TypeAlias = tuple[str, ...]  # for each turn that is not replayed, the reason
MAX_BYTES = 64 << 20
MAX_MODELS = 64  # models with a prefix index
# Longer conversations are digested in a thread.
MAX_INLINE_MESSAGES, MAX_INLINE_CHARACTERS = 200, 50_000
MAX_TURNS = 10_000  # the last ones of a conversation are looked up
UNKNOWN, EDITED, NO_ROOM = "unknown", "edited", "room"
REREAD = "reread"  # in a prompt with media, the engine would read the turn's text as other tokens


class ReplayScope(Struct, frozen=True):
    """Where a turn may be replayed: for one model, with the same adapters, and one owner."""

    model: Model
    owner: str = ""
    lora: tuple[Adapter, ...] = ()


class ReplayedPrompt(Struct, frozen=True):
    """A rendered prompt with replayed turns."""

    rendered: RenderedPrompt
    prefix_digest: bytes = b""  # of all messages
    skipped: SkipReasons = ()  # why each other assistant turn is not replayed


class FoundTurns(Struct, frozen=True):
    """A chat with the replays of its turns, and why the other turns have none."""

    chat: Chat
    prefix_digest: bytes  # of all messages
    skipped: SkipReasons = ()

    def with_prompt(self, rendered: RenderedPrompt, skipped: SkipReasons) -> ReplayedPrompt:
        return ReplayedPrompt(rendered, self.prefix_digest, (*self.skipped, *skipped))


class PromptReuse(Struct, frozen=True):
    """How much of a prompt an earlier prompt, or the answer to it, contains."""

    prompt_tokens: int
    reused_tokens: int  # length of the common prefix
    has_diverged: bool = False  # the earlier prompt continues differently
    packed_ids: bytes = b""  # the prompt's token ids in four bytes each
    replayed_turns: int = 0
    skipped: SkipReasons = ()
    prefix_digest: bytes = b""  # of all messages

    def __str__(self) -> str:
        diverged = self.reused_tokens if self.has_diverged else "no"
        return (
            f"tokens={self.prompt_tokens}, known={self.reused_tokens}, "
            f"recalled={self.replayed_turns}, diverged={diverged}"
        )


class ReplayStats(Struct):
    """Counts since the start."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    replayed_turns: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


class EarlierTurn:
    """An assistant turn as the client sends it, and the keys under which it may be stored."""

    def __init__(self, message: Message, prefix_digest: bytes, scope_key: str) -> None:
        self._answer_digest = digest_message(message)
        self._reasoning_digest = digest_reasoning(message.reasoning)
        calls = (make_call_key(scope_key, call.id) for call in message.tool_calls)
        self.keys = [*calls, make_turn_key(scope_key, prefix_digest, self._answer_digest)]

    def matches(self, entry: ReplayEntry) -> bool:
        """Whether the turn is the stored one; the client may leave out the reasoning."""
        same_answer = self._answer_digest == entry.answer_digest
        return same_answer and self._reasoning_digest in (b"", entry.reasoning_digest)


def digest_turns(
    messages: Sequence[Message], scope_key: str
) -> tuple[list[bytes], dict[int, EarlierTurn]]:
    """Return the digests of all prefixes of a chat, and its assistant turns by their index."""
    prefixes = digest_prefixes(messages)
    indices = [index for index, message in enumerate(messages) if message.role == "assistant"]
    turns = {
        index: EarlierTurn(messages[index], prefixes[index], scope_key)
        for index in indices[-MAX_TURNS:]
    }
    return prefixes, turns


class ReplayService:
    """The turns that models wrote, by owner and model."""

    def __init__(self, max_bytes: int = MAX_BYTES, store: ReplayStore | None = None) -> None:
        self._cache = ReplayCache(max_bytes, store)
        self._indexes: dict[str, PrefixIndex] = {}
        self._fingerprints: dict[str, tuple[weakref.ref[object], str]] = {}
        self._boundaries: weakref.WeakKeyDictionary[PromptRenderer, LearnedBoundaries] = (
            weakref.WeakKeyDictionary()
        )
        self.stats = ReplayStats()

    def use_store(self, store: ReplayStore | None) -> None:
        """Use a database from now on."""
        self._cache.store = store

    async def aclose(self) -> None:
        await self._cache.aclose()

    # Before a prompt is rendered

    async def find_turns(self, chat: Chat, scope: ReplayScope) -> FoundTurns:
        """Attach the stored tokens to the turns of a chat that the model wrote."""
        scope_key, messages = self.get_scope_key(scope), list(chat.messages)
        size = sum(message.count_characters() for message in messages[:MAX_INLINE_MESSAGES])
        if len(messages) > MAX_INLINE_MESSAGES or size > MAX_INLINE_CHARACTERS:
            prefixes, turns = await run_in_worker(digest_turns, messages, scope_key)
        else:
            prefixes, turns = digest_turns(messages, scope_key)
        if not turns:
            return FoundTurns(chat, prefixes[-1])
        keys = [key for turn in turns.values() for key in turn.keys]
        await self._cache.fetch(scope.owner, keys)
        skipped = []
        for index, turn in turns.items():
            replay = self._find_turn(scope.owner, turn)
            if isinstance(replay, ReplayedTurn):
                messages[index] = replace(messages[index], replay=replay)
            else:
                skipped.append(replay)
        return FoundTurns(replace(chat, messages=tuple(messages)), prefixes[-1], tuple(skipped))

    def _find_turn(self, owner: str, turn: EarlierTurn) -> ReplayedTurn | str:
        """Return the stored turn, or the reason why there is none."""
        reason = UNKNOWN
        for key in turn.keys:
            entry = self._cache.get(owner, key)
            if entry is not None:
                if turn.matches(entry):
                    return ReplayedTurn(unpack_ids(entry.opening), unpack_ids(entry.ids))
                reason = EDITED
        return reason

    def make_splicer(self, renderer: PromptRenderer) -> TurnSplicer:
        """Make a splicer for a renderer; all splicers of a renderer share what they learn."""
        boundaries = self._boundaries.get(renderer)
        if boundaries is None and renderer.tokenizer is not None:
            boundaries = self._boundaries[renderer] = make_boundaries(renderer.tokenizer)
        return TurnSplicer(renderer, boundaries)

    def measure_reuse(
        self, prompt: list[int], replayed: ReplayedPrompt, scope: ReplayScope
    ) -> PromptReuse:
        """Compare a prompt, which is the rendered one or continues it, with earlier prompts."""
        rendered = replayed.rendered
        packed_ids = rendered.packed_ids
        if len(packed_ids) != WIDTH * len(prompt):
            packed_ids = pack_ids(prompt)
        index = self._indexes.get(self.get_scope_key(scope))
        reused, diverged = (0, False) if index is None else index.match(scope.owner, packed_ids)
        return PromptReuse(
            len(prompt),
            reused,
            diverged,
            packed_ids,
            replayed_turns=rendered.replayed_turns,
            skipped=replayed.skipped,
            prefix_digest=replayed.prefix_digest,
        )

    # After the answer

    def store(
        self,
        scope: ReplayScope,
        entries: dict[str, ReplayEntry],
        persist: bool,
        source: str | None = None,
    ) -> None:
        self._cache.put(scope.owner, entries, source)
        if persist:
            self._cache.write(scope.owner, scope.model.id, entries, source)

    async def drop_turns(self, owner: str, sources: Collection[str]) -> None:
        """Drop the turns of these responses. The database deletes its own copies with them."""
        await self._cache.drop_entries(owner, sources)

    def get_prefix_index(self, scope: ReplayScope) -> PrefixIndex:
        key = self.get_scope_key(scope)
        if key not in self._indexes and len(self._indexes) >= MAX_MODELS:
            del self._indexes[next(iter(self._indexes))]
        return self._indexes.setdefault(key, PrefixIndex())

    def count_reuse(self, reuse: PromptReuse) -> None:
        stats = self.stats
        stats.prompt_tokens += reuse.prompt_tokens
        stats.reused_tokens += reuse.reused_tokens
        stats.replayed_turns += reuse.replayed_turns
        stats.skipped.update(reuse.skipped)

    def get_scope_key(self, scope: ReplayScope) -> str:
        """Return a key for everything that affects the tokens: the model and its adapters."""
        adapters = [f"{adapter.scale}*{adapter.name}" for adapter in scope.lora]
        return "+".join([self._fingerprint(scope.model), *sorted(adapters)])

    def _fingerprint(self, model: Model) -> str:
        """Return the model's id and a digest of its vocabulary.

        Another file with the same name may have a different vocabulary.
        """
        tokenizer = model.tokenizer
        if tokenizer is None:
            return model.id
        known = self._fingerprints.get(model.id)
        if known is not None and known[0]() is tokenizer:
            return known[1]
        vocabulary = hashlib.blake2b(b"\0".join(tokenizer.pieces), digest_size=16).hexdigest()
        self._fingerprints[model.id] = (weakref.ref(tokenizer), f"{model.id}/{vocabulary}")
        return self._fingerprints[model.id][1]
