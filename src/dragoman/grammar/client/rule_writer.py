"""Rewrites a client's grammar so that it derives texts in the form in which they are written.

The rules stay as they are; `terminal_writer` rewrites the terminals. Terminals that the grammar
ignores are written explicitly between two others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.lark_parser import (
    Alternation,
    Concatenation,
    Expression,
    LarkGrammar,
    Repetition,
    RuleCall,
    Terminal,
)
from dragoman.grammar.client.terminal_writer import TerminalWriter
from dragoman.grammar.client.text_syntax import DelimitedSyntax, TextSyntax
from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat, join_alternatives
from dragoman.grammar.regex.char_sets import CharSet, intersect, to_regex_class


def find_writable_rules(
    grammar: LarkGrammar, is_writable: Callable[[Expression, set[str]], bool]
) -> set[str]:
    """Return the rules with texts that can be written: a least fixed point.

    Each round adds the rules whose bodies are writable if the rules found so far are.
    """
    writable: set[str] = set()
    while found := {
        name
        for name, body in grammar.rules.items()
        if name not in writable and is_writable(body, writable)
    }:
        writable |= found
    return writable


class RuleWriter:
    """Writes the rules of one grammar in one syntax."""

    def __init__(
        self,
        lark: LarkBuilder,
        grammar: LarkGrammar,
        follow_sets: FollowSets,
        syntax: TextSyntax,
    ) -> None:
        self.lark = lark
        self.grammar = grammar
        self.follow_sets = follow_sets
        self._syntax = syntax
        self._names: dict[tuple[str, bool], str] = {}
        self._terminals = TerminalWriter(lark, grammar, follow_sets, syntax)

    def write_text(self) -> str | None:
        """Return an expression for the whole text, or None if no text can be written."""
        single_terminal = self._write_single_terminal()
        if single_terminal is not None:
            return single_terminal
        if "start" not in self.writable_rules:
            return None
        if not self.grammar.ignored:
            return self._add_rule("start")
        nonempty = self._write_first(RuleCall("start"))
        alternatives = [] if nonempty is None else [nonempty]
        alternatives += [EMPTY] if self.follow_sets.is_nullable_rule("start") else []
        return join_alternatives(alternatives)

    def write_unpadded_terminal(self, terminal: Terminal) -> str | None:
        """Write a terminal that does not end with padding."""
        return self._terminals.write_unpadded(terminal)

    def _write_single_terminal(self) -> str | None:
        """Write a text that is one terminal; in quotes, its end is unambiguous."""
        terminal, syntax = self.grammar.rules["start"], self._syntax
        if not isinstance(terminal, Terminal) or isinstance(terminal.value, str):
            return None
        if isinstance(syntax, DelimitedSyntax):
            return None
        if not self.grammar.regexes.collect_chars(terminal.value):
            return None

        def write_char(chars: CharSet) -> str:
            plain = intersect(chars, syntax.plain)
            alternatives = [to_regex_class(plain)] if plain else []
            alternatives += syntax.escape_regexes(intersect(chars, syntax.special))
            return f"(?:{'|'.join(alternatives)})"

        regex = self.grammar.regexes.to_regex(terminal.value, write_char)
        return self.lark.add_terminal(f"/{regex}/", "TEXT")

    # rules

    @cached_property
    def writable_rules(self) -> set[str]:
        """The rules with texts that can be written in this syntax."""
        return find_writable_rules(self.grammar, self.is_writable)

    def is_writable(self, expression: Expression, writable_rules: set[str]) -> bool:
        match expression:
            case Terminal():
                is_nullable = self.follow_sets.is_nullable(expression)
                return is_nullable or self._terminals.write(expression) is not None
            case RuleCall():
                return expression.name in writable_rules
            case Concatenation():
                return all(self.is_writable(part, writable_rules) for part in expression.parts)
            case Alternation():
                return any(self.is_writable(part, writable_rules) for part in expression.parts)
            case Repetition():
                return expression.min_count == 0 or self.is_writable(
                    expression.part, writable_rules
                )

    def _add_rule(self, name: str, *, first: bool = False) -> str:
        """Add a rule of the client's grammar, or its variant for `_write_first`."""
        if (name, first) not in self._names:
            new_name = self._names[name, first] = self.lark.reserve("input")
            body = self.grammar.rules[name]
            self.lark.define(
                new_name, (self._write_first(body) if first else self.write(body)) or EMPTY
            )
        return self._names[name, first]

    def write(self, expression: Expression) -> str:
        """Write a writable expression that follows another terminal."""
        match expression:
            case Terminal():
                text = self._terminals.write(expression)
                if text is None:
                    return EMPTY
                text = f"{self._ignored_text}{text}"
                return f"({text})?" if self.follow_sets.is_nullable(expression) else text
            case RuleCall():
                return self._add_rule(expression.name)
            case Concatenation():
                return " ".join(map(self.write, expression.parts)) or EMPTY
            case Alternation():
                return join_alternatives(map(self.write, self._list_writable_parts(expression)))
            case Repetition(part=part, min_count=min_count, max_count=max_count):
                if not self.is_writable(part, self.writable_rules):
                    return EMPTY
                return f"({self.write(part)}){format_repeat(min_count, max_count)}"

    def _list_writable_parts(self, alternation: Alternation) -> Iterator[Expression]:
        return (part for part in alternation.parts if self.is_writable(part, self.writable_rules))

    @cached_property
    def _ignored_text(self) -> str:
        """The expression for text that the grammar ignores between two terminals."""
        texts = [
            text for text in map(self._terminals.write, self.grammar.ignored) if text is not None
        ]
        if not texts:
            return ""
        return f"{self.lark.add_rule(f'{join_alternatives(texts)}*', 'ignored')} "

    def _write_first(self, expression: Expression) -> str | None:
        """Write a nonempty expression at the start of the text; None if it matches no such text.

        Ignored terminals come between two others, so not before the first.
        """
        if not self.is_writable(expression, self.writable_rules):
            return None
        match expression:
            case Terminal():
                return self._terminals.write(expression)
            case RuleCall(name=name):
                return (
                    self._add_rule(name, first=True)
                    if self.follow_sets.can_be_nonempty(name)
                    else None
                )
            case Concatenation():
                return self._write_first_of_sequence(expression.parts)
            case Alternation():
                alternatives = [
                    text for text in map(self._write_first, expression.parts) if text is not None
                ]
                return join_alternatives(alternatives) if alternatives else None
            case Repetition(part=part, min_count=min_count, max_count=max_count):
                first = self._write_first(part) if max_count != 0 else None
                max_rest = None if max_count is None else max_count - 1
                rest = f"({self.write(part)}){format_repeat(max(0, min_count - 1), max_rest)}"
                return None if first is None else f"{first} {rest if max_rest != 0 else ''}"

    def _write_first_of_sequence(self, parts: tuple[Expression, ...]) -> str | None:
        required = (
            index for index, part in enumerate(parts) if not self.follow_sets.is_nullable(part)
        )
        last_first = next(required, len(parts) - 1)  # the last part that may come first
        rest, alternatives = " ".join(map(self.write, parts[last_first + 1 :])), []
        for index in range(last_first, -1, -1):
            first = self._write_first(parts[index])
            alternatives += [] if first is None else [f"{first} {rest}"]
            if index:
                rest = self.lark.add_rule(f"{self.write(parts[index])} {rest}", "rest")
        return join_alternatives(alternatives) if alternatives else None
