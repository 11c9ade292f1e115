"""What the parser promises for every text of every format, as a function to run over your own.

    said = check_format(lambda: OutputParser(MY_FORMAT, tools=tools), text)
    assert said.calls == [("weather", {"city": "Paris"})]

However the text is cut, it means the same. Cut short at any place it is still read, and a call that
was handed out ends as a JSON object. Text and thoughts are pieces of the text, where the spans say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field

from dragoman.output.library import OutputParser
from dragoman.output.span import Span
from dragoman.testing.cuts import every_cut


class ParsedOutput(Struct):
    """What an answer says: text, thoughts, and calls with their arguments as they were written."""

    text: str = ""
    reasoning: str = ""
    raw_calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """The calls with their arguments as values."""
        return [(name, json.loads(arguments)) for name, arguments in self.raw_calls]


def fold_spans(spans: Iterable[Span]) -> ParsedOutput:
    """Spans added up; a call is its name and then its arguments, one call after the other."""
    said = ParsedOutput()
    for span in spans:
        if span.channel == "tool_name":
            assert span.call == len(said.raw_calls), "calls are numbered in order"
            said.raw_calls.append((span.text, ""))
        elif span.channel == "tool_args":
            assert span.call == len(said.raw_calls) - 1, "arguments belong to the last call"
            name, arguments = said.raw_calls[-1]
            said.raw_calls[-1] = (name, arguments + span.text)
        elif span.channel == "text":
            said.text += span.text
        else:
            said.reasoning += span.text
    return said


def parse_pieces(parser: OutputParser, pieces: Iterable[str], *, cut: bool = False) -> list[Span]:
    """The spans of a text in pieces."""
    return [span for piece in pieces for span in parser.feed(piece)] + parser.close(cut)


def check_format(
    make: Callable[[], OutputParser], text: str, *, randoms: int = 5, verbatim: bool = True
) -> ParsedOutput:
    """What a text means, after checking all that must hold for it; an `AssertionError` if not."""
    whole = fold_spans(parse_pieces(make(), [text]))
    for pieces in every_cut(text, randoms=randoms):
        assert fold_spans(parse_pieces(make(), pieces)) == whole, (
            f"cut as {pieces!r} it means something else"
        )
    for at in range(len(text)):
        start = text[:at]
        for _, arguments in fold_spans(parse_pieces(make(), [start])).raw_calls:
            assert isinstance(json.loads(arguments), dict), f"broken arguments after {start!r}"
        limited = fold_spans(parse_pieces(make(), [start], cut=True))
        assert fold_spans(parse_pieces(make(), start, cut=True)) == limited, (
            f"{start!r} depends on its pieces"
        )
    if verbatim:
        _check_places(
            parse_pieces(make(), [text[at : at + 3] for at in range(0, len(text), 3)]), text
        )
    return whole


def _check_places(spans: Iterable[Span], text: str) -> None:
    last = 0
    for span in spans:
        if span.channel in ("text", "reasoning"):
            end = span.start + len(span.text)
            assert text[span.start : end] == span.text, f"{span.text!r} is not at {span.start}"
            assert span.start >= last, "spans are in order"
            last = end
