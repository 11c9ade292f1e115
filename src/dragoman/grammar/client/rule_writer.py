"""A client's grammar, rewritten so that it derives texts as they are written.

Its rules stay as they are; `leaves` has what they are made of. What is ignored between two leaves
is written there.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax
from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat, join_alternatives
from dragoman.grammar.regex.char_sets import CharSet, intersect, to_regex_class


class RuleWriter:
    """Writes the rules of one grammar in one spelling."""

    def __init__(
        self,
        lark: LarkBuilder,
        grammar: LarkGrammar,
        follow: FollowSets,
        spelling: QuotedSyntax | DelimitedSyntax,
    ) -> None:
        self.lark = lark
        self.grammar = grammar
        self.follow_sets = follow
        self._syntax = spelling
        self._names: dict[tuple[str, bool], str] = {}
        self._terminals = TerminalWriter(lark, grammar, follow, spelling)

    def write_text(self) -> str | None:
        """An expression for the whole text; None where none can be written."""
        alone = self._write_single_terminal()
        if alone is not None:
            return alone
        if "start" not in self.writable_rules:
            return None
        if not self.grammar.ignored:
            return self._add_rule("start")
        found = self._write_first(RuleCall("start"))
        options = [] if found is None else [found]
        return join_alternatives(
            [*options, *([EMPTY] if self.follow_sets.is_nullable_rule("start") else [])]
        )

    def write_unpadded_terminal(self, leaf: Terminal) -> str | None:
        """A leaf that does not end with a piece that breaks it."""
        return self._terminals.write_unpadded(leaf)

    def _write_single_terminal(self) -> str | None:
        """A text that is one leaf: between quotes nothing can be taken for its end."""
        leaf, spelling = self.grammar.rules["start"], self._syntax
        if (
            not isinstance(leaf, Terminal)
            or isinstance(leaf.value, str)
            or isinstance(spelling, DelimitedSyntax)
        ):
            return None
        patterns = self.grammar.regexes
        letters = patterns.collect_chars(leaf.value)
        if not letters:
            return None

        def one(some: CharSet) -> str:
            plain = intersect(some, spelling.plain)
            ways = [to_regex_class(plain)] if plain else []
            return f"(?:{'|'.join([*ways, *spelling.escape_regexes(intersect(some, spelling.special))])})"

        return self.lark.add_terminal(f"/{patterns.to_regex(leaf.value, one)}/", "TEXT")

    # rules

    @cached_property
    def writable_rules(self) -> set[str]:
        """Rules of which there are texts that can be written."""
        found: set[str] = set()
        count = -1
        while count != (count := len(found)):
            found |= {
                name
                for name, body in self.grammar.rules.items()
                if name not in found and self.is_writable(body, found)
            }
        return found

    def is_writable(self, part: Expression, rules: set[str]) -> bool:
        match part:
            case Terminal():
                return self._is_nullable(part) or self._terminals.write(part) is not None
            case RuleCall():
                return part.name in rules
            case Concatenation():
                return all(self.is_writable(one, rules) for one in part.parts)
            case Alternation():
                return any(self.is_writable(one, rules) for one in part.parts)
            case Repetition():
                return part.min_count == 0 or self.is_writable(part.part, rules)

    def _is_nullable(self, leaf: Terminal) -> bool:
        """Whether a leaf may be no letter at all."""
        return self.follow_sets.is_nullable(leaf)

    def _add_rule(self, name: str, *, first: bool = False) -> str:
        """A rule of the client's; `first` as in `_first`."""
        if (name, first) not in self._names:
            own = self._names[name, first] = self.lark.reserve("input")
            body = self.grammar.rules[name]
            said = self._write_first(body) if first else self.write(body)
            self.lark.define(own, said or EMPTY)
        return self._names[name, first]

    def write(self, part: Expression) -> str:
        """A part, of which there is a text, after something else was written."""
        possible = self.writable_rules
        match part:
            case Terminal():
                said = self._terminals.write(part)
                if said is None:
                    return EMPTY
                said = f"{self._ignored_text}{said}"
                return f"({said})?" if self._is_nullable(part) else said
            case RuleCall():
                return self._add_rule(part.name)
            case Concatenation():
                return " ".join(map(self.write, part.parts)) or EMPTY
            case Alternation():
                return join_alternatives(map(self.write, self._writable_alternatives(part)))
            case Repetition():
                if not self.is_writable(part.part, possible):
                    return EMPTY
                return f"({self.write(part.part)}){format_repeat(part.min_count, part.max_count)}"

    def _writable_alternatives(self, part: Alternation) -> Iterator[Expression]:
        return (one for one in part.parts if self.is_writable(one, self.writable_rules))

    @cached_property
    def _ignored_text(self) -> str:
        """What may stand between two leaves and is ignored."""
        found = [
            said
            for leaf in self.grammar.ignored
            if (said := self._terminals.write(leaf)) is not None
        ]
        return f"{self.lark.add_rule(f'{join_alternatives(found)}*', 'ignored')} " if found else ""

    def _write_first(self, part: Expression) -> str | None:
        """A part where nothing was written before, but for no text at all; None if it is only that.

        What is ignored stands between two leaves, so not before the first.
        """
        if not self.is_writable(part, self.writable_rules):
            return None
        match part:
            case Terminal():
                return self._terminals.write(part)
            case RuleCall():
                return (
                    self._add_rule(part.name, first=True) if self._can_be_nonempty(part) else None
                )
            case Concatenation():
                return self._write_first_of_sequence(part.parts)
            case Alternation():
                found = [said for one in part.parts if (said := self._write_first(one)) is not None]
                return join_alternatives(found) if found else None
            case Repetition():
                said = self._write_first(part.part) if part.max_count != 0 else None
                most = None if part.max_count is None else part.max_count - 1
                more = f"({self.write(part.part)}){format_repeat(max(0, part.min_count - 1), most)}"
                return None if said is None else f"{said} {more if most != 0 else ''}"

    def _can_be_nonempty(self, part: RuleCall) -> bool:
        """Whether a rule has more to say than nothing."""
        return self.follow_sets.can_be_nonempty(part.name)

    def _write_first_of_sequence(self, parts: tuple[Expression, ...]) -> str | None:
        empty = [self.follow_sets.is_nullable(part) for part in parts]
        last = next((at for at, may in enumerate(empty) if not may), len(parts) - 1)
        after, found = " ".join(map(self.write, parts[last + 1 :])), []
        for at in range(last, -1, -1):
            said = self._write_first(parts[at])
            found += [] if said is None else [f"{said} {after}"]
            if at:
                after = self.lark.add_rule(f"{self.write(parts[at])} {after}", "rest")
        return join_alternatives(found) if found else None
