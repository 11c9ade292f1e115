"""The results of earlier compiles."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TypeAlias

from dragoman.errors import SerializedError
from dragoman.grammar.grammar_spec import CompiledGrammar

Key: TypeAlias = bytes  # a digest of the spec
Outcome: TypeAlias = CompiledGrammar | SerializedError

ENTRY_OVERHEAD = 400  # bytes of an entry besides its texts


class GrammarCache:
    """Grammars and errors by spec, least recently used first; bounded by number and by bytes."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, tuple[Outcome, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Outcome | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, outcome: Outcome) -> None:
        size = ENTRY_OVERHEAD + _measure_texts(outcome)
        if size > self._max_bytes // 4:  # one spec must not push out all the others
            return
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        self._entries[key] = outcome, size
        self.bytes += size
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            self.bytes -= self._entries.popitem(last=False)[1][1]


def _measure_texts(outcome: Outcome) -> int:
    if isinstance(outcome, CompiledGrammar):
        texts = [outcome.grammar or "", *outcome.warnings]
    else:
        texts = [outcome.message, outcome.param or "", outcome.code or ""]
    return sum(map(sys.getsizeof, texts))
