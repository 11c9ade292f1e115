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
from dragoman.prompt.renderer import Rendered
from dragoman.replay.cache import Backing, Shelf
from dragoman.replay.digest import Entry, digest, places, thoughts, told, told_of
from dragoman.replay.prefix_index import WIDTH, Trail, packed, unpacked
from dragoman.replay.splice import without
from dragoman.types import Adapter, Chat, Message, ReplayedTurn

Lost: TypeAlias = tuple[str, ...]  # why turns are not as the model wrote them, each
MOST = 64 << 20
MODELS = 64  # whose prompts are kept
LARGE = 1000  # messages that are gone through in a thread
UNKNOWN, EDITED, ROOM = "unknown", "edited", "room"


class Voice(Struct, frozen=True):
    """Who speaks to whom: a model, with what is laid over its weights, and an owner."""

    model: Model
    owner: str = ""
    lora: tuple[Adapter, ...] = ()


class Recalled(Struct, frozen=True):
    """A prompt made with what is remembered."""

    rendered: Rendered
    place: bytes = b""  # of the answer, in its chat
    lost: Lost = ()  # why turns of the assistant's are not as the model wrote them, each


class Reuse(Struct, frozen=True):
    """How much of a prompt was there before."""

    tokens: int
    known: int  # that an earlier prompt or its answer begins with, too
    left: bool = False  # the earlier one goes on in another way
    sequence: bytes = b""  # the prompt's tokens as numbers of four bytes
    recalled: int = 0  # turns that are as the model wrote them
    lost: Lost = ()  # why each other turn of the assistant's is not
    place: bytes = b""  # of the answer, in its chat

    def __str__(self) -> str:
        where = self.known if self.left else "no"
        return (
            f"tokens={self.tokens}, known={self.known}, recalled={self.recalled}, diverged={where}"
        )


class Stats(Struct):
    """Counts since the start."""

    tokens: int = 0
    known: int = 0
    recalled: int = 0
    lost: Counter[str] = field(default_factory=Counter)


class Turn:
    """A turn of the assistant's as a client tells it, and what it can be found by."""

    def __init__(self, message: Message, earlier: bytes, name: str) -> None:
        self._told = told_of(message)
        self._thoughts = thoughts(message.reasoning)
        calls = (_call_key(name, call.id) for call in message.tool_calls)
        self.keys = [*calls, _turn_key(name, earlier, self._told)]  # the surest first

    def agrees(self, entry: Entry) -> bool:
        """Whether it is what the client was told; thoughts may be left out."""
        return self._told == entry.told and self._thoughts in (b"", entry.thoughts)


class Memory:
    """What was said to whom, by which model."""

    def __init__(self, most: int = MOST, backing: Backing | None = None) -> None:
        self._shelf = Shelf(most, backing)
        self._trails: dict[str, Trail] = {}
        self._prints: dict[str, tuple[weakref.ref[object], str]] = {}
        self.stats = Stats()

    def keep_in(self, backing: Backing | None) -> None:
        """Use a store from now on."""
        self._shelf.backing = backing

    async def aclose(self) -> None:
        await self._shelf.aclose()

    # Before a prompt is made

    async def render(self, chat: Chat, voice: Voice) -> Recalled:
        """The prompt of a chat with what is remembered of it."""
        model = voice.model
        if not model.renderer.recalls:
            return Recalled(await model.renderer.render(chat))
        chat, place, lost = await self.recall(chat, voice)
        rendered: Rendered = await model.renderer.render(chat, opened=True)
        most, length = model.capabilities.context, len(rendered.ids or ())
        if rendered.recalled and most is not None and length >= most:
            shorter: Rendered = await model.renderer.render(without(chat), opened=True)
            if len(shorter.ids or ()) < most:
                lost = (*lost, *rendered.lost, *[ROOM] * rendered.recalled)
                return Recalled(shorter, place, lost)
        return Recalled(rendered, place, (*lost, *rendered.lost))

    async def recall(self, chat: Chat, voice: Voice) -> tuple[Chat, bytes, Lost]:
        """The chat with what is remembered, the answer's place, and why other turns are not."""
        name, owner, messages = self.name(voice), voice.owner, list(chat.messages)
        many = len(messages) > LARGE
        passed = await asyncio.to_thread(places, messages) if many else places(messages)
        turns = {
            at: Turn(message, passed[at], name)
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
                messages[at] = replace(messages[at], said=said)
            else:
                lost.append(said)
        return replace(chat, messages=tuple(messages)), passed[-1], tuple(lost)

    def _said(self, owner: str, turn: Turn) -> ReplayedTurn | str:
        why = UNKNOWN
        for key in turn.keys:
            entry = self._shelf.get(owner, key)
            if entry is not None:
                if turn.agrees(entry):
                    return ReplayedTurn(unpacked(entry.opening), unpacked(entry.ids))
                why = EDITED
        return why

    def reuse(self, prompt: list[int], recalled: Recalled, voice: Voice) -> Reuse:
        """How much of a prompt was there before; it is the rendered one, or goes on from it."""
        rendered = recalled.rendered
        sequence = rendered.packed
        if len(sequence) != WIDTH * len(prompt):
            sequence = packed(prompt)
        trail = self._trails.get(self.name(voice))
        known, left = trail.known(voice.owner, sequence) if trail is not None else (0, False)
        return Reuse(
            len(prompt),
            known,
            left,
            sequence,
            recalled=rendered.recalled,
            lost=recalled.lost,
            place=recalled.place,
        )

    # After it was answered

    def note(
        self, voice: Voice, rows: dict[str, Entry], lasting: bool, source: str | None = None
    ) -> None:
        self._shelf.put(voice.owner, rows, source)
        if lasting:
            self._shelf.write(voice.owner, voice.model.id, rows, source)

    async def forget(self, owner: str, sources: Collection[str]) -> None:
        """Drop what these answers said. What is in a store goes with them there."""
        await self._shelf.forget(owner, sources)

    def trail(self, voice: Voice) -> Trail:
        name = self.name(voice)
        if name not in self._trails and len(self._trails) >= MODELS:
            del self._trails[next(iter(self._trails))]
        return self._trails.setdefault(name, Trail())

    def count(self, reuse: Reuse) -> None:
        stats = self.stats
        stats.tokens += reuse.tokens
        stats.known += reuse.known
        stats.recalled += reuse.recalled
        stats.lost.update(reuse.lost)

    def name(self, voice: Voice) -> str:
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


class Notes:
    """Hears the answer to one request, and remembers what each choice of it said."""

    def __init__(
        self, memory: Memory, voice: Voice, lasting: bool = False, source: str | None = None
    ) -> None:
        self._memory = memory
        self._voice = voice
        self._lasting = lasting
        self._source = source
        self._heard: defaultdict[int, list[Delta]] = defaultdict(list)
        self._asked: dict[int, tuple[Reuse, int | None]] = {}

    def ask(self, choices: range, reuse: Reuse, opened: int | None) -> None:
        """These choices are answers to a prompt; `opened` is where it opens them."""
        self._asked |= dict.fromkeys(choices, (reuse, opened))
        self._memory.count(reuse)
        self._memory.trail(self._voice).note(self._voice.owner, reuse.sequence)

    def hear(self, delta: Delta) -> None:
        self._heard[delta.choice].append(delta)

    def end(self, index: int, ids: list[int] | None, own: Collection[str]) -> None:
        """A choice is done: what its tokens are, if that is known, and call ids that are ours."""
        if ids is None or index not in self._asked:
            return
        reuse, opened = self._asked[index]
        prompt, answer = reuse.sequence, packed(ids)
        self._memory.trail(self._voice).note(self._voice.owner, prompt + answer)
        if opened is None or not ids:
            return
        [choice] = added(self._heard.pop(index)).choices()
        said = told(choice.text, ((call.name, call.arguments) for call in choice.calls))
        entry = Entry(said, thoughts(choice.reasoning), prompt[WIDTH * opened :], answer)
        name = self._memory.name(self._voice)
        keys = [_call_key(name, call.id) for call in choice.calls if call.id in own]
        keys.append(_turn_key(name, reuse.place, said))
        self._memory.note(self._voice, dict.fromkeys(keys, entry), self._lasting, self._source)


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
