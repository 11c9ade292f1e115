"""Named channels: the names decide where the text goes, however it is cut."""

from __future__ import annotations

import pytest

from dragoman.output.library import OutputParser
from dragoman.testing import every_cut

# A text, its reasoning, and its content.
CASES = [
    ("<|channel>thought\na<channel|>b", "a", "b"),
    ("<|channel>Thought\na<channel|>b", "a", "b"),
    ("<|channel>FINAL\nb", "", "b"),
    ("<|channel>finalB", "", "B"),
    ("<|channel> final b", "", "b"),
    ("a<|channel>Assistant\nb", "", "ab"),
    ("<|channel>thought", "", ""),
    ("<|channel>finals a<channel|>b", "finals a", "b"),
    ("a <|channel>", "", "a <|channel>"),
    ("<|channel>.a", "", "<|channel>.a"),
    ("<|channel>\n\nb", "", "<|channel>\n\nb"),
    ("<|channel><channel|>b", "", "<|channel>b"),
    ("<|channel>thought\na<|channel>final\nb", "a", "b"),
    ("<|channel>thought<channel|>b", "", "b"),
    ("<|channel>thought<|channel>final\nb", "thought", "b"),
    ("<|channel>thought <channel|>b", "thought ", "b"),
    ("<|channel><|channel>thought\na<channel|>b", "a", "b"),
    ("<|channel> <|channel>final\nb", "", "b"),
    ("<|channel><|channel>", "", "<|channel>"),
]


def read(pieces: list[str], *, truncated: bool = False) -> tuple[str, str]:
    parser = OutputParser(None, "gemma4_channel")
    spans = [span for piece in pieces for span in parser.feed(piece)]
    spans += parser.close(truncated=truncated)
    reasoning, text = (
        "".join(span.text for span in spans if span.channel == channel)
        for channel in ("reasoning", "text")
    )
    return reasoning, text


@pytest.mark.parametrize(("text", "reasoning", "content"), CASES)
def test_names_of_channels(text: str, reasoning: str, content: str) -> None:
    for pieces in every_cut(text):
        assert read(pieces) == (reasoning, content), pieces


@pytest.mark.parametrize("text", ["<|channel>", "<|channel>tho", "<|channel>fin"])
def test_truncated_marker_is_not_shown(text: str) -> None:
    for pieces in every_cut(text):
        assert read(pieces, truncated=True) == ("", ""), pieces
