"""The next turn of a long chat: our prompt renderer against plain jinja2 and a full encode.

Both use the same template and the same vocabulary, and their ids are compared. The peer does what a
server without a cache does: render everything, encode everything.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from statistics import median

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from bench.measure import compute_ratio
from bench.report import BenchOptions, Table
from dragoman.engines.llamacpp import gguf
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.from_gguf import backend_from_gguf
from dragoman.tokenizers.tokenizer import tokenizer_from_gguf
from dragoman.types import Chat, Message, Role, make_text_content

TURNS = 41
WORDS = str.split(
    "the river town lamp letter quiet winter road bread stone answer garden machine signal paper "
    "number window engine morning between nothing something because however system result value "
    "def return import class function lambda yield async await object string integer list"
)


def make_conversation(random_source: random.Random, turns: int) -> list[Message]:
    """Make turns of about 190 tokens each, by user and assistant alternately."""
    messages = []
    for turn in range(turns):
        words = [random_source.choice(WORDS) for _ in range(150)]
        for index in range(12, 150, 13):
            number = f" {random_source.random():.3f}"
            mark = random_source.choice(".,;:")
            words[index] += mark + random_source.choice(["", "", "\n\n", number])
        role: Role = "assistant" if turn % 2 else "user"
        messages.append(Message(role=role, content=make_text_content(" ".join(words))))
    return messages


class FullEncoder:
    """Renders and encodes everything each time."""

    def __init__(self, header: gguf.GgufHeader) -> None:
        tokenizer = tokenizer_from_gguf(header.metadata)
        ours = backend_from_gguf(header.metadata)
        assert tokenizer is not None
        assert ours is not None
        prefix = "tokenizer.ggml."
        tokens: list[str] = header.metadata[prefix + "tokens"]
        merges = [tuple(pair.split(" ", 1)) for pair in header.metadata[prefix + "merges"]]
        vocabulary = {text: token for token, text in enumerate(tokens)}
        self._backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
        self._backend.pre_tokenizer = ours.pre_tokenizer
        if ours.normalizer is not None:
            self._backend.normalizer = ours.normalizer
        specials = [AddedToken(text, normalized=False) for text in tokenizer.specials]
        self._backend.add_special_tokens(specials)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(header.chat_template or "")
        self._variables = tokenizer.variables

    def encode(self, messages: list[Message]) -> list[int]:
        plain = [
            {"role": message.role, "content": flatten_content(message.content)}
            for message in messages
        ]
        text = self._template.render(messages=plain, add_generation_prompt=True, **self._variables)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


async def compare(options: BenchOptions) -> tuple[list[float], list[float], list[float], int]:
    """Measure CPU seconds: of the next turn, ours and the peer's, and of our first rendering.

    The last value is the number of tokens.
    """
    header = gguf.read_header(Path(options.model))
    renderer = PromptRenderer(header.chat_template, tokenizer_from_gguf(header.metadata))
    encoder = FullEncoder(header)
    ours, theirs, cold, count = [], [], [], 0
    for number in range(-1, 2 * options.rounds):
        history = tuple(make_conversation(random.Random(number + 1), TURNS + 2))
        started = time.process_time()
        await renderer.render(Chat(messages=history[:TURNS]))
        first = time.process_time()
        rendered = await renderer.render(Chat(messages=history))
        second = time.process_time()
        expected = encoder.encode(list(history))
        end = time.process_time()
        if rendered.ids != expected:
            raise SystemExit("the prompt renderer and the full encode disagree")
        count = len(expected)
        if number >= 0:
            cold.append(first - started)
            ours.append(second - first)
            theirs.append(end - second)
    return ours, theirs, cold, count


def measure_next_turn(options: BenchOptions) -> Table:
    """(d) What one more turn of a long chat costs before the engine starts."""
    ours, theirs, cold, count = asyncio.run(compare(options))
    ratio = compute_ratio(ours, theirs)
    return Table(
        f"(d) Next turn of a chat of {count:,} tokens: template and encode",
        ["", "ms CPU", "dragoman / peer"],
        [
            ["dragoman, next turn", f"{1000 * median(ours):.2f}", ""],
            ["jinja2 and a full encode", f"{1000 * median(theirs):.2f}", str(ratio)],
            ["dragoman, first rendering of the chat", f"{1000 * median(cold):.2f}", ""],
        ],
        ["The token ids are the same. Lower is better."],
    )
