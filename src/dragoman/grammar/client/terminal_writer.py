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

from dragoman.grammar.client.first_follow import Follow
from dragoman.grammar.client.lark_parser import Grammar, Leaf
from dragoman.grammar.client.text_syntax import Between, Quotes
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import Automaton, TooComplex
from dragoman.grammar.regex.char_sets import intersect, subtract, to_regex_class
from dragoman.grammar.regex.escape import escape_regex

MOST_PIECES = 5_000


class State(NamedTuple):
    """Where a leaf is; `pending` where a mark has begun: its text may not go on with that."""

    at: int
    pending: bool = False
    ends: bool = False


class Ways(NamedTuple):
    """How a leaf is written; `unbroken` if it does not end with a piece that breaks it."""

    said: str | None = None
    unbroken: str | None = None


class Leaves:
    """Writes the leaves of one grammar in one spelling."""

    def __init__(
        self, lark: LarkBuilder, grammar: Grammar, follow: Follow, spelling: Quotes | Between
    ) -> None:
        self._lark = lark
        self._grammar = grammar
        self._follow = follow
        self._spelling = spelling
        self._leaves: dict[tuple[str | int, frozenset[str]], Ways] = {}
        self._ends: dict[Leaf, frozenset[str]] = {}
        self._pieces = 0

    def whole(self, leaf: Leaf) -> str | None:
        """A leaf that is not empty; None where it cannot be written."""
        return self._both(leaf).said

    def unbroken(self, leaf: Leaf) -> str | None:
        """The same if it does not end with a piece that breaks it."""
        return self._both(leaf).unbroken

    def _both(self, leaf: Leaf) -> Ways:
        key = leaf.said, self._endings(leaf)
        if key not in self._leaves:
            said = leaf.said
            if isinstance(said, str):
                self._leaves[key] = self._text(said, key[1])
            else:
                self._leaves[key] = self._run(leaf, said, key[1])
        return self._leaves[key]

    def _endings(self, leaf: Leaf) -> frozenset[str]:
        """Beginnings of marks that a leaf may end with."""
        spelling = self._spelling
        if isinstance(spelling, Quotes):
            return frozenset()
        if leaf not in self._ends:
            self._ends[leaf] = frozenset(
                begun
                for begun in self._begun(leaf, spelling)
                if not any(
                    self._follow.goes_on(leaf, mark.removeprefix(begun))
                    for mark in spelling.cut
                    if mark.startswith(begun)
                )
            )
        return self._ends[leaf]

    def _begun(self, leaf: Leaf, spelling: Between) -> Iterable[str]:
        """Beginnings of marks that a leaf might end with."""
        if isinstance(leaf.said, str):
            pending = spelling.pending(leaf.said)
            return (pending,) if pending else ()
        letters = self._grammar.patterns.collect_chars(leaf.said)
        return (
            ()
            if letters is not None and not intersect(letters, spelling.firsts)
            else spelling.begun
        )

    def _text(self, said: str, endings: frozenset[str]) -> Ways:
        if not said:
            return Ways()
        if isinstance(self._spelling, Between):
            pending = self._spelling.pending(said)
            fits = pending == "" or pending in endings
            whole = said[-1] not in self._spelling.breaks
            return (
                Ways(quote_literal(said), quote_literal(said) if whole else None)
                if fits
                else Ways()
            )
        found, plain = [], ""
        for letter in said:
            one = ((ord(letter), ord(letter)),)
            if not intersect(one, self._spelling.special):
                plain += letter
                continue
            found += [quote_literal(plain)] if plain else []
            ways = [to_regex_class(some)] if (some := intersect(one, self._spelling.plain)) else []
            ways += self._spelling.escapes(one)
            found.append(self._lark.add_terminal(f"/{'|'.join(ways)}/", "PIECE"))
            plain = ""
        found += [quote_literal(plain)] if plain else []
        return Ways(self._lark.add_rule(" ".join(found), "text"))

    def _run(self, leaf: Leaf, number: int, endings: frozenset[str]) -> Ways:
        letters = self._grammar.patterns.collect_chars(number)
        if letters == ():
            return Ways()
        if letters is not None and not intersect(letters, self._spelling.special):
            said = self._lexeme(number)
            return Ways(said, said)
        if letters is not None and isinstance(self._spelling, Quotes):
            try:
                return Ways(self._escaped(number, self._spelling))
            except TooComplex:  # there is another way
                pass
        return self._rules_of(self._follow.machine(leaf), endings)

    def _lexeme(self, number: int) -> str:
        """An expression as it is, but for no letters at all."""
        patterns = self._grammar.patterns
        body = f"/{patterns.to_regex(number)}/"
        return self._lark.add_terminal(
            body + (" & /(?s:.+)/" if patterns.is_nullable(number) else ""), "LEAF"
        )

    def _escaped(self, number: int, quotes: Quotes) -> str:
        """A leaf as runs up to an escape, and a last one."""
        patterns = self._grammar.patterns
        leading: dict[int, list[str]] = {}  # to an expression that is left
        names: dict[int, str] = {}
        found, queue = [], [(number, "")]
        for state, before in queue:
            last = patterns.restrict_to(state, quotes.plain)
            if last not in (patterns.empty_language, patterns.empty_string):
                found.append(f"{before} {self._lexeme(last)}")
            if before and patterns.is_nullable(state):
                found.append(before)
            for cut in patterns.split_at_first(state, quotes.special, quotes.plain):
                if patterns.empty_language in (cut.before, cut.after):
                    continue
                if cut.after not in names:
                    names[cut.after] = self._lark.reserve("state")
                    queue.append((cut.after, names[cut.after]))
                escape = self._lark.add_terminal(
                    f"/{'|'.join(quotes.escapes(cut.chars))}/", "PIECE"
                )
                run = "" if cut.before == patterns.empty_string else self._lexeme(cut.before)
                run = f"({run})?" if run and patterns.is_nullable(cut.before) else run
                leading.setdefault(cut.after, []).append(f"{before} {run} {escape}")
                self._count()
        for state, name in names.items():
            self._lark.define(name, " | ".join(dict.fromkeys(leading[state])))
        return self._lark.add_rule(" | ".join(dict.fromkeys(found)), "leaf")

    def _count(self) -> None:
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            raise TooComplex

    def _rules_of(self, machine: Automaton, endings: frozenset[str]) -> Ways:
        """The rules of a machine: one for each state, of all that leads to it."""
        start = State(0)
        steps: dict[State, dict[State, list[str]]] = {}  # to, from, expressions
        queue = [start]
        for state in queue:
            for to, said in self._steps(machine, state, endings):
                if to not in steps:
                    steps[to] = {}
                    queue.append(to)
                steps[to].setdefault(state, []).append(said)
                self._count()
        ends = [state for state in steps if state.ends]
        useful = _leading_to(ends, steps)
        names = {state: self._lark.reserve("state") for state in steps if state in useful}

        def leading(state: State, broken: Collection[str] = ()) -> list[str]:
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
        spelling = self._spelling
        breaks = (
            [escape_regex(one) for one in spelling.breaks] if isinstance(spelling, Between) else []
        )
        whole = [said for state in ends for said in leading(state, breaks)]
        return Ways(
            join_alternatives(names[state] for state in ends) if ends else None,
            self._lark.add_rule(" | ".join(whole), "whole") if whole and breaks else None,
        )

    def _steps(
        self, machine: Automaton, state: State, endings: frozenset[str]
    ) -> Iterator[tuple[State, str]]:
        """Pieces that may follow a state: what each leads to, and its regular expression."""
        spelling = self._spelling
        for letters, to in machine.transitions[state.at]:
            if not state.pending and (plain := intersect(letters, spelling.plain)):
                yield _at(machine, to), to_regex_class(plain) + self._loop(machine, to)
            if isinstance(spelling, Quotes):
                for escape in spelling.escapes(intersect(letters, spelling.special)):
                    yield _at(machine, to), escape
        if isinstance(spelling, Quotes):
            return
        for letter in spelling.breaks:
            after = machine.advance(state.at, letter)
            if after is not None:
                yield _at(machine, after), escape_regex(letter)
        for begun, more in spelling.begun.items():
            after = machine.advance(state.at, begun)
            if after is None:
                continue
            ends = machine.accepting[after] and begun in endings
            yield State(after, pending=True, ends=ends), escape_regex(begun)
            for letters, to in machine.transitions[after]:
                if other := subtract(intersect(letters, spelling.plain), more):
                    said = escape_regex(begun) + to_regex_class(other) + self._loop(machine, to)
                    yield _at(machine, to), said

    def _loop(self, machine: Automaton, state: int) -> str:
        """Letters that stand for themselves and do not leave a state."""
        found = ""
        for letters, to in machine.transitions[state]:
            plain = intersect(letters, self._spelling.plain) if to == state else ()
            found = f"{to_regex_class(plain)}*" if plain else found
        return found


def _at(machine: Automaton, state: int) -> State:
    return State(state, ends=machine.accepting[state])


def _leading_to(ends: list[State], steps: dict[State, dict[State, list[str]]]) -> set[State]:
    found, queue = set(ends), list(ends)
    while queue:
        for before in steps.get(queue.pop(), {}):
            if before not in found:
                found.add(before)
                queue.append(before)
    return found
