"""Tokens that end inside a character.

The server tells of no token until the text it makes is whole characters. A character of three
bytes may be three tokens, and only the last of them is named; the count says that two are missing.
Their ids are found from the bytes: the text minus the last token's own must be the missing tokens,
one after the other. Where the model wrote bytes that are no text at all, the server has put a
replacement character in their place, and what is looked for is tokens that would read the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_REPLACED = re.compile("\ufffd+")
_TRIES = 200_000  # of splits that are looked at before giving up


class PieceIndex:
    """The vocabulary by its bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._ids: dict[bytes, int] = {}
        self._open: list[int] = []  # tokens that end inside a character
        for token, piece in enumerate(pieces):
            if piece:
                self._ids.setdefault(piece, token)
                if _unfinished(piece):
                    self._open.append(token)
        self._longest = max(map(len, pieces), default=0)

    def find_missing(self, text: str, last: int, count: int) -> list[int] | None:
        """The `count` tokens that came before `last` in this text; None if none would fit."""
        data, tail = text.encode(), self._pieces[last]
        if data.endswith(tail):
            exact = next(self._splits(data[: len(data) - len(tail)], count), None)
            if exact is not None:
                return exact
        return self._guess(_readable(data), tail, count)

    def _splits(self, data: bytes, count: int) -> Iterator[list[int]]:
        """Every way of cutting the bytes into so many tokens, long tokens first."""
        if count == 0:
            if not data:
                yield []
            return
        for size in range(min(len(data) - count + 1, self._longest), 0, -1):
            token = self._ids.get(data[:size])
            if token is not None:
                for rest in self._splits(data[size:], count - 1):
                    yield [token, *rest]

    def _guess(self, text: str, tail: bytes, count: int) -> list[int] | None:
        """Tokens that, with the tail, read like the text; only tokens that end in mid-character."""
        tries = 0
        paths: list[tuple[list[int], bytes]] = [([], b"")]
        while paths:
            ids, data = paths.pop()
            if len(ids) == count:
                if _readable(data + tail) == text:
                    return ids
                continue
            for token in self._open:
                tries += 1
                if tries > _TRIES:
                    return None
                grown = data + self._pieces[token]
                if text.startswith(_readable(grown).rstrip("\ufffd")):
                    paths.append(([*ids, token], grown))
        return None


def _readable(data: bytes) -> str:
    """As text, however many replacement characters a decoder puts in a row."""
    return _REPLACED.sub("\ufffd", data.decode(errors="replace"))


def _unfinished(piece: bytes) -> bool:
    """Does it end inside a character?"""
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return True
