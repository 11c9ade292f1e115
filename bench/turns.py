"""The next turn of a long chat: our prompt room against a plain template and a full encode.

Both use the same template and the same vocabulary, and their ids are compared. The peer is what a
server does that keeps nothing: render everything, encode everything.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from bench.measure import median, ratio
from bench.parts import Plan, Table
from dragoman.engines.llamacpp import gguf
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.from_gguf import backend_from_gguf
from dragoman.tokenizers.tokenizer import tokenizer_from_gguf
from dragoman.types import Chat, Message, text_content

TURNS = 41
WORDS = str.split(
    "the river town lamp letter quiet winter road bread stone answer garden machine signal paper "
    "number window engine morning between nothing something because however system result value "
    "def return import class function lambda yield async await object string integer list"
)


def talk(dice: random.Random, turns: int) -> list[Message]:
    """Turns of about 190 tokens each, user and assistant in turn."""
    made = []
    for turn in range(turns):
        words = [dice.choice(WORDS) for _ in range(150)]
        for at in range(12, 150, 13):
            words[at] += dice.choice(".,;:") + dice.choice(
                ["", "", "\n\n", f" {dice.random():.3f}"]
            )
        made.append(
            Message(role="assistant" if turn % 2 else "user", content=text_content(" ".join(words)))
        )
    return made


class Full:
    """Renders and encodes everything each time."""

    def __init__(self, header: gguf.GgufHeader) -> None:
        known = tokenizer_from_gguf(header.metadata)
        ours = backend_from_gguf(header.metadata)
        assert known is not None
        assert ours is not None
        prefix = "tokenizer.ggml."
        tokens: list[str] = header.metadata[prefix + "tokens"]
        merges = [tuple(pair.split(" ", 1)) for pair in header.metadata[prefix + "merges"]]
        vocabulary = {text: at for at, text in enumerate(tokens)}
        self._backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
        self._backend.pre_tokenizer = ours.pre_tokenizer
        if ours.normalizer is not None:
            self._backend.normalizer = ours.normalizer
        specials = [AddedToken(text, normalized=False) for text in known.specials]
        self._backend.add_special_tokens(specials)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(header.chat_template or "")
        self._variables = known.variables

    def ids(self, messages: list[Message]) -> list[int]:
        plain = [{"role": message.role, "content": message.content} for message in messages]
        text = self._template.render(messages=plain, add_generation_prompt=True, **self._variables)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


class Room:
    """Our prompt room."""

    def __init__(self, header: gguf.GgufHeader) -> None:
        self._prompter: Any = PromptRenderer(
            header.chat_template, tokenizer_from_gguf(header.metadata)
        )

    async def ids(self, messages: list[Message]) -> list[int]:
        rendered = await self._prompter.render(Chat(messages=tuple(messages)))
        ids: list[int] = rendered.ids
        return ids


async def compare(plan: Plan) -> tuple[list[float], list[float], list[float], int]:
    """CPU seconds of the next turn, ours and the peer's; of our first look; and tokens."""
    header = gguf.read_header(Path(plan.model))
    room, full = Room(header), Full(header)
    ours, theirs, cold, count = [], [], [], 0
    for number in range(-1, 2 * plan.rounds):
        history = talk(random.Random(number), TURNS + 2)
        begun = time.process_time()
        await room.ids(history[:TURNS])
        seen = time.process_time()
        mine = await room.ids(history)
        after = time.process_time()
        expected = full.ids(history)
        end = time.process_time()
        if mine != expected:
            raise SystemExit("our prompt room and the full encode disagree")
        count = len(mine)
        if number >= 0:
            cold.append(seen - begun)
            ours.append(after - seen)
            theirs.append(end - after)
    return ours, theirs, cold, count


def next_turn(plan: Plan) -> Table:
    """(d) What one more turn of a long chat costs before the engine is asked."""
    ours, theirs, cold, count = asyncio.run(compare(plan))
    return Table(
        f"(d) Next turn of a chat of {count:,} tokens: template and encode",
        ["", "ms CPU", "ours against it"],
        [
            ["ours, next turn", f"{1000 * median(ours):.2f}", ""],
            ["jinja2 and a full encode", f"{1000 * median(theirs):.2f}", str(ratio(ours, theirs))],
            ["ours, first look at the chat", f"{1000 * median(cold):.2f}", ""],
        ],
        ["The ids are the same. Lower is better."],
    )
