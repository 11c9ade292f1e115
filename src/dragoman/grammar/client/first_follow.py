"""FIRST and FOLLOW sets: which terminals a text or rule can start with, and which can follow.

They are computed as for LL parsers: as fixed points over the rules, regardless of the context that
a rule is called from.
"""

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

END_OF_TEXT = Terminal("")  # follows the last terminal
MAX_VISITED = 400_000  # terminals


class FollowSets:
    """The FIRST and FOLLOW sets of one grammar."""

    def __init__(self, grammar: LarkGrammar) -> None:
        self._grammar = grammar
        self._regexes = grammar.regexes
        self._automata: dict[str | int, Automaton] = {}
        self._visited = 0
        self._nullable_rules: set[str] = set()
        self._first_sets: dict[str, set[Terminal]] = {name: set() for name in grammar.rules}
        while self._extend_first_sets():
            pass

    def _extend_first_sets(self) -> bool:
        """Do one round of the fixed point; return whether a set has grown."""
        has_grown = False
        for name, body in self._grammar.rules.items():
            if name not in self._nullable_rules and self.is_nullable(body):
                self._nullable_rules.add(name)
                has_grown = True
            first_set = self._first_sets[name]
            size = len(first_set)
            first_set |= self._find_first_set(body)
            has_grown = has_grown or len(first_set) > size
        return has_grown

    def get_automaton(self, terminal: Terminal) -> Automaton:
        if terminal.value not in self._automata:
            regex = self._grammar.to_regex(terminal)
            self._automata[terminal.value] = self._regexes.get_automaton(regex)
        return self._automata[terminal.value]

    def is_nullable_rule(self, rule: str) -> bool:
        """Whether a rule matches the empty text."""
        return rule in self._nullable_rules

    def can_be_nonempty(self, rule: str) -> bool:
        """Whether a rule matches any other text than the empty one."""
        return bool(self._first_sets[rule])

    def is_nullable(self, expression: Expression) -> bool:
        match expression:
            case Terminal():
                value = expression.value
                return not value if isinstance(value, str) else self._regexes.is_nullable(value)
            case RuleCall():
                return expression.name in self._nullable_rules
            case Concatenation():
                return all(map(self.is_nullable, expression.parts))
            case Alternation():
                return any(map(self.is_nullable, expression.parts))
            case Repetition():
                return expression.min_count == 0 or self.is_nullable(expression.part)

    def _find_first_set(self, expression: Expression) -> set[Terminal]:
        terminals = self._compute_first_set(expression)
        self._count_visits(1 + len(terminals))
        return terminals

    def _compute_first_set(self, expression: Expression) -> set[Terminal]:
        match expression:
            case Terminal():
                return {expression} if expression.value != "" else set()
            case RuleCall():
                return self._first_sets[expression.name]
            case Alternation():
                return set().union(*map(self._find_first_set, expression.parts))
            case Repetition():
                return self._find_first_set(expression.part) if expression.max_count != 0 else set()
        terminals: set[Terminal] = set()
        for part in expression.parts:
            terminals |= self._find_first_set(part)
            if not self.is_nullable(part):
                break
        return terminals

    def _count_visits(self, terminals: int) -> None:
        self._visited += terminals
        if self._visited > MAX_VISITED:
            raise TooComplex

    @cached_property
    def _follow_sets(self) -> dict[Terminal, set[Terminal]]:
        rules = {name: set[Terminal]() for name in self._grammar.rules}
        rules["start"] = {END_OF_TEXT}
        terminals: dict[Terminal, set[Terminal]] = {}
        size = -1
        while size != (size := sum(map(len, rules.values())) + sum(map(len, terminals.values()))):
            for name, body in self._grammar.rules.items():
                self._propagate_follow(body, rules[name], rules, terminals)
        ignored = set(self._grammar.ignored)
        for follow_set in terminals.values():
            follow_set |= ignored
        return terminals | {terminal: {*terminals, *ignored} for terminal in ignored}

    def _propagate_follow(
        self,
        expression: Expression,
        follow_set: set[Terminal],
        rules: dict[str, set[Terminal]],
        terminals: dict[Terminal, set[Terminal]],
    ) -> None:
        """Add what follows an expression to the sets of the rules and terminals that can end it."""
        self._count_visits(1 + len(follow_set))
        match expression:
            case Terminal():
                terminals.setdefault(expression, set()).update(follow_set)
            case RuleCall():
                rules[expression.name] |= follow_set
            case Alternation():
                for part in expression.parts:
                    self._propagate_follow(part, follow_set, rules, terminals)
            case Repetition(part=part, max_count=max_count):
                repeats = max_count is None or max_count > 1
                first_set = self._find_first_set(part) if repeats else set()
                self._propagate_follow(part, follow_set | first_set, rules, terminals)
            case Concatenation():
                for part in reversed(expression.parts):
                    self._propagate_follow(part, follow_set, rules, terminals)
                    first_set = self._find_first_set(part)
                    follow_set = first_set | follow_set if self.is_nullable(part) else first_set

    def can_continue_with(self, terminal: Terminal, text: str) -> bool:
        """Whether what follows a terminal can start with a text."""
        queue, seen = [(terminal, text)], {(terminal, text)}
        for previous, rest in queue:
            follow_set = self._follow_sets.get(previous, set()) - {END_OF_TEXT}
            self._count_visits(len(follow_set))
            for following in follow_set:
                automaton, state = self.get_automaton(following), 0
                for length, char in enumerate(rest, 1):
                    target = automaton.advance(state, char)
                    if target is None:
                        break
                    if length == len(rest):
                        return True
                    state, step = target, (following, rest[length:])
                    if automaton.accepting[target] and step not in seen:
                        seen.add(step)
                        queue.append(step)
        return False

    def can_start_with(self, text: str) -> bool:
        """Whether the first terminal of a text can start with some characters."""
        return any(
            self.get_automaton(terminal).advance(0, text) is not None
            for terminal in self._first_sets["start"]
        )
