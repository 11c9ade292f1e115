"""Markers that are special tokens: a grammar has them by id, and no text can spell them.

A model writes such a marker as one token. Spelled as text, it would mean the same to the parser. So
text must not spell a marker where the parser would act on it: in text, in reasoning, in content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.testing import ByteTokenizer
from dragoman.testing.grammars import BYTE_PIECES
from dragoman.types import Constraint
from tests.support.grammars import compile_spec

SPECIAL_TOKENS: dict[tuple[str, str], tuple[str, ...]] = {
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
# the markers that the parser would act on in text, reasoning or a value
ACTIVE_MARKERS = {
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


class SpecialTokenModel:
    """A model whose markers are special tokens."""

    def __init__(self, name: str, reasoning: str) -> None:
        self.control = SPECIAL_TOKENS[name, reasoning]
        self._tokenizer = ByteTokenizer(self.control)
        self._pieces = (*BYTE_PIECES, *(marker.encode() for marker in self.control), b"<|over|>")
        end = len(self._pieces) - 1
        self._masker = TokenMasker(self._pieces, {end}, range(256, end + 1))
        self._spec = {
            "tool_format": name,
            "reasoning_format": reasoning,
            "starts_in_reasoning": False,
            "special_tokens": {marker: 256 + at for at, marker in enumerate(self.control)},
        }
        self.tools = OTHER_TOOLS.get(name, TOOLS)

    def compile(self, **fields: Any) -> str:
        return compile_spec(self.tools, **(self._spec | fields))

    def encode(self, text: str) -> list[int]:
        """Encode a text, with its markers as special tokens."""
        return self._tokenizer.encode_with_specials(text)

    def allows(self, source: str, ids: Sequence[int]) -> bool:
        state = self._masker.start_grammar(source)
        try:
            for token in ids:
                state.get_mask()
                state.advance(token)
        except BadRequest:
            return False
        return state.is_accepting


PAIRS = [pytest.param(*pair, id=pair[0]) for pair in SPECIAL_TOKENS]


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(("name", "reasoning"), PAIRS)
def test_markers_are_special_tokens_and_not_text(name: str, reasoning: str) -> None:
    model = SpecialTokenModel(name, reasoning)
    call, reasoned = get_tool_formats()[name].example, get_reasoning_formats()[reasoning].example
    forced, free = model.compile(tool_choice="required"), model.compile()
    for source in (forced, free):
        assert model.allows(source, model.encode(call))
        assert not model.allows(source, encode_bytes(call))
    assert model.allows(free, model.encode(reasoned))
    assert not model.allows(forced, model.encode(reasoned))
    for marker in model.control:
        if marker in call:
            before, after = call.split(marker, 1)
            spelled = [*model.encode(before), *encode_bytes(marker), *model.encode(after)]
            assert not model.allows(forced, spelled), marker


@pytest.mark.parametrize(("name", "reasoning"), PAIRS)
def test_text_cannot_spell_a_marker(name: str, reasoning: str) -> None:
    model = SpecialTokenModel(name, reasoning)
    constraint = Constraint(kind="json", value=None, param="response_format")
    free, constrained = model.compile(), model.compile(constraint=constraint)
    example = get_reasoning_formats()[reasoning].example
    before, between, after = (
        model.encode(part) for part in example.replace("answer", "reasoning").split("reasoning")
    )
    value = encode_bytes('{"k": "v"}')
    assert model.allows(
        free, [*before, *encode_bytes("1 < 2"), *between, *encode_bytes("Yes"), *after]
    )
    assert model.allows(constrained, [*before, *encode_bytes("1 < 2"), *between, *value, *after])
    for marker in ACTIVE_MARKERS[name]:
        quote = encode_bytes(f"A {marker} B")
        assert not model.allows(free, [*before, *quote, *between, *encode_bytes("x"), *after]), (
            marker
        )
        assert not model.allows(free, [*before, *quote]), marker
        assert not model.allows(free, [*before, *encode_bytes("x"), *between, *quote, *after]), (
            marker
        )
        assert not model.allows(free, quote), marker
        value = encode_bytes(f'{{"k": "{marker}"}}')
        assert not model.allows(
            constrained, [*before, *encode_bytes("x"), *between, *value, *after]
        ), marker


def test_text_between_special_tokens_has_its_minimum_length() -> None:
    model = SpecialTokenModel("gemma4", "gemma4_channel")
    source = model.compile(tool_choice="required")
    for city, right in (("Rom", True), ("<b>'\"|", True), ("", False)):
        text = f'<|tool_call>call:f{{city:<|"|>{city}<|"|>}}<tool_call|>'
        assert model.allows(source, model.encode(text)) is right
