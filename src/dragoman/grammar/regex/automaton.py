"""Deterministic finite automata over characters.

`regex_builder` computes one from the derivatives of an expression. The writers of client grammars
need it in the form that `trim_automaton` gives it: an accepting state can be reached from every
state, so the rule of a state always matches some text, and no transition leads back to the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.grammar.regex.char_sets import CharSet


class TooComplex(Exception):
    """An expression or grammar exceeds the limits on the work spent on it."""


@dataclass(frozen=True)
class Automaton:
    """States are numbered from 0, the start state; `transitions` lists those of each state.

    Every state leads to an accepting one. No transition leads back to the start state.
    """

    transitions: tuple[tuple[tuple[CharSet, int], ...], ...]
    accepting: tuple[bool, ...]

    def advance(self, state: int | None, text: str) -> int | None:
        """Return the state after a text, or None if the automaton rejects it."""
        for char in text:
            code, transitions = ord(char), () if state is None else self.transitions[state]
            state = next(
                (
                    target
                    for chars, target in transitions
                    if any(low <= code <= high for low, high in chars)
                ),
                None,
            )
        return state


def trim_automaton(transitions: Sequence[dict[int, CharSet]], accepting: list[bool]) -> Automaton:
    """Remove states that lead to no accepting one, and make the start state unreachable."""
    predecessors: dict[int, list[int]] = {}
    for state, targets in enumerate(transitions):
        for target in targets:
            predecessors.setdefault(target, []).append(state)
    alive = {state for state, accepts in enumerate(accepting) if accepts}
    queue = list(alive)
    while queue:
        for state in predecessors.get(queue.pop(), ()):
            if state not in alive:
                alive.add(state)
                queue.append(state)
    start_is_reachable = 0 in alive and 0 in predecessors
    states = [0, *([0] if start_is_reachable else []), *sorted(alive - {0})]
    # if the start state occurs twice, transitions lead to its copy
    numbers = {state: number for number, state in enumerate(states)}
    return Automaton(
        tuple(
            tuple(
                (chars, numbers[target])
                for target, chars in transitions[state].items()
                if target in alive
            )
            for state in states
        ),
        tuple(accepting[state] for state in states),
    )
