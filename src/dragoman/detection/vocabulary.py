"""Chooses formats by the special tokens of a model, for templates that never write a call.

A model that was trained on a format often has the format's markers as special tokens. The example
of a format shows which of its tags could be tokens: the more of them the vocabulary has, and the
fewer it lacks, the better the format fits. The vocabulary decides if one format fits best, or if
one of those that fit equally well also reads the examples of the others. Otherwise it decides
nothing: DeepSeek V3 and V3.1 have the same tokens, but write different calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from dragoman.detection.examples import parse_example
from dragoman.detection.markers import allows_unmarked_calls, get_call_openers
from dragoman.detection.round_trip import parse_answer
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.library import OutputParser, collect_markers
from dragoman.output.spec import GAP, ReasoningFormat, ToolFormat

# tags without attributes, which a vocabulary can have as tokens
TAG = re.compile(r"<[^<>\s=]{1,60}>|\[/?[A-Z_]{2,30}\]|◁[^◁▷\s]{1,30}▷")
SPACE = re.compile(rf"[\s{GAP}]+")
AnyFormat = TypeVar("AnyFormat", ToolFormat, ReasoningFormat)


@dataclass(frozen=True)
class VocabularyChoice(Generic[AnyFormat]):
    """The format that the vocabulary decides for, or the formats among which it cannot decide."""

    format: AnyFormat | None = None
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenFit(Generic[AnyFormat]):
    """How well a format fits a vocabulary."""

    format: AnyFormat
    tokens: frozenset[str]  # markers that are tokens
    missing: int  # tags of the example that are not
    unused: int  # other markers that are not

    def is_worse_than(self, other: TokenFit[AnyFormat]) -> bool:
        if not self.tokens <= other.tokens or other.missing > self.missing:
            return False
        return self.tokens != other.tokens or other.missing < self.missing


def match_tools_by_vocabulary(vocabulary: Container[str]) -> VocabularyChoice[ToolFormat]:
    """Return the tool format whose markers are tokens of the model."""
    fits = [
        _measure_fit(tools, collect_markers(tools, None), vocabulary)
        for tools in get_tool_formats().values()
        if not allows_unmarked_calls(tools)
        and any(_is_in_vocabulary(marker, vocabulary) for marker in get_call_openers(tools))
    ]
    # the markers of headers are common in chat formats: all of them must be tokens
    return _choose(
        [fit for fit in fits if fit.format.header is None or not fit.missing], _reads_calls
    )


def match_reasoning_by_vocabulary(vocabulary: Container[str]) -> VocabularyChoice[ReasoningFormat]:
    """Return the reasoning format whose markers are tokens of the model."""
    fits = [
        _measure_fit(reasoning, collect_markers(None, reasoning), vocabulary)
        for reasoning in get_reasoning_formats().values()
        if not reasoning.keeps_markers
        and all(
            any(_is_in_vocabulary(marker, vocabulary) for marker in markers)
            for markers in (reasoning.open, reasoning.close)
        )
    ]
    return _choose(fits, _reads_reasoning)


def _measure_fit(
    output_format: AnyFormat, markers: Iterable[str], vocabulary: Container[str]
) -> TokenFit[AnyFormat]:
    tags, markers = _find_tags(output_format.example), frozenset(markers)
    tokens = frozenset(text for text in tags | markers if text in vocabulary)
    return TokenFit(output_format, tokens, len(tags - tokens), len(markers - tokens))


def _choose(
    fits: Sequence[TokenFit[AnyFormat]], reads: Callable[[AnyFormat, AnyFormat], bool]
) -> VocabularyChoice[AnyFormat]:
    """Choose the best fit; of several, one that reads what the others write."""
    best = [fit for fit in fits if not any(fit.is_worse_than(other) for other in fits)]
    best.sort(key=lambda fit: fit.unused)
    for fit in best:
        others = [other.format for other in best if other is not fit]
        if all(reads(fit.format, other) for other in others):
            return VocabularyChoice(fit.format, tuple(other.name for other in others))
    return VocabularyChoice(rivals=tuple(sorted(fit.format.name for fit in best)))


def _is_in_vocabulary(marker: str, vocabulary: Container[str]) -> bool:
    """Whether a marker is a token, or consists of several."""
    tags = TAG.findall(marker)
    is_joined = bool(tags) and "".join(tags) == SPACE.sub("", marker)
    return marker in vocabulary or (is_joined and all(tag in vocabulary for tag in tags))


@lru_cache(maxsize=256)
def _find_tags(example: str) -> frozenset[str]:
    return frozenset(TAG.findall(example))


def _reads_calls(tools: ToolFormat, other: ToolFormat) -> bool:
    """Whether a format parses the example of another one completely."""
    turn = parse_answer(OutputParser(tools.name), other.example)
    return turn.calls == parse_example(other).calls and not turn.text.strip()


def _reads_reasoning(reasoning: ReasoningFormat, other: ReasoningFormat) -> bool:
    """Whether a format separates reasoning and answer in the example of another one."""
    turn, expected = (
        parse_answer(OutputParser(reasoning=entry.name), other.example)
        for entry in (reasoning, other)
    )
    return (turn.reasoning.strip(), turn.text.strip()) == (
        expected.reasoning.strip(),
        expected.text.strip(),
    )
