"""Texts that do not end with a letter which their frame would take for its own.

Where a line feed before a closing mark is markup, a text that ends with one needs another. Without
it, only such texts can be written that end with something else.
"""

from __future__ import annotations

from functools import cached_property

from dragoman.grammar.client.lark_parser import (
    Alternation,
    Concatenation,
    Expression,
    Repetition,
    RuleCall,
    Terminal,
)
from dragoman.grammar.client.rule_writer import RuleWriter
from dragoman.grammar.lark_builder import EMPTY, format_repeat, join_alternatives


class UnpaddedTextWriter:
    """Writes the same rules once more, for the last part of a text."""

    def __init__(self, rewriting: RuleWriter) -> None:
        self._rules = rewriting
        self._grammar = rewriting.grammar
        self._names: dict[str, str] = {}

    def write_text(self) -> str | None:
        """An expression for the whole text; None where there is none, or none that we know of."""
        found = self._write_last(RuleCall("start")) if not self._grammar.ignored else None
        if found is None:
            return None
        return (
            f"({found} | {EMPTY})" if self._rules.follow_sets.is_nullable_rule("start") else found
        )

    @cached_property
    def _writable_rules(self) -> set[str]:
        found: set[str] = set()
        count = -1
        while count != (count := len(found)):
            found |= {
                name
                for name, body in self._grammar.rules.items()
                if name not in found and self._is_writable(body, found)
            }
        return found

    def _is_writable(self, part: Expression, rules: set[str]) -> bool:
        if not self._rules.is_writable(part, self._rules.writable_rules):
            return False
        match part:
            case Terminal():
                return self._rules.write_unpadded_terminal(part) is not None
            case RuleCall():
                return part.name in rules
            case Alternation():
                return any(self._is_writable(one, rules) for one in part.parts)
            case Repetition():
                return part.max_count != 0 and self._is_writable(part.part, rules)
            case Concatenation():
                return any(
                    self._is_writable(part.parts[at], rules) for at in self._last_positions(part)
                )

    def _last_positions(self, part: Concatenation) -> list[int]:
        """Places in a row that its text may end with."""
        found = []
        for at in range(len(part.parts) - 1, -1, -1):
            found.append(at)
            if not self._rules.follow_sets.is_nullable(part.parts[at]):
                break
        return found

    def _write_last(self, part: Expression) -> str | None:
        """A part that says something and ends the text."""
        if not self._is_writable(part, self._writable_rules):
            return None
        match part:
            case Terminal():
                return self._rules.write_unpadded_terminal(part)
            case RuleCall():
                return self._add_rule(part.name)
            case Alternation():
                return join_alternatives(
                    said for one in part.parts if (said := self._write_last(one))
                )
            case Repetition():
                most = None if part.max_count is None else part.max_count - 1
                before = f"({self._rules.write(part.part)}){format_repeat(max(0, part.min_count - 1), most)}"
                return f"{before if most != 0 else ''} {self._write_last(part.part)}"
            case Concatenation():
                return self._write_last_of_sequence(part)

    def _write_last_of_sequence(self, part: Concatenation) -> str:
        ends, found = self._last_positions(part), []
        before = " ".join(map(self._rules.write, part.parts[: ends[-1]]))
        for at in reversed(ends):
            said = self._write_last(part.parts[at])
            found += [] if said is None else [f"{before} {said}"]
            if at < ends[0]:
                before = self._rules.lark.add_rule(f"{before} {self._rules.write(part.parts[at])}")
        return join_alternatives(found)

    def _add_rule(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = own = self._rules.lark.reserve("last")
            self._rules.lark.define(own, self._write_last(self._grammar.rules[name]) or EMPTY)
        return self._names[name]
