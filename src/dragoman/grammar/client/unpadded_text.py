"""Texts that do not end with the padding character.

Where a newline before a closing marker is padding, a text that ends with a newline needs another.
Without padding, only texts that end with something else can be written.
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
from dragoman.grammar.client.rule_writer import RuleWriter, find_writable_rules
from dragoman.grammar.lark_builder import EMPTY, format_repeat, join_alternatives


class UnpaddedTextWriter:
    """Writes the rules of a grammar once more, for the last part of a text."""

    def __init__(self, rules: RuleWriter) -> None:
        self._rules = rules
        self._grammar = rules.grammar
        self._names: dict[str, str] = {}

    def write_text(self) -> str | None:
        """Return an expression for the whole text, or None if there is no such text.

        It is None as well for a grammar that ignores terminals, for which this is not implemented.
        """
        text = self._write_last(RuleCall("start")) if not self._grammar.ignored else None
        if text is None:
            return None
        return f"({text} | {EMPTY})" if self._rules.follow_sets.is_nullable_rule("start") else text

    @cached_property
    def _writable_rules(self) -> set[str]:
        return find_writable_rules(self._grammar, self._is_writable)

    def _is_writable(self, expression: Expression, writable_rules: set[str]) -> bool:
        if not self._rules.is_writable(expression, self._rules.writable_rules):
            return False
        match expression:
            case Terminal():
                return self._rules.write_unpadded_terminal(expression) is not None
            case RuleCall():
                return expression.name in writable_rules
            case Alternation():
                return any(self._is_writable(part, writable_rules) for part in expression.parts)
            case Repetition():
                return expression.max_count != 0 and self._is_writable(
                    expression.part, writable_rules
                )
            case Concatenation():
                return any(
                    self._is_writable(expression.parts[index], writable_rules)
                    for index in self._list_last_indexes(expression)
                )

    def _list_last_indexes(self, sequence: Concatenation) -> list[int]:
        """Return the indexes of the parts that the text of a sequence may end with, last first."""
        indexes = []
        for index in range(len(sequence.parts) - 1, -1, -1):
            indexes.append(index)
            if not self._rules.follow_sets.is_nullable(sequence.parts[index]):
                break
        return indexes

    def _write_last(self, expression: Expression) -> str | None:
        """Write an expression that is not empty and ends the text."""
        if not self._is_writable(expression, self._writable_rules):
            return None
        match expression:
            case Terminal():
                return self._rules.write_unpadded_terminal(expression)
            case RuleCall():
                return self._add_rule(expression.name)
            case Alternation():
                alternatives = map(self._write_last, expression.parts)
                return join_alternatives(text for text in alternatives if text)
            case Repetition(part=part, min_count=min_count, max_count=max_count):
                max_before = None if max_count is None else max_count - 1
                repeat = format_repeat(max(0, min_count - 1), max_before)
                before = f"({self._rules.write(part)}){repeat}"
                return f"{before if max_before != 0 else ''} {self._write_last(part)}"
            case Concatenation():
                return self._write_last_of_sequence(expression)

    def _write_last_of_sequence(self, sequence: Concatenation) -> str:
        indexes, alternatives = self._list_last_indexes(sequence), []
        before = " ".join(map(self._rules.write, sequence.parts[: indexes[-1]]))
        for index in reversed(indexes):
            last = self._write_last(sequence.parts[index])
            alternatives += [] if last is None else [f"{before} {last}"]
            if index < indexes[0]:
                part = self._rules.write(sequence.parts[index])
                before = self._rules.lark.add_rule(f"{before} {part}")
        return join_alternatives(alternatives)

    def _add_rule(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = new_name = self._rules.lark.reserve("last")
            self._rules.lark.define(new_name, self._write_last(self._grammar.rules[name]) or EMPTY)
        return self._names[name]
