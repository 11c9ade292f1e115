"""A client's grammar, rewritten so that it derives texts as they are written.

Its rules stay as they are. A leaf whose letters all stand for themselves stays one leaf. Any other
becomes the machine of its regular expression, and that becomes rules again: a piece (see
`spelling`) leads from one state to the next. Rules go on to the left, since a parser forgets what
lies behind it, and a run of letters that does not leave its state is one piece.

A mark can also come about where one leaf follows another. So a leaf ends with the beginning of a
mark only where nothing that follows it can go on with that mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from dragoman.constraint.inputs.follow import Follow
from dragoman.constraint.inputs.grammars import Called, Expr, Grammar, Leaf, Options, Row, Times
from dragoman.constraint.inputs.letters import Letters, in_class, met, without
from dragoman.constraint.inputs.patterns import Machine, TooComplex
from dragoman.constraint.inputs.spelling import Between, Quotes
from dragoman.constraint.lark import EMPTY, Lark, either, escaped, quoted, times

MOST_PIECES = 2_000


class State(NamedTuple):
    """Where a leaf is; `pending` where a mark has begun: its text may not go on with that."""

    at: int
    pending: bool = False
    ends: bool = False


class Ways(NamedTuple):
    """How a leaf is written; `unbroken` if it does not end with a piece that breaks it."""

    said: str | None = None
    unbroken: str | None = None


class Rewriting:
    """Writes the rules of one grammar in one spelling."""

    def __init__(
        self, lark: Lark, grammar: Grammar, follow: Follow, spelling: Quotes | Between
    ) -> None:
        self.lark = lark
        self.grammar = grammar
        self.follow = follow
        self._spelling = spelling
        self._names: dict[tuple[str, bool], str] = {}
        self._leaves: dict[tuple[str | int, frozenset[str]], Ways] = {}
        self._ends: dict[Leaf, frozenset[str]] = {}
        self._pieces = 0

    def text(self) -> str | None:
        """An expression for the whole text; None where none can be written."""
        alone = self._alone()
        if alone is not None:
            return alone
        if "start" not in self.possible:
            return None
        if not self.grammar.ignored:
            return self._rule("start")
        found = self._first(Called("start"))
        options = [] if found is None else [found]
        return either([*options, *([EMPTY] if self.follow.empty("start") else [])])

    def _alone(self) -> str | None:
        """A text that is one leaf: between quotes nothing can be taken for its end."""
        leaf, spelling = self.grammar.rules["start"], self._spelling
        if (
            not isinstance(leaf, Leaf)
            or isinstance(leaf.said, str)
            or isinstance(spelling, Between)
        ):
            return None
        patterns = self.grammar.patterns
        letters = patterns.letters(leaf.said)
        if not letters:
            return None

        def one(some: Letters) -> str:
            plain = met(some, spelling.plain)
            ways = [in_class(plain)] if plain else []
            return f"(?:{'|'.join([*ways, *spelling.escapes(met(some, spelling.special))])})"

        return self.lark.terminal(f"/{patterns.written(leaf.said, one)}/", "TEXT")

    # rules

    @cached_property
    def possible(self) -> set[str]:
        """Rules of which there are texts that can be written."""
        found: set[str] = set()
        count = -1
        while count != (count := len(found)):
            found |= {
                name
                for name, body in self.grammar.rules.items()
                if name not in found and self.can_be(body, found)
            }
        return found

    def can_be(self, part: Expr, rules: set[str]) -> bool:
        match part:
            case Leaf():
                return self._nothing(part) or self._leaf(part) is not None
            case Called():
                return part.name in rules
            case Row():
                return all(self.can_be(one, rules) for one in part.parts)
            case Options():
                return any(self.can_be(one, rules) for one in part.parts)
            case Times():
                return part.least == 0 or self.can_be(part.part, rules)

    def _nothing(self, leaf: Leaf) -> bool:
        """Whether a leaf may be no letter at all."""
        return self.follow.may_be_empty(leaf)

    def _rule(self, name: str, *, first: bool = False) -> str:
        """A rule of the client's; `first` as in `_first`."""
        if (name, first) not in self._names:
            own = self._names[name, first] = self.lark.reserve("input")
            body = self.grammar.rules[name]
            said = self._first(body) if first else self.written(body)
            self.lark.define(own, said or EMPTY)
        return self._names[name, first]

    def written(self, part: Expr) -> str:
        """A part, of which there is a text, after something else was written."""
        possible = self.possible
        match part:
            case Leaf():
                said = self._leaf(part)
                if said is None:
                    return EMPTY
                said = f"{self._between}{said}"
                return f"({said})?" if self._nothing(part) else said
            case Called():
                return self._rule(part.name)
            case Row():
                return " ".join(map(self.written, part.parts)) or EMPTY
            case Options():
                return either(map(self.written, self._options(part)))
            case Times():
                if not self.can_be(part.part, possible):
                    return EMPTY
                return f"({self.written(part.part)}){times(part.least, part.most)}"

    def _options(self, part: Options) -> Iterator[Expr]:
        return (one for one in part.parts if self.can_be(one, self.possible))

    @cached_property
    def _between(self) -> str:
        """What may stand between two leaves and is ignored."""
        found = [said for leaf in self.grammar.ignored if (said := self._leaf(leaf)) is not None]
        return f"{self.lark.rule(f'{either(found)}*', 'ignored')} " if found else ""

    def _first(self, part: Expr) -> str | None:
        """A part where nothing was written before, but for no text at all; None if it is only that.

        What is ignored stands between two leaves, so not before the first.
        """
        if not self.can_be(part, self.possible):
            return None
        match part:
            case Leaf():
                return self._leaf(part)
            case Called():
                return self._rule(part.name, first=True) if self._begins(part) else None
            case Row():
                return self._first_of_row(part.parts)
            case Options():
                found = [said for one in part.parts if (said := self._first(one)) is not None]
                return either(found) if found else None
            case Times():
                said = self._first(part.part) if part.most != 0 else None
                most = None if part.most is None else part.most - 1
                more = f"({self.written(part.part)}){times(max(0, part.least - 1), most)}"
                return None if said is None else f"{said} {more if most != 0 else ''}"

    def _begins(self, part: Called) -> bool:
        """Whether a rule has more to say than nothing."""
        return self.follow.begins(part.name)

    def _first_of_row(self, parts: tuple[Expr, ...]) -> str | None:
        empty = [self.follow.may_be_empty(part) for part in parts]
        last = next((at for at, may in enumerate(empty) if not may), len(parts) - 1)
        after, found = " ".join(map(self.written, parts[last + 1 :])), []
        for at in range(last, -1, -1):
            said = self._first(parts[at])
            found += [] if said is None else [f"{said} {after}"]
            if at:
                after = self.lark.rule(f"{self.written(parts[at])} {after}", "rest")
        return either(found) if found else None

    # leaves

    def _leaf(self, leaf: Leaf) -> str | None:
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
                    self.follow.goes_on(leaf, mark.removeprefix(begun))
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
        letters = self.grammar.patterns.letters(leaf.said)
        return () if letters is not None and not met(letters, spelling.firsts) else spelling.begun

    def _text(self, said: str, endings: frozenset[str]) -> Ways:
        if not said:
            return Ways()
        if isinstance(self._spelling, Between):
            pending = self._spelling.pending(said)
            fits = pending == "" or pending in endings
            whole = said[-1] not in self._spelling.breaks
            return Ways(quoted(said), quoted(said) if whole else None) if fits else Ways()
        found, plain = [], ""
        for letter in said:
            one = ((ord(letter), ord(letter)),)
            if not met(one, self._spelling.special):
                plain += letter
                continue
            found += [quoted(plain)] if plain else []
            ways = [in_class(some)] if (some := met(one, self._spelling.plain)) else []
            ways += self._spelling.escapes(one)
            found.append(self.lark.terminal(f"/{'|'.join(ways)}/", "PIECE"))
            plain = ""
        found += [quoted(plain)] if plain else []
        return Ways(self.lark.rule(" ".join(found), "text"))

    def _run(self, leaf: Leaf, number: int, endings: frozenset[str]) -> Ways:
        letters = self.grammar.patterns.letters(number)
        if letters == ():
            return Ways()
        if letters is not None and not met(letters, self._spelling.special):
            said = self._lexeme(number)
            return Ways(said, said)
        if letters is not None and isinstance(self._spelling, Quotes):
            try:
                return Ways(self._escaped(number, self._spelling))
            except TooComplex:  # there is another way
                pass
        return self._rules_of(self.follow.machine(leaf), endings)

    def _lexeme(self, number: int) -> str:
        """An expression as it is, but for no letters at all."""
        patterns = self.grammar.patterns
        body = f"/{patterns.written(number)}/"
        return self.lark.terminal(body + (" & /(?s:.+)/" if patterns.empty(number) else ""), "LEAF")

    def _escaped(self, number: int, quotes: Quotes) -> str:
        """A leaf as runs up to an escape, and a last one."""
        patterns = self.grammar.patterns
        leading: dict[int, list[str]] = {number: []}  # what leads to an expression
        names = {number: ""}
        found, queue = [], [number]
        for state in queue:
            before = names[state]
            last = patterns.within(state, quotes.plain)
            if last not in (patterns.nothing, patterns.blank):
                found.append(f"{before} {self._lexeme(last)}")
            if before and patterns.empty(state):
                found.append(before)
            for cut in patterns.cut(state, quotes.special, quotes.plain):
                if cut.after not in names:
                    names[cut.after] = self.lark.reserve("state")
                    queue.append(cut.after)
                escape = self.lark.terminal(f"/{'|'.join(quotes.escapes(cut.letters))}/", "PIECE")
                run = "" if cut.before == patterns.blank else self._lexeme(cut.before)
                run = f"({run})?" if run and patterns.empty(cut.before) else run
                leading.setdefault(cut.after, []).append(f"{before} {run} {escape}")
                self._count()
        for state, name in names.items():
            if name:
                self.lark.define(name, " | ".join(dict.fromkeys(leading[state])))
        return self.lark.rule(" | ".join(dict.fromkeys(found)), "leaf")

    def _count(self) -> None:
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            raise TooComplex

    def _rules_of(self, machine: Machine, endings: frozenset[str]) -> Ways:
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
        names = {state: self.lark.reserve("state") for state in steps if state in useful}

        def leading(state: State, broken: Collection[str] = ()) -> list[str]:
            """What leads to a state, without what breaks a text."""
            found = []
            for before, pieces in steps[state].items():
                said = [piece for piece in pieces if piece not in broken]
                if said and (before in names or before == start):
                    piece = self.lark.terminal(f"/{'|'.join(said)}/", "PIECE")
                    found.append(f"{names[before]} {piece}" if before in names else piece)
            return found

        for state, name in names.items():
            self.lark.define(name, " | ".join(leading(state)))
        spelling = self._spelling
        breaks = [escaped(one) for one in spelling.breaks] if isinstance(spelling, Between) else []
        whole = [said for state in ends for said in leading(state, breaks)]
        return Ways(
            either(names[state] for state in ends) if ends else None,
            self.lark.rule(" | ".join(whole), "whole") if whole and breaks else None,
        )

    def _steps(
        self, machine: Machine, state: State, endings: frozenset[str]
    ) -> Iterator[tuple[State, str]]:
        """Pieces that may follow a state: what each leads to, and its regular expression."""
        spelling = self._spelling
        for letters, to in machine.leads[state.at]:
            if not state.pending and (plain := met(letters, spelling.plain)):
                yield _at(machine, to), in_class(plain) + self._loop(machine, to)
            if isinstance(spelling, Quotes):
                for escape in spelling.escapes(met(letters, spelling.special)):
                    yield _at(machine, to), escape
        if isinstance(spelling, Quotes):
            return
        for letter in spelling.breaks:
            after = machine.after(state.at, letter)
            if after is not None:
                yield _at(machine, after), escaped(letter)
        for begun, more in spelling.begun.items():
            after = machine.after(state.at, begun)
            if after is None:
                continue
            ends = machine.ends[after] and begun in endings
            yield State(after, pending=True, ends=ends), escaped(begun)
            for letters, to in machine.leads[after]:
                if other := without(met(letters, spelling.plain), more):
                    said = escaped(begun) + in_class(other) + self._loop(machine, to)
                    yield _at(machine, to), said

    def _loop(self, machine: Machine, state: int) -> str:
        """Letters that stand for themselves and do not leave a state."""
        found = ""
        for letters, to in machine.leads[state]:
            plain = met(letters, self._spelling.plain) if to == state else ()
            found = f"{in_class(plain)}*" if plain else found
        return found


def _at(machine: Machine, state: int) -> State:
    return State(state, ends=machine.ends[state])


def _leading_to(ends: list[State], steps: dict[State, dict[State, list[str]]]) -> set[State]:
    found, queue = set(ends), list(ends)
    while queue:
        for before in steps.get(queue.pop(), {}):
            if before not in found:
                found.add(before)
                queue.append(before)
    return found
