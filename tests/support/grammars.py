"""Compiles grammars for tests, and walks through them at random.

A walk chooses one allowed byte after another. With uniform choices it would not end, so it prefers
bytes that close something and ordinary characters, and sometimes it spells a marker of the format:
in the right place that closes something, in the wrong place it tests the grammar.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import jsonschema
import msgspec

from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest
from dragoman.formats import find_reasoning, find_tools, get_reasoning_formats
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.output.library import OutputParser, collect_markers
from dragoman.testing.format_checks import ParsedOutput, fold_spans, parse_pieces
from dragoman.testing.grammars import BYTE_PIECES
from dragoman.types import Tool

Schemas = Mapping[str, Any]  # of tools, by their names

CLOSING = frozenset(b"\"'}])<>|/")
PLAIN = frozenset(range(32, 127))
SPACE = ord(" ")
LETTERS = frozenset(string.ascii_letters.encode())
LIKELY = PLAIN - frozenset(b" 0123456789+-eE{[\\")  # bytes that do not make values longer
QUOTES = ('"', "'") * 4
WIDE = 60  # if more bytes than this are allowed, the position is inside text
END = len(BYTE_PIECES)


def make_object(required: str = "", additional: Any = False, **properties: Any) -> dict[str, Any]:
    """The schema of an object; `required` are names with spaces between them."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": additional,
    }


def make_tools(schemas: Schemas) -> tuple[Tool, ...]:
    return tuple(Tool(name=name, parameters=schema) for name, schema in schemas.items())


def compile_spec(tools: Schemas | None = None, **fields: Any) -> str:
    """Compile a spec with these tools and fields."""
    return _compile_encoded(
        msgspec.json.encode(GrammarSpec(tools=make_tools(tools or {}), **fields))
    )


@lru_cache(maxsize=256)
def _compile_encoded(spec: bytes) -> str:
    grammar = compile_grammar(msgspec.json.decode(spec, type=GrammarSpec)).grammar
    assert grammar is not None
    return grammar


def get_reasoning_format(name: str) -> str:
    """A reasoning format that is used with a tool format."""
    return (
        name if name in get_reasoning_formats() else find_tools(name).default_reasoning or "think"
    )


@cache
def _get_masker() -> TokenMasker:
    return TokenMasker((*BYTE_PIECES, b"<|end|>"), {END}, {END})


@lru_cache(maxsize=4096)  # most masks occur again and again
def _list_tokens(mask: bytes) -> frozenset[int]:
    bits = int.from_bytes(mask, "little")
    return frozenset(token for token in range(END + 1) if bits >> token & 1)


class GrammarWalk:
    """A random path through a grammar, which prefers to write `words`."""

    def __init__(self, source: str, chance: random.Random, words: Iterable[str] = ()) -> None:
        self._state = _get_masker().start_grammar(source)
        self._chance = chance
        self._words = [word.encode() for word in sorted((*words, *QUOTES))]
        self._spelling = b""
        self._text = bytearray()

    def run(self, start: str = "", steps: int = 120) -> str | None:
        """Return the text of a walk that begins with `start`.

        Return None if that is not allowed, if the walk does not end, or if it ends inside a
        character.
        """
        try:
            for byte in start.encode():
                self._advance(byte)
        except BadRequest:
            return None
        taken = 0  # steps with a choice
        while taken < steps:
            allowed, tired = _list_tokens(self._state.get_mask()), taken / steps
            if END in allowed and (len(allowed) == 1 or self._chance.random() < 0.4 + tired):
                break
            taken += len(allowed) > 1 and not self._spelling
            self._advance(self._choose(allowed - {END}, tired))
        else:
            return None
        try:
            return self._text.decode()
        except UnicodeDecodeError:
            return None

    def _advance(self, byte: int) -> None:
        self._state.advance(byte)
        self._text.append(byte)

    def _choose(self, allowed: frozenset[int], tired: float) -> int:
        chance = self._chance
        if not self._spelling and len(allowed) > WIDE and chance.random() < 0.2 + tired:
            self._spelling = chance.choice(self._words)
        byte, self._spelling = next(iter(self._spelling), None), self._spelling[1:]
        if byte in allowed:
            return byte
        self._spelling = b""
        closing = sorted(allowed & CLOSING)
        if closing and len(allowed) <= WIDE and chance.random() < 0.4 + tired:
            return chance.choice(closing)
        is_fork = allowed <= LETTERS or (len(allowed) == 2 and SPACE in allowed)
        if is_fork and len(allowed) <= WIDE:  # of markers or names
            return chance.choice(sorted(allowed))
        return chance.choice(sorted(allowed & LIKELY) or sorted(allowed & PLAIN) or sorted(allowed))


class FormatPair:
    """A tool format and a reasoning format, with the tools that may be called."""

    def __init__(self, name: str, tools: Schemas, reasoning: str | None = None) -> None:
        self.name = name
        self.tools = tools
        self.reasoning = reasoning or get_reasoning_format(name)
        self._words = collect_markers(find_tools(name), find_reasoning(self.reasoning))

    def compile(self, **fields: Any) -> str:
        formats = {"tool_format": self.name, "reasoning_format": self.reasoning}
        return compile_spec(self.tools, **({"starts_in_reasoning": False} | formats | fields))

    def iter_walks(
        self, source: str, chance: random.Random, starts: Iterable[str]
    ) -> Iterator[str]:
        """Yield texts that the grammar allows, each with one of these starts."""
        for start in starts:
            text = GrammarWalk(source, chance, self._words).run(start)
            if text is not None:
                yield text

    def parse(self, text: str) -> ParsedOutput:
        parser = OutputParser(self.name, self.reasoning, tools=make_tools(self.tools), inside=False)
        return fold_spans(parse_pieces(parser, [text]))

    def find_error(self, text: str, *, forced: bool) -> str | None:
        """Describe what is wrong with an answer; `forced` answers consist of calls."""
        output = self.parse(text)
        if forced and (output.text.strip() or not output.raw_calls):
            return f"not only calls: {output.text!r} beside {output.raw_calls!r}"
        for name, arguments in output.raw_calls:
            try:
                jsonschema.validate(json.loads(arguments), self.tools[name])
            except jsonschema.ValidationError as error:
                return f"{name} of {arguments}: {error.message}"
        return None
