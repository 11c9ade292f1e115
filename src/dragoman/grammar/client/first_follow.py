"""What may stand next to what in a grammar: which leaves follow a leaf, begin a text, end one."""

from __future__ import annotations

from functools import cached_property

from dragoman.grammar.client.lark_parser import Called, Expr, Grammar, Leaf, Options, Row, Times
from dragoman.grammar.regex.automaton import Automaton, TooComplex
from dragoman.grammar.regex.char_sets import contains

END = Leaf("")  # what follows the last leaf
MOST = 400_000  # leaves that are looked at


class Follow:
    """Answers for one grammar. Rules are taken for the same wherever they are called."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._machines: dict[str | int, Automaton] = {}
        self._looked = 0
        self._empty: set[str] = set()  # rules that may say nothing
        self._firsts: dict[str, set[Leaf]] = {name: set() for name in grammar.rules}
        while self._grown():
            pass

    def _grown(self) -> bool:
        """Whether more became known of where rules begin."""
        grew = False
        for name, body in self._grammar.rules.items():
            if name not in self._empty and self.may_be_empty(body):
                self._empty.add(name)
                grew = True
            known = self._firsts[name]
            before = len(known)
            known |= self._first(body)
            grew = grew or len(known) > before
        return grew

    def machine(self, leaf: Leaf) -> Automaton:
        if leaf.said not in self._machines:
            patterns = self._grammar.patterns
            self._machines[leaf.said] = patterns.get_automaton(self._grammar.number(leaf))
        return self._machines[leaf.said]

    def empty(self, rule: str) -> bool:
        """Whether a rule may say nothing."""
        return rule in self._empty

    def begins(self, rule: str) -> bool:
        """Whether a rule may say something."""
        return bool(self._firsts[rule])

    def may_be_empty(self, part: Expr) -> bool:
        match part:
            case Leaf():
                said = part.said
                return (
                    not said if isinstance(said, str) else self._grammar.patterns.is_nullable(said)
                )
            case Called():
                return part.name in self._empty
            case Row():
                return all(map(self.may_be_empty, part.parts))
            case Options():
                return any(map(self.may_be_empty, part.parts))
            case Times():
                return part.least == 0 or self.may_be_empty(part.part)

    def _first(self, part: Expr) -> set[Leaf]:
        found = self._beginnings(part)
        self._look(1 + len(found))
        return found

    def _beginnings(self, part: Expr) -> set[Leaf]:
        match part:
            case Leaf():
                return {part} if part.said != "" else set()
            case Called():
                return self._firsts[part.name]
            case Options():
                return set().union(*map(self._first, part.parts))
            case Times():
                return self._first(part.part) if part.most != 0 else set()
        found: set[Leaf] = set()
        for one in part.parts:
            found |= self._first(one)
            if not self.may_be_empty(one):
                break
        return found

    def _look(self, leaves: int = 1) -> None:
        self._looked += leaves
        if self._looked > MOST:
            raise TooComplex

    @cached_property
    def _followers(self) -> dict[Leaf, set[Leaf]]:
        rules = {name: set[Leaf]() for name in self._grammar.rules}
        rules["start"] = {END}
        leaves: dict[Leaf, set[Leaf]] = {}
        count = -1
        while count != (count := sum(map(len, rules.values())) + sum(map(len, leaves.values()))):
            for name, body in self._grammar.rules.items():
                self._spread(body, rules[name], rules, leaves)
        between = set(self._grammar.ignored)
        for after in leaves.values():
            after |= between
        return leaves | {one: {*leaves, *between} for one in between}

    def _spread(
        self,
        part: Expr,
        after: set[Leaf],
        rules: dict[str, set[Leaf]],
        leaves: dict[Leaf, set[Leaf]],
    ) -> None:
        """Note what follows all that stands in a part."""
        self._look(1 + len(after))
        match part:
            case Leaf():
                leaves.setdefault(part, set()).update(after)
            case Called():
                rules[part.name] |= after
            case Options():
                for one in part.parts:
                    self._spread(one, after, rules, leaves)
            case Times():
                again = self._first(part.part) if part.most is None or part.most > 1 else set()
                self._spread(part.part, after | again, rules, leaves)
            case Row():
                for one in reversed(part.parts):
                    self._spread(one, after, rules, leaves)
                    first = self._first(one)
                    after = first | after if self.may_be_empty(one) else first

    def goes_on(self, leaf: Leaf, rest: str) -> bool:
        """Whether what follows a leaf can begin with a text."""
        queue, seen = [(leaf, rest)], {(leaf, rest)}
        for before, left in queue:
            after = self._followers.get(before, set()) - {END}
            self._look(len(after))
            for one in after:
                machine, state = self.machine(one), 0
                for at, letter in enumerate(left, 1):
                    to = machine.advance(state, letter)
                    if to is None:
                        break
                    if at == len(left):
                        return True
                    state, step = to, (one, left[at:])
                    if machine.accepting[to] and step not in seen:
                        seen.add(step)
                        queue.append(step)
        return False

    def begins_with(self, letter: str) -> bool:
        """Whether a text can begin with a letter."""
        return any(
            self.machine(leaf).advance(0, letter) is not None for leaf in self._firsts["start"]
        )

    def ends_with(self, letter: str) -> bool:
        """Whether a text can end with a letter."""
        for leaf, after in self._followers.items():
            machine = self.machine(leaf)
            if END in after and any(
                machine.accepting[to] and contains(letters, letter)
                for leads in machine.transitions
                for letters, to in leads
            ):
                return True
        return False
