"""Finds the ids of tokens that end inside a character.

The server reports no token until its text is whole characters. A character of three bytes may be
three tokens, of which only the last is named; the count shows that two are missing. Their ids are
found from the bytes: the text minus the last token's bytes must be the missing tokens, one after
the other. Where the model wrote bytes that are not valid text, the server has put a replacement
character in their place, and any tokens that decode to the same text are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_REPLACEMENTS = re.compile("\ufffd+")
_MAX_TRIES = 200_000  # splits to look at before giving up


class PieceIndex:
    """The vocabulary by its bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._ids: dict[bytes, int] = {}
        self._partial_ids: list[int] = []  # tokens that end inside a character
        for token, piece in enumerate(pieces):
            if piece:
                self._ids.setdefault(piece, token)
                if ends_inside_character(piece):
                    self._partial_ids.append(token)
        self._longest = max(map(len, pieces), default=0)

    def find_missing(self, text: str, last: int, count: int) -> list[int] | None:
        """Return the `count` tokens before `last` in this text; None if no tokens fit."""
        data, tail = text.encode(), self._pieces[last]
        if data.endswith(tail):
            exact = next(self._iter_splits(data[: len(data) - len(tail)], count), None)
            if exact is not None:
                return exact
        return self._find_equivalent(_decode(data), tail, count)

    def _iter_splits(self, data: bytes, count: int) -> Iterator[list[int]]:
        """Yield every split of the bytes into `count` tokens, long tokens first."""
        if count == 0:
            if not data:
                yield []
            return
        for size in range(min(len(data) - count + 1, self._longest), 0, -1):
            token = self._ids.get(data[:size])
            if token is not None:
                for rest in self._iter_splits(data[size:], count - 1):
                    yield [token, *rest]

    def _find_equivalent(self, text: str, tail: bytes, count: int) -> list[int] | None:
        """Find tokens that end inside a character and, with the tail, decode to the text."""
        tries = 0
        candidates: list[tuple[list[int], bytes]] = [([], b"")]
        while candidates:
            ids, data = candidates.pop()
            if len(ids) == count:
                if _decode(data + tail) == text:
                    return ids
                continue
            for token in self._partial_ids:
                tries += 1
                if tries > _MAX_TRIES:
                    return None
                extended = data + self._pieces[token]
                if text.startswith(_decode(extended).rstrip("\ufffd")):
                    candidates.append(([*ids, token], extended))
        return None


def _decode(data: bytes) -> str:
    """Decode with one replacement character for each run: decoders differ in how many they use."""
    return _REPLACEMENTS.sub("\ufffd", data.decode(errors="replace"))


def ends_inside_character(piece: bytes) -> bool:
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return True
