"""Texts that do not end with a letter which their frame would take for its own.

Where a line feed before a closing mark is markup, a text that ends with one needs another. Without
it, only such texts can be written that end with something else.
"""

from __future__ import annotations

from functools import cached_property

from dragoman.grammar.client.lark_parser import Called, Expr, Leaf, Options, Row, Times
from dragoman.grammar.client.rule_writer import Rewriting
from dragoman.grammar.lark_builder import EMPTY, format_repeat, join_alternatives


class Ending:
    """Writes the same rules once more, for the last part of a text."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._all = rewriting
        self._grammar = rewriting.grammar
        self._names: dict[str, str] = {}

    def text(self) -> str | None:
        """An expression for the whole text; None where there is none, or none that we know of."""
        found = self._last(Called("start")) if not self._grammar.ignored else None
        if found is None:
            return None
        return f"({found} | {EMPTY})" if self._all.follow.empty("start") else found

    @cached_property
    def _possible(self) -> set[str]:
        found: set[str] = set()
        count = -1
        while count != (count := len(found)):
            found |= {
                name
                for name, body in self._grammar.rules.items()
                if name not in found and self._can_be(body, found)
            }
        return found

    def _can_be(self, part: Expr, rules: set[str]) -> bool:
        if not self._all.can_be(part, self._all.possible):
            return False
        match part:
            case Leaf():
                return self._all.unbroken(part) is not None
            case Called():
                return part.name in rules
            case Options():
                return any(self._can_be(one, rules) for one in part.parts)
            case Times():
                return part.most != 0 and self._can_be(part.part, rules)
            case Row():
                return any(self._can_be(part.parts[at], rules) for at in self._ends(part))

    def _ends(self, part: Row) -> list[int]:
        """Places in a row that its text may end with."""
        found = []
        for at in range(len(part.parts) - 1, -1, -1):
            found.append(at)
            if not self._all.follow.may_be_empty(part.parts[at]):
                break
        return found

    def _last(self, part: Expr) -> str | None:
        """A part that says something and ends the text."""
        if not self._can_be(part, self._possible):
            return None
        match part:
            case Leaf():
                return self._all.unbroken(part)
            case Called():
                return self._rule(part.name)
            case Options():
                return join_alternatives(said for one in part.parts if (said := self._last(one)))
            case Times():
                most = None if part.most is None else part.most - 1
                before = (
                    f"({self._all.written(part.part)}){format_repeat(max(0, part.least - 1), most)}"
                )
                return f"{before if most != 0 else ''} {self._last(part.part)}"
            case Row():
                return self._last_of_row(part)

    def _last_of_row(self, part: Row) -> str:
        ends, found = self._ends(part), []
        before = " ".join(map(self._all.written, part.parts[: ends[-1]]))
        for at in reversed(ends):
            said = self._last(part.parts[at])
            found += [] if said is None else [f"{before} {said}"]
            if at < ends[0]:
                before = self._all.lark.add_rule(f"{before} {self._all.written(part.parts[at])}")
        return join_alternatives(found)

    def _rule(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = own = self._all.lark.reserve("last")
            self._all.lark.define(own, self._last(self._grammar.rules[name]) or EMPTY)
        return self._names[name]
