"""Marks that are control tokens: a grammar knows them by number, and nothing spells them.

A model writes such a mark as one token. In letters it would mean the same to whoever reads the
text, so letters must not make one where a mark means something: in text, in thoughts, in content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.testing import ByteTokenizer
from dragoman.testing.grammars import BYTE_PIECES
from dragoman.types import Constraint
from tests.support.grammars import compile_spec

CONTROL: dict[tuple[str, str], tuple[str, ...]] = {
    ("deepseek_v31", "think"): (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    ("kimi_k2", "think"): (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    ("gemma4", "gemma4_channel"): (
        "<|tool_call>",
        "<tool_call|>",
        "<|channel>",
        "<channel|>",
        '<|"|>',
    ),
    ("cohere_cmd3", "cohere_thinking"): (
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ),
    ("harmony", "harmony"): (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    ("mistral", "mistral_think"): ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
}
# those that would mean something in a text, a thought or a value
MEANT = {
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    "gemma4": ("<|tool_call>", "<|channel>", "<channel|>"),
    "cohere_cmd3": ("<|START_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    "mistral": ("[TOOL_CALLS]", "[THINK]", "[/THINK]"),
}
NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "s": {"type": "string"}}}
PLACES = {
    "city": {"type": "string", "minLength": 1},
    "n": NUMBER,
    "o": {"type": "object"},
    "l": {"type": "array", "items": NUMBER},
}
TOOLS: dict[str, Any] = {"f": PARAMETERS | {"required": ["a"], "additionalProperties": False}}
OTHER_TOOLS = {"gemma4": {"f": {"type": "object", "properties": PLACES, "required": ["city"]}}}


class Speaker:
    """A model whose marks are control tokens."""

    def __init__(self, name: str, reasoning: str) -> None:
        self.control = CONTROL[name, reasoning]
        self._tokenizer = ByteTokenizer(self.control)
        self._pieces = (*BYTE_PIECES, *(mark.encode() for mark in self.control), b"<|over|>")
        end = len(self._pieces) - 1
        self._masker = TokenMasker(self._pieces, {end}, range(256, end + 1))
        self._order = {
            "tool_format": name,
            "reasoning_format": reasoning,
            "starts_in_reasoning": False,
            "special_tokens": {mark: 256 + at for at, mark in enumerate(self.control)},
        }
        self.tools = OTHER_TOOLS.get(name, TOOLS)

    def grammar(self, **order: Any) -> str:
        return compile_spec(self.tools, **(self._order | order))

    def ids(self, text: str) -> list[int]:
        """A text in which marks are tokens."""
        return self._tokenizer.encode_with_specials(text)

    def may_say(self, source: str, ids: Sequence[int]) -> bool:
        following = self._masker.start_grammar(source)
        try:
            for token in ids:
                following.get_mask()
                following.advance(token)
        except BadRequest:
            return False
        return following.is_accepting


PAIRS = [pytest.param(*pair, id=pair[0]) for pair in CONTROL]


def letters(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(("name", "reasoning"), PAIRS)
def test_marks_are_tokens_and_not_letters(name: str, reasoning: str) -> None:
    speaker = Speaker(name, reasoning)
    call, thoughts = tool_formats()[name].example, reasoning_formats()[reasoning].example
    forced, free = speaker.grammar(tool_choice="required"), speaker.grammar()
    for source in (forced, free):
        assert speaker.may_say(source, speaker.ids(call))
        assert not speaker.may_say(source, letters(call))
    assert speaker.may_say(free, speaker.ids(thoughts))
    assert not speaker.may_say(forced, speaker.ids(thoughts))
    for mark in speaker.control:
        if mark in call:
            before, after = call.split(mark, 1)
            spelt = [*speaker.ids(before), *letters(mark), *speaker.ids(after)]
            assert not speaker.may_say(forced, spelt), mark


@pytest.mark.parametrize(("name", "reasoning"), PAIRS)
def test_letters_make_no_mark(name: str, reasoning: str) -> None:
    speaker = Speaker(name, reasoning)
    shape = Constraint(kind="json", value=None, param="response_format")
    free, shaped = speaker.grammar(), speaker.grammar(constraint=shape)
    example = reasoning_formats()[reasoning].example
    before, between, after = (
        speaker.ids(part) for part in example.replace("answer", "thoughts").split("thoughts")
    )
    value = letters('{"k": "v"}')
    assert speaker.may_say(free, [*before, *letters("1 < 2"), *between, *letters("Yes"), *after])
    assert speaker.may_say(shaped, [*before, *letters("1 < 2"), *between, *value, *after])
    for mark in MEANT[name]:
        quote = letters(f"A {mark} B")
        assert not speaker.may_say(free, [*before, *quote, *between, *letters("x"), *after]), mark
        assert not speaker.may_say(free, [*before, *quote]), mark
        assert not speaker.may_say(free, [*before, *letters("x"), *between, *quote, *after]), mark
        assert not speaker.may_say(free, quote), mark
        value = letters(f'{{"k": "{mark}"}}')
        assert not speaker.may_say(shaped, [*before, *letters("x"), *between, *value, *after]), mark


def test_a_text_between_tokens_is_as_long_as_it_must_be() -> None:
    speaker = Speaker("gemma4", "gemma4_channel")
    source = speaker.grammar(tool_choice="required")
    for city, right in (("Rom", True), ("<b>'\"|", True), ("", False)):
        text = f'<|tool_call>call:f{{city:<|"|>{city}<|"|>}}<tool_call|>'
        assert speaker.may_say(source, speaker.ids(text)) is right
