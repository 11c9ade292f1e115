"""Checks that a format is parsed the same however its text is cut; for your own formats, too.

    output = check_format(lambda: OutputParser(MY_FORMAT, tools=tools), text)
    assert output.calls == [("weather", {"city": "Paris"})]

The result does not depend on the cuts. Text that is truncated at any position is still parsed, and
the arguments of every call are a JSON object. Text and reasoning are unchanged parts of the input,
at the positions that their spans give.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from dragoman.output.library import OutputParser
from dragoman.output.span import Span
from dragoman.testing.cuts import every_cut
from dragoman.types import Json

LAST_CHARACTERS = 32  # of a truncated text that are fed one by one


class ParsedOutput(Struct):
    """A parsed output: text, reasoning, and calls with their arguments as JSON text."""

    text: str = ""
    reasoning: str = ""
    raw_calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, Json]]:
        """The calls with their arguments as values."""
        return [(name, json.loads(arguments)) for name, arguments in self.raw_calls]


def fold_spans(spans: Iterable[Span]) -> ParsedOutput:
    """Combine spans into an output; each call is its name and then its arguments."""
    output = ParsedOutput()
    for span in spans:
        if span.channel == "tool_name":
            assert span.call == len(output.raw_calls), "calls must be numbered in order"
            output.raw_calls.append((span.text, ""))
        elif span.channel == "tool_args":
            assert span.call == len(output.raw_calls) - 1, "arguments must follow their call's name"
            name, arguments = output.raw_calls[-1]
            output.raw_calls[-1] = (name, arguments + span.text)
        elif span.channel == "text":
            output.text += span.text
        else:
            output.reasoning += span.text
    return output


def parse_pieces(
    parser: OutputParser, pieces: Iterable[str], *, truncated: bool = False
) -> list[Span]:
    """Parse a text in pieces; `truncated`: the token limit ended it."""
    return [span for piece in pieces for span in parser.feed(piece)] + parser.close(truncated)


def check_format(
    make_parser: Callable[[], OutputParser],
    text: str,
    *,
    random_cuts: int = 5,
    verbatim: bool = True,
) -> ParsedOutput:
    """Run all checks on a text and return its parsed output; raise `AssertionError` on a failure.

    `random_cuts` is how many random cuts to try. Pass `verbatim=False` for a format whose text is
    not an unchanged part of the output.
    """
    whole = fold_spans(parse_pieces(make_parser(), [text]))
    for pieces in every_cut(text, random_cuts=random_cuts):
        output = fold_spans(parse_pieces(make_parser(), pieces))
        assert output == whole, f"cut into {pieces!r}, it is parsed differently"
    for position in range(len(text)):
        _check_truncated(make_parser, text[:position])
    if verbatim:
        pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
        _check_positions(parse_pieces(make_parser(), pieces), text)
    return whole


def _check_truncated(make_parser: Callable[[], OutputParser], start: str) -> None:
    for _, arguments in fold_spans(parse_pieces(make_parser(), [start])).raw_calls:
        assert isinstance(json.loads(arguments), dict), f"invalid arguments after {start!r}"
    limited = fold_spans(parse_pieces(make_parser(), [start], truncated=True))
    # characters all the way would take a time that is quadratic in the length
    pieces = [start[:-LAST_CHARACTERS], *start[-LAST_CHARACTERS:]]
    by_character = fold_spans(parse_pieces(make_parser(), pieces, truncated=True))
    assert by_character == limited, f"{start!r} depends on its pieces"


def _check_positions(spans: Iterable[Span], text: str) -> None:
    last = 0
    for span in spans:
        if span.channel in ("text", "reasoning"):
            end = span.start + len(span.text)
            assert text[span.start : end] == span.text, f"{span.text!r} is not at {span.start}"
            assert span.start >= last, "spans must be in order"
            last = end
