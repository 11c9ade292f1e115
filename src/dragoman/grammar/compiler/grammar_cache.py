"""The results of earlier compiles.

Errors are stored, too: a spec that takes long to reject must not take as long again. The key
contains the cache scope, so that no owner can find out what another has compiled.
"""

from __future__ import annotations

import sys
from typing import TypeAlias

from dragoman.errors import SerializedError
from dragoman.grammar.grammar_spec import CompiledGrammar
from dragoman.types.bounded_cache import BoundedCache

Key: TypeAlias = bytes  # a digest of the cache scope and the spec
Outcome: TypeAlias = CompiledGrammar | SerializedError

ENTRY_OVERHEAD = 400  # bytes of an entry besides its texts


class GrammarCache(BoundedCache[Key, Outcome]):
    """Grammars and errors by spec, bounded by number and by bytes."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        super().__init__(
            max_entries=max_entries,
            max_size=max_bytes,
            max_entry_size=max_bytes // 4,  # one spec must not push out all the others
            measure=_measure_entry,
        )


def _measure_entry(key: Key, outcome: Outcome) -> int:
    if isinstance(outcome, CompiledGrammar):
        texts = [outcome.grammar or "", *outcome.warnings]
    else:
        texts = [outcome.message, outcome.param or "", outcome.code or ""]
    return ENTRY_OVERHEAD + sum(map(sys.getsizeof, texts))
