"""The memory of a server: looks turns up before a prompt is made, and notes them after it."""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.events import Completion, Delta
from dragoman.models.model import Model
from dragoman.prompt.renderer import RenderedPrompt
from dragoman.replay.cache import ReplayCache, ReplayStore
from dragoman.replay.digest import (
    ReplayEntry,
    digest,
    digest_answer,
    digest_message,
    digest_prefixes,
    digest_reasoning,
)
from dragoman.replay.prefix_index import WIDTH, PrefixIndex, pack_ids, unpack_ids
from dragoman.replay.splice import drop_replays
from dragoman.types import Adapter, Chat, Message, ReplayedTurn

SkipReasons: TypeAlias = tuple[str, ...]  # why turns are not as the model wrote them, each
MOST = 64 << 20
MODELS = 64  # whose prompts are kept
LARGE = 1000  # messages that are gone through in a thread
UNKNOWN, EDITED, ROOM = "unknown", "edited", "room"


class ReplayScope(Struct, frozen=True):
    """Who speaks to whom: a model, with what is laid over its weights, and an owner."""

    model: Model
    owner: str = ""
    lora: tuple[Adapter, ...] = ()


class ReplayedPrompt(Struct, frozen=True):
    """A prompt made with what is remembered."""

    rendered: RenderedPrompt
    prefix_digest: bytes = b""  # of the answer, in its chat
    skipped: SkipReasons = ()  # why turns of the assistant's are not as the model wrote them, each


class PromptReuse(Struct, frozen=True):
    """How much of a prompt was there before."""

    prompt_tokens: int
    reused_tokens: int  # that an earlier prompt or its answer begins with, too
    diverged: bool = False  # the earlier one goes on in another way
    packed_ids: bytes = b""  # the prompt's tokens as numbers of four bytes
    replayed_turns: int = 0  # turns that are as the model wrote them
    skipped: SkipReasons = ()  # why each other turn of the assistant's is not
    prefix_digest: bytes = b""  # of the answer, in its chat

    def __str__(self) -> str:
        where = self.reused_tokens if self.diverged else "no"
        return f"tokens={self.prompt_tokens}, known={self.reused_tokens}, recalled={self.replayed_turns}, diverged={where}"


class ReplayStats(Struct):
    """Counts since the start."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    replayed_turns: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


class EarlierTurn:
    """A turn of the assistant's as a client tells it, and what it can be found by."""

    def __init__(self, message: Message, earlier: bytes, name: str) -> None:
        self._told = digest_message(message)
        self._thoughts = digest_reasoning(message.reasoning)
        calls = (_call_key(name, call.id) for call in message.tool_calls)
        self.keys = [*calls, _turn_key(name, earlier, self._told)]  # the surest first

    def agrees(self, entry: ReplayEntry) -> bool:
        """Whether it is what the client was told; thoughts may be left out."""
        return self._told == entry.answer_digest and self._thoughts in (b"", entry.reasoning_digest)


class ReplayService:
    """What was said to whom, by which model."""

    def __init__(self, most: int = MOST, backing: ReplayStore | None = None) -> None:
        self._shelf = ReplayCache(most, backing)
        self._trails: dict[str, PrefixIndex] = {}
        self._prints: dict[str, tuple[weakref.ref[object], str]] = {}
        self.stats = ReplayStats()

    def use_store(self, backing: ReplayStore | None) -> None:
        """Use a store from now on."""
        self._shelf.backing = backing

    async def aclose(self) -> None:
        await self._shelf.aclose()

    # Before a prompt is made

    async def render(self, chat: Chat, voice: ReplayScope) -> ReplayedPrompt:
        """The prompt of a chat with what is remembered of it."""
        model = voice.model
        if not model.renderer.can_splice:
            return ReplayedPrompt(await model.renderer.render(chat))
        chat, place, lost = await self.recall(chat, voice)
        rendered: RenderedPrompt = await model.renderer.render(chat, opened=True)
        most, length = model.capabilities.context, len(rendered.ids or ())
        if rendered.replayed_turns and most is not None and length >= most:
            shorter: RenderedPrompt = await model.renderer.render(drop_replays(chat), opened=True)
            if len(shorter.ids or ()) < most:
                lost = (*lost, *rendered.skipped, *[ROOM] * rendered.replayed_turns)
                return ReplayedPrompt(shorter, place, lost)
        return ReplayedPrompt(rendered, place, (*lost, *rendered.skipped))

    async def recall(self, chat: Chat, voice: ReplayScope) -> tuple[Chat, bytes, SkipReasons]:
        """The chat with what is remembered, the answer's place, and why other turns are not."""
        name, owner, messages = self.scope_key(voice), voice.owner, list(chat.messages)
        many = len(messages) > LARGE
        passed = (
            await asyncio.to_thread(digest_prefixes, messages)
            if many
            else digest_prefixes(messages)
        )
        turns = {
            at: EarlierTurn(message, passed[at], name)
            for at, message in enumerate(messages)
            if message.role == "assistant"
        }
        if not turns:
            return chat, passed[-1], ()
        await self._shelf.fetch(owner, [key for turn in turns.values() for key in turn.keys])
        lost = []
        for at, turn in turns.items():
            said = self._said(owner, turn)
            if isinstance(said, ReplayedTurn):
                messages[at] = replace(messages[at], replay=said)
            else:
                lost.append(said)
        return replace(chat, messages=tuple(messages)), passed[-1], tuple(lost)

    def _said(self, owner: str, turn: EarlierTurn) -> ReplayedTurn | str:
        why = UNKNOWN
        for key in turn.keys:
            entry = self._shelf.get(owner, key)
            if entry is not None:
                if turn.agrees(entry):
                    return ReplayedTurn(unpack_ids(entry.opening), unpack_ids(entry.ids))
                why = EDITED
        return why

    def measure_reuse(
        self, prompt: list[int], recalled: ReplayedPrompt, voice: ReplayScope
    ) -> PromptReuse:
        """How much of a prompt was there before; it is the rendered one, or goes on from it."""
        rendered = recalled.rendered
        sequence = rendered.packed_ids
        if len(sequence) != WIDTH * len(prompt):
            sequence = pack_ids(prompt)
        trail = self._trails.get(self.scope_key(voice))
        known, left = trail.match(voice.owner, sequence) if trail is not None else (0, False)
        return PromptReuse(
            len(prompt),
            known,
            left,
            sequence,
            replayed_turns=rendered.replayed_turns,
            skipped=recalled.skipped,
            prefix_digest=recalled.prefix_digest,
        )

    # After it was answered

    def store(
        self,
        voice: ReplayScope,
        rows: dict[str, ReplayEntry],
        lasting: bool,
        source: str | None = None,
    ) -> None:
        self._shelf.put(voice.owner, rows, source)
        if lasting:
            self._shelf.write(voice.owner, voice.model.id, rows, source)

    async def forget(self, owner: str, sources: Collection[str]) -> None:
        """Drop what these answers said. What is in a store goes with them there."""
        await self._shelf.forget(owner, sources)

    def prefix_index(self, voice: ReplayScope) -> PrefixIndex:
        name = self.scope_key(voice)
        if name not in self._trails and len(self._trails) >= MODELS:
            del self._trails[next(iter(self._trails))]
        return self._trails.setdefault(name, PrefixIndex())

    def count_reuse(self, reuse: PromptReuse) -> None:
        stats = self.stats
        stats.prompt_tokens += reuse.prompt_tokens
        stats.reused_tokens += reuse.reused_tokens
        stats.replayed_turns += reuse.replayed_turns
        stats.skipped.update(reuse.skipped)

    def scope_key(self, voice: ReplayScope) -> str:
        """Whatever makes a difference to what is said: the model and its adapters."""
        named = self._named(voice.model)
        laid = [f"{adapter.scale}*{adapter.name}" for adapter in voice.lora]
        return "+".join([named, *sorted(laid)])

    def _named(self, model: Model) -> str:
        """The model by its id and its vocabulary: another file of that name has other tokens."""
        tokenizer = model.tokenizer
        if tokenizer is None:
            return model.id
        known = self._prints.get(model.id)
        if known is not None and known[0]() is tokenizer:
            return known[1]
        made = hashlib.blake2b(b"\0".join(tokenizer.pieces), digest_size=16).hexdigest()
        self._prints[model.id] = (weakref.ref(tokenizer), f"{model.id}/{made}")
        return self._prints[model.id][1]


class ReplayRecorder:
    """Hears the answer to one request, and remembers what each choice of it said."""

    def __init__(
        self,
        memory: ReplayService,
        voice: ReplayScope,
        lasting: bool = False,
        source: str | None = None,
    ) -> None:
        self._memory = memory
        self._voice = voice
        self._lasting = lasting
        self._source = source
        self._heard: defaultdict[int, list[Delta]] = defaultdict(list)
        self._asked: dict[int, tuple[PromptReuse, int | None]] = {}

    def start(self, choices: range, reuse: PromptReuse, opened: int | None) -> None:
        """These choices are answers to a prompt; `opened` is where it opens them."""
        self._asked |= dict.fromkeys(choices, (reuse, opened))
        self._memory.count_reuse(reuse)
        self._memory.prefix_index(self._voice).add(self._voice.owner, reuse.packed_ids)

    def add(self, delta: Delta) -> None:
        self._heard[delta.choice].append(delta)

    def finish(self, index: int, ids: list[int] | None, own: Collection[str]) -> None:
        """A choice is done: what its tokens are, if that is known, and call ids that are ours."""
        if ids is None or index not in self._asked:
            return
        reuse, opened = self._asked[index]
        prompt, answer = reuse.packed_ids, pack_ids(ids)
        self._memory.prefix_index(self._voice).add(self._voice.owner, prompt + answer)
        if opened is None or not ids:
            return
        [choice] = added(self._heard.pop(index)).choices()
        said = digest_answer(choice.text, ((call.name, call.arguments) for call in choice.calls))
        entry = ReplayEntry(
            said, digest_reasoning(choice.reasoning), prompt[WIDTH * opened :], answer
        )
        name = self._memory.scope_key(self._voice)
        keys = [_call_key(name, call.id) for call in choice.calls if call.id in own]
        keys.append(_turn_key(name, reuse.prefix_digest, said))
        self._memory.store(self._voice, dict.fromkeys(keys, entry), self._lasting, self._source)


def added(deltas: Sequence[Delta]) -> Completion:
    """The deltas of a choice added up; of the many that only gain text, at once."""
    whole = Completion()
    for channel, run in groupby(deltas, attrgetter("channel")):
        if channel in ("text", "reasoning"):
            text = "".join([delta.text for delta in run])
            whole.add(Delta(deltas[0].choice, text, channel))
        else:
            for delta in run:
                whole.add(delta)
    return whole


def _call_key(name: str, id_: str) -> str:
    return digest("call", name, id_).hex()


def _turn_key(name: str, earlier: bytes, said: bytes) -> str:
    return digest("turn", name, earlier, said).hex()
