"""Leaves of a grammar as they are written: in pieces, none of which a lexer could take for more.

A leaf whose letters all stand for themselves stays one piece. Between quotes any other is runs of
such letters with escapes in between: what is left of its regular expression after an escape is a
state, and a rule says what leads there. Between marks, and where repetitions are counted or `&` and
`~` are used, the states are those of its machine: a piece leads from one to the next, and a run of
letters that does not leave its state is one piece. Rules go on to the left, since a parser forgets
what lies behind it.

A mark can also come about where one leaf follows another. So a leaf ends with the beginning of a
mark only where nothing that follows it can go on with that mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.lark_parser import LarkGrammar, Terminal
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import Automaton, TooComplex
from dragoman.grammar.regex.char_sets import intersect, subtract, to_regex_class
from dragoman.grammar.regex.escape import escape_regex

MAX_PIECES = 5_000


class PieceState(NamedTuple):
    """Where a leaf is; `pending` where a mark has begun: its text may not go on with that."""

    state: int
    pending: bool = False
    accepting: bool = False


class TerminalExpressions(NamedTuple):
    """How a leaf is written; `unbroken` if it does not end with a piece that breaks it."""

    any_end: str | None = None
    unpadded_end: str | None = None


class TerminalWriter:
    """Writes the leaves of one grammar in one spelling."""

    def __init__(
        self,
        lark: LarkBuilder,
        grammar: LarkGrammar,
        follow: FollowSets,
        spelling: QuotedSyntax | DelimitedSyntax,
    ) -> None:
        self._lark = lark
        self._grammar = grammar
        self._follow_sets = follow
        self._syntax = spelling
        self._expressions: dict[tuple[str | int, frozenset[str]], TerminalExpressions] = {}
        self._endings: dict[Terminal, frozenset[str]] = {}
        self._pieces = 0

    def write(self, leaf: Terminal) -> str | None:
        """A leaf that is not empty; None where it cannot be written."""
        return self._get_expressions(leaf).any_end

    def write_unpadded(self, leaf: Terminal) -> str | None:
        """The same if it does not end with a piece that breaks it."""
        return self._get_expressions(leaf).unpadded_end

    def _get_expressions(self, leaf: Terminal) -> TerminalExpressions:
        key = leaf.value, self._allowed_endings(leaf)
        if key not in self._expressions:
            said = leaf.value
            if isinstance(said, str):
                self._expressions[key] = self._write_string(said, key[1])
            else:
                self._expressions[key] = self._write_regex(leaf, said, key[1])
        return self._expressions[key]

    def _allowed_endings(self, leaf: Terminal) -> frozenset[str]:
        """Beginnings of marks that a leaf may end with."""
        spelling = self._syntax
        if isinstance(spelling, QuotedSyntax):
            return frozenset()
        if leaf not in self._endings:
            self._endings[leaf] = frozenset(
                begun
                for begun in self._possible_endings(leaf, spelling)
                if not any(
                    self._follow_sets.can_continue_with(leaf, mark.removeprefix(begun))
                    for mark in spelling.forbidden
                    if mark.startswith(begun)
                )
            )
        return self._endings[leaf]

    def _possible_endings(self, leaf: Terminal, spelling: DelimitedSyntax) -> Iterable[str]:
        """Beginnings of marks that a leaf might end with."""
        if isinstance(leaf.value, str):
            pending = spelling.pending_prefix(leaf.value)
            return (pending,) if pending else ()
        letters = self._grammar.regexes.collect_chars(leaf.value)
        return (
            ()
            if letters is not None and not intersect(letters, spelling.first_chars)
            else spelling.marker_prefixes
        )

    def _write_string(self, said: str, endings: frozenset[str]) -> TerminalExpressions:
        if not said:
            return TerminalExpressions()
        if isinstance(self._syntax, DelimitedSyntax):
            pending = self._syntax.pending_prefix(said)
            fits = pending == "" or pending in endings
            whole = said[-1] not in self._syntax.padding
            return (
                TerminalExpressions(quote_literal(said), quote_literal(said) if whole else None)
                if fits
                else TerminalExpressions()
            )
        found, plain = [], ""
        for letter in said:
            one = ((ord(letter), ord(letter)),)
            if not intersect(one, self._syntax.special):
                plain += letter
                continue
            found += [quote_literal(plain)] if plain else []
            ways = [to_regex_class(some)] if (some := intersect(one, self._syntax.plain)) else []
            ways += self._syntax.escape_regexes(one)
            found.append(self._lark.add_terminal(f"/{'|'.join(ways)}/", "PIECE"))
            plain = ""
        found += [quote_literal(plain)] if plain else []
        return TerminalExpressions(self._lark.add_rule(" ".join(found), "text"))

    def _write_regex(
        self, leaf: Terminal, number: int, endings: frozenset[str]
    ) -> TerminalExpressions:
        letters = self._grammar.regexes.collect_chars(number)
        if letters == ():
            return TerminalExpressions()
        if letters is not None and not intersect(letters, self._syntax.special):
            said = self._add_lexeme(number)
            return TerminalExpressions(said, said)
        if letters is not None and isinstance(self._syntax, QuotedSyntax):
            try:
                return TerminalExpressions(self._write_with_escapes(number, self._syntax))
            except TooComplex:  # there is another way
                pass
        return self._write_automaton(self._follow_sets.get_automaton(leaf), endings)

    def _add_lexeme(self, number: int) -> str:
        """An expression as it is, but for no letters at all."""
        patterns = self._grammar.regexes
        body = f"/{patterns.to_regex(number)}/"
        return self._lark.add_terminal(
            body + (" & /(?s:.+)/" if patterns.is_nullable(number) else ""), "LEAF"
        )

    def _write_with_escapes(self, number: int, quotes: QuotedSyntax) -> str:
        """A leaf as runs up to an escape, and a last one."""
        patterns = self._grammar.regexes
        leading: dict[int, list[str]] = {}  # to an expression that is left
        names: dict[int, str] = {}
        found, queue = [], [(number, "")]
        for state, before in queue:
            last = patterns.restrict_to(state, quotes.plain)
            if last not in (patterns.empty_language, patterns.empty_string):
                found.append(f"{before} {self._add_lexeme(last)}")
            if before and patterns.is_nullable(state):
                found.append(before)
            for cut in patterns.split_at_first(state, quotes.special, quotes.plain):
                if patterns.empty_language in (cut.before, cut.after):
                    continue
                if cut.after not in names:
                    names[cut.after] = self._lark.reserve("state")
                    queue.append((cut.after, names[cut.after]))
                escape = self._lark.add_terminal(
                    f"/{'|'.join(quotes.escape_regexes(cut.chars))}/", "PIECE"
                )
                run = "" if cut.before == patterns.empty_string else self._add_lexeme(cut.before)
                run = f"({run})?" if run and patterns.is_nullable(cut.before) else run
                leading.setdefault(cut.after, []).append(f"{before} {run} {escape}")
                self._count_piece()
        for state, name in names.items():
            self._lark.define(name, " | ".join(dict.fromkeys(leading[state])))
        return self._lark.add_rule(" | ".join(dict.fromkeys(found)), "leaf")

    def _count_piece(self) -> None:
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            raise TooComplex

    def _write_automaton(self, machine: Automaton, endings: frozenset[str]) -> TerminalExpressions:
        """The rules of a machine: one for each state, of all that leads to it."""
        start = PieceState(0)
        steps: dict[PieceState, dict[PieceState, list[str]]] = {}  # to, from, expressions
        queue = [start]
        for state in queue:
            for to, said in self._list_pieces(machine, state, endings):
                if to not in steps:
                    steps[to] = {}
                    queue.append(to)
                steps[to].setdefault(state, []).append(said)
                self._count_piece()
        ends = [state for state in steps if state.accepting]
        useful = _states_leading_to(ends, steps)
        names = {state: self._lark.reserve("state") for state in steps if state in useful}

        def leading(state: PieceState, broken: Collection[str] = ()) -> list[str]:
            """What leads to a state, without what breaks a text."""
            found = []
            for before, pieces in steps[state].items():
                said = [piece for piece in pieces if piece not in broken]
                if said and (before in names or before == start):
                    piece = self._lark.add_terminal(f"/{'|'.join(said)}/", "PIECE")
                    found.append(f"{names[before]} {piece}" if before in names else piece)
            return found

        for state, name in names.items():
            self._lark.define(name, " | ".join(leading(state)))
        spelling = self._syntax
        breaks = (
            [escape_regex(one) for one in spelling.padding]
            if isinstance(spelling, DelimitedSyntax)
            else []
        )
        whole = [said for state in ends for said in leading(state, breaks)]
        return TerminalExpressions(
            join_alternatives(names[state] for state in ends) if ends else None,
            self._lark.add_rule(" | ".join(whole), "whole") if whole and breaks else None,
        )

    def _list_pieces(
        self, machine: Automaton, state: PieceState, endings: frozenset[str]
    ) -> Iterator[tuple[PieceState, str]]:
        """Pieces that may follow a state: what each leads to, and its regular expression."""
        spelling = self._syntax
        for letters, to in machine.transitions[state.state]:
            if not state.pending and (plain := intersect(letters, spelling.plain)):
                yield (
                    _piece_state(machine, to),
                    to_regex_class(plain) + self._self_loop(machine, to),
                )
            if isinstance(spelling, QuotedSyntax):
                for escape in spelling.escape_regexes(intersect(letters, spelling.special)):
                    yield _piece_state(machine, to), escape
        if isinstance(spelling, QuotedSyntax):
            return
        for letter in spelling.padding:
            after = machine.advance(state.state, letter)
            if after is not None:
                yield _piece_state(machine, after), escape_regex(letter)
        for begun, more in spelling.marker_prefixes.items():
            after = machine.advance(state.state, begun)
            if after is None:
                continue
            ends = machine.accepting[after] and begun in endings
            yield PieceState(after, pending=True, accepting=ends), escape_regex(begun)
            for letters, to in machine.transitions[after]:
                if other := subtract(intersect(letters, spelling.plain), more):
                    said = (
                        escape_regex(begun) + to_regex_class(other) + self._self_loop(machine, to)
                    )
                    yield _piece_state(machine, to), said

    def _self_loop(self, machine: Automaton, state: int) -> str:
        """Letters that stand for themselves and do not leave a state."""
        found = ""
        for letters, to in machine.transitions[state]:
            plain = intersect(letters, self._syntax.plain) if to == state else ()
            found = f"{to_regex_class(plain)}*" if plain else found
        return found


def _piece_state(machine: Automaton, state: int) -> PieceState:
    return PieceState(state, accepting=machine.accepting[state])


def _states_leading_to(
    ends: list[PieceState], steps: dict[PieceState, dict[PieceState, list[str]]]
) -> set[PieceState]:
    found, queue = set(ends), list(ends)
    while queue:
        for before in steps.get(queue.pop(), {}):
            if before not in found:
                found.add(before)
                queue.append(before)
    return found
