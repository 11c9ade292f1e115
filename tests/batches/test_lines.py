"""Splitting a file into lines: the same lines for every cut, whatever the file contains."""

from __future__ import annotations

import random

import pytest

from dragoman.batches.lines import LineSplitter

MAX_LINE = 20


def split(pieces: list[bytes], max_line: int = MAX_LINE) -> list[tuple[int, bytes | None]]:
    splitter = LineSplitter(max_line)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return [(line.number, line.data) for line in [*lines, *splitter.finish()]]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n\n \t\r\n\n", []),
        (b"a", [(1, b"a")]),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\r\n\r\nb\r\n", [(1, b"a"), (3, b"b")]),
        (b"\xef\xbb\xbf{}\n{}", [(1, b"{}"), (2, b"{}")]),
        (b"\n\n\n a b \n\n\nc", [(4, b"a b"), (7, b"c")]),
        (b"x" * 100 + b"\ny\n" + b"z" * 100, [(1, None), (2, b"y"), (3, None)]),
        (b"\xff\xfe\n\0\n", [(1, b"\xff\xfe"), (2, b"\0")]),
        (b"a\x0bb\x0cc\xe2\x80\xa8d\n", [(1, b"a\x0bb\x0cc\xe2\x80\xa8d")]),
    ],
)
def test_lines_and_their_numbers(content: bytes, lines: list[tuple[int, bytes | None]]) -> None:
    found = split([content])
    assert [(number, data and data.strip()) for number, data in found] == lines
    for index in range(len(content)):
        assert strip(split([content[:index], content[index:]])) == lines
    assert strip(split([content[i : i + 1] for i in range(len(content))])) == lines


def strip(lines: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
    return [(number, data and data.strip()) for number, data in lines]


def test_every_cut_gives_the_same_lines() -> None:
    source = random.Random(1)
    for _ in range(300):
        content = bytes(source.choices(b"ab \r\n\n\t{", k=source.randrange(200)))
        cuts = sorted(source.choices(range(len(content) + 1), k=4))
        pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
        whole = strip(split([content]))
        assert strip(split(pieces)) == whole
        plain = [(n, line.strip()) for n, line in enumerate(content.split(b"\n"), 1)]
        expected = [(n, line) for n, line in plain if line]
        assert [n for n, _ in whole] == [n for n, _ in expected]


def test_millions_of_empty_lines_are_counted_but_not_made() -> None:
    chunk = b"\n" * (1 << 18)
    lines = split([chunk] * 40 + [b"{}\n"])
    assert strip(lines) == [(40 * (1 << 18) + 1, b"{}")]
