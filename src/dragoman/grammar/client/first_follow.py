"""What may stand next to what in a grammar: which leaves follow a leaf, begin a text, end one."""

from __future__ import annotations

from functools import cached_property

from dragoman.grammar.client.lark_parser import (
    Alternation,
    Concatenation,
    Expression,
    LarkGrammar,
    Repetition,
    RuleCall,
    Terminal,
)
from dragoman.grammar.regex.automaton import Automaton, TooComplex
from dragoman.grammar.regex.char_sets import contains

END_OF_TEXT = Terminal("")  # what follows the last leaf
MAX_VISITED = 400_000  # leaves that are looked at


class FollowSets:
    """Answers for one grammar. Rules are taken for the same wherever they are called."""

    def __init__(self, grammar: LarkGrammar) -> None:
        self._grammar = grammar
        self._automata: dict[str | int, Automaton] = {}
        self._visited = 0
        self._nullable_rules: set[str] = set()  # rules that may say nothing
        self._first_sets: dict[str, set[Terminal]] = {name: set() for name in grammar.rules}
        while self._extend_first_sets():
            pass

    def _extend_first_sets(self) -> bool:
        """Whether more became known of where rules begin."""
        grew = False
        for name, body in self._grammar.rules.items():
            if name not in self._nullable_rules and self.is_nullable(body):
                self._nullable_rules.add(name)
                grew = True
            known = self._first_sets[name]
            before = len(known)
            known |= self._first_set(body)
            grew = grew or len(known) > before
        return grew

    def get_automaton(self, leaf: Terminal) -> Automaton:
        if leaf.value not in self._automata:
            patterns = self._grammar.regexes
            self._automata[leaf.value] = patterns.get_automaton(self._grammar.to_regex(leaf))
        return self._automata[leaf.value]

    def is_nullable_rule(self, rule: str) -> bool:
        """Whether a rule may say nothing."""
        return rule in self._nullable_rules

    def can_be_nonempty(self, rule: str) -> bool:
        """Whether a rule may say something."""
        return bool(self._first_sets[rule])

    def is_nullable(self, part: Expression) -> bool:
        match part:
            case Terminal():
                said = part.value
                return (
                    not said if isinstance(said, str) else self._grammar.regexes.is_nullable(said)
                )
            case RuleCall():
                return part.name in self._nullable_rules
            case Concatenation():
                return all(map(self.is_nullable, part.parts))
            case Alternation():
                return any(map(self.is_nullable, part.parts))
            case Repetition():
                return part.min_count == 0 or self.is_nullable(part.part)

    def _first_set(self, part: Expression) -> set[Terminal]:
        found = self._compute_first_set(part)
        self._count_visits(1 + len(found))
        return found

    def _compute_first_set(self, part: Expression) -> set[Terminal]:
        match part:
            case Terminal():
                return {part} if part.value != "" else set()
            case RuleCall():
                return self._first_sets[part.name]
            case Alternation():
                return set().union(*map(self._first_set, part.parts))
            case Repetition():
                return self._first_set(part.part) if part.max_count != 0 else set()
        found: set[Terminal] = set()
        for one in part.parts:
            found |= self._first_set(one)
            if not self.is_nullable(one):
                break
        return found

    def _count_visits(self, leaves: int = 1) -> None:
        self._visited += leaves
        if self._visited > MAX_VISITED:
            raise TooComplex

    @cached_property
    def _follow_sets(self) -> dict[Terminal, set[Terminal]]:
        rules = {name: set[Terminal]() for name in self._grammar.rules}
        rules["start"] = {END_OF_TEXT}
        leaves: dict[Terminal, set[Terminal]] = {}
        count = -1
        while count != (count := sum(map(len, rules.values())) + sum(map(len, leaves.values()))):
            for name, body in self._grammar.rules.items():
                self._propagate_follow(body, rules[name], rules, leaves)
        between = set(self._grammar.ignored)
        for after in leaves.values():
            after |= between
        return leaves | {one: {*leaves, *between} for one in between}

    def _propagate_follow(
        self,
        part: Expression,
        after: set[Terminal],
        rules: dict[str, set[Terminal]],
        leaves: dict[Terminal, set[Terminal]],
    ) -> None:
        """Note what follows all that stands in a part."""
        self._count_visits(1 + len(after))
        match part:
            case Terminal():
                leaves.setdefault(part, set()).update(after)
            case RuleCall():
                rules[part.name] |= after
            case Alternation():
                for one in part.parts:
                    self._propagate_follow(one, after, rules, leaves)
            case Repetition():
                again = (
                    self._first_set(part.part)
                    if part.max_count is None or part.max_count > 1
                    else set()
                )
                self._propagate_follow(part.part, after | again, rules, leaves)
            case Concatenation():
                for one in reversed(part.parts):
                    self._propagate_follow(one, after, rules, leaves)
                    first = self._first_set(one)
                    after = first | after if self.is_nullable(one) else first

    def can_continue_with(self, leaf: Terminal, rest: str) -> bool:
        """Whether what follows a leaf can begin with a text."""
        queue, seen = [(leaf, rest)], {(leaf, rest)}
        for before, left in queue:
            after = self._follow_sets.get(before, set()) - {END_OF_TEXT}
            self._count_visits(len(after))
            for one in after:
                machine, state = self.get_automaton(one), 0
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

    def can_start_with(self, letter: str) -> bool:
        """Whether a text can begin with a letter."""
        return any(
            self.get_automaton(leaf).advance(0, letter) is not None
            for leaf in self._first_sets["start"]
        )

    def ends_with(self, letter: str) -> bool:
        """Whether a text can end with a letter."""
        for leaf, after in self._follow_sets.items():
            machine = self.get_automaton(leaf)
            if END_OF_TEXT in after and any(
                machine.accepting[to] and contains(letters, letter)
                for leads in machine.transitions
                for letters, to in leads
            ):
                return True
        return False
