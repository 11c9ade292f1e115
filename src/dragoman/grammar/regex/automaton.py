"""Regular expressions, read and followed letter by letter.

An expression is a number: the same expression always has the same one, so that what comes of it is
worked out once. What may follow a letter is again an expression (its derivative), and those that
come up are the states of a machine. That holds for `&` and `~` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from dragoman.grammar.regex.char_sets import (
    ALL_CHARS,
    NO_CHARS,
    CharSet,
    complement,
    intersect,
    to_regex_class,
    union_ranges,
)

MAX_EXPRESSIONS = 20_000  # expressions
MAX_STATES = 1_000
MAX_UNROLLED = 8  # repetitions that are told apart
MAX_COMPARED_RANGES = 200_000  # that are compared
MAX_DERIVATIVES = 100_000  # from one expression to another

Kind: TypeAlias = Literal["one", "row", "any", "both", "other", "times"]


class TooComplex(Exception):
    """More than we are willing to work out."""


class RegexNode(NamedTuple):
    """What an expression is."""

    kind: Kind
    parts: tuple[int, ...] = ()
    chars: CharSet = NO_CHARS
    min_count: int = 0
    max_count: int | None = None


@dataclass(frozen=True)
class Automaton:
    """States from 0 on: where letters lead from each, and whether a text may end there.

    Every state leads to an end; none leads back to the first.
    """

    transitions: tuple[tuple[tuple[CharSet, int], ...], ...]
    accepting: tuple[bool, ...]

    def advance(self, state: int | None, text: str) -> int | None:
        """The state after a text; None where it cannot come."""
        for letter in text:
            code, leads = ord(letter), () if state is None else self.transitions[state]
            state = next(
                (to for some, to in leads if any(low <= code <= high for low, high in some)), None
            )
        return state


class CharSplit(NamedTuple):
    """A way to a letter: what stands before it, which it may be, and what follows it."""

    before: int
    chars: CharSet
    after: int


class RegexBuilder:
    """Expressions of one grammar."""

    def __init__(self) -> None:
        self._nodes: list[RegexNode] = []
        self._ids: dict[RegexNode, int] = {}
        self._nullable: list[bool] = []  # whether it matches nothing at all, too
        self._char_classes: dict[int, tuple[CharSet, ...]] = {}
        self._compared_ranges = 0
        self._derivatives: dict[tuple[int, int], int] = {}
        self._automata: dict[int, Automaton] = {}
        self.empty_language = self.char(NO_CHARS)
        self.empty_string = self._intern(RegexNode("row"), empty=True)
        self.any_string = self.repeat(self.char(ALL_CHARS), 0, None)

    # making them

    def char(self, letters: CharSet) -> int:
        """One letter."""
        return self._intern(RegexNode("one", chars=letters), empty=False)

    def literal(self, said: str) -> int:
        return self.concat(self.char(((ord(letter), ord(letter)),)) for letter in said)

    def concat(self, parts: Iterable[int]) -> int:
        """One after the other."""
        found = self.empty_string
        for part in reversed(list(parts)):
            found = self._concat_pair(part, found)
        return found

    def _concat_pair(self, first: int, rest: int) -> int:
        if self.empty_language in (first, rest):
            return self.empty_language
        if self.empty_string in (first, rest):
            return rest if first == self.empty_string else first
        key = self._nodes[first]
        if key.kind == "row":  # the first part of a row is never one itself
            return self._concat_pair(key.parts[0], self._concat_pair(key.parts[1], rest))
        empty = self._nullable[first] and self._nullable[rest]
        return self._intern(RegexNode("row", (first, rest)), empty=empty)

    def union(self, options: Iterable[int]) -> int:
        found: set[int] = set()
        letters: list[tuple[int, int]] = []
        for option in options:
            for one in self._alternatives(option):
                key = self._nodes[one]
                if key.kind == "one":
                    letters += key.chars
                else:
                    found.add(one)
        if self.any_string in found:
            return self.any_string
        if letters:
            found.add(self.char(union_ranges(letters)))
        found.discard(self.empty_language)
        if len(found) < 2:
            return next(iter(found), self.empty_language)
        empty = any(self._nullable[one] for one in found)
        return self._intern(RegexNode("any", tuple(sorted(found))), empty=empty)

    def _alternatives(self, option: int) -> Iterable[int]:
        key = self._nodes[option]
        return key.parts if key.kind == "any" else (option,)

    def intersect(self, parts: Iterable[int]) -> int:
        found: set[int] = set()
        for part in parts:
            key = self._nodes[part]
            found.update(key.parts if key.kind == "both" else (part,))
        found.discard(self.any_string)
        if self.empty_language in found:
            return self.empty_language
        if len(found) < 2:
            return next(iter(found), self.any_string)
        empty = all(self._nullable[one] for one in found)
        return self._intern(RegexNode("both", tuple(sorted(found))), empty=empty)

    def complement(self, part: int) -> int:
        """All that the part does not match."""
        key = self._nodes[part]
        if key.kind == "other":
            return key.parts[0]
        if part == self.empty_language:
            return self.any_string
        if part == self.any_string:
            return self.empty_language
        return self._intern(RegexNode("other", (part,)), empty=not self._nullable[part])

    def repeat(self, part: int, least: int, most: int | None) -> int:
        if most == 0 or part == self.empty_string:
            return self.empty_string
        if part == self.empty_language:
            return self.empty_string if least == 0 else part
        if (least, most) == (1, 1):
            return part
        if self._nullable[part]:
            least = 0
        return self._intern(RegexNode("times", (part,), NO_CHARS, least, most), empty=least == 0)

    def _intern(self, key: RegexNode, empty: bool) -> int:
        if key not in self._ids:
            if len(self._nodes) >= MAX_EXPRESSIONS:
                raise TooComplex
            self._ids[key] = len(self._nodes)
            self._nodes.append(key)
            self._nullable.append(empty)
        return self._ids[key]

    # looking at them

    def collect_chars(self, part: int) -> CharSet | None:
        """All letters that are in what it matches; None where that takes a machine to tell."""
        found: list[tuple[int, int]] = []
        queue, seen = [part], {part}
        while queue:
            key = self._nodes[queue.pop()]
            if key.kind in ("both", "other"):
                return None
            found += key.chars
            inner = {one for one in key.parts if one not in seen}
            seen |= inner
            queue += inner
        return union_ranges(found)

    def to_regex(self, part: int, one: Callable[[CharSet], str] = to_regex_class) -> str:
        """A regular expression, of one without `&` and `~`; `one` writes one letter of it."""
        key = self._nodes[part]
        inner = [self.to_regex(each, one) for each in key.parts]
        match key.kind:
            case "one":
                return one(key.chars)
            case "row":
                return "".join(inner)
            case "any":
                return f"(?:{'|'.join(inner)})"
        most = "" if key.max_count is None else key.max_count
        return f"(?:{inner[0]}){{{key.min_count},{most}}}"

    def is_nullable(self, part: int) -> bool:
        """Whether it matches no letter at all, too."""
        return self._nullable[part]

    def restrict_to(self, part: int, letters: CharSet) -> int:
        """What it matches that has only these letters; it must be one without `&` and `~`."""
        key = self._nodes[part]
        inner = [self.restrict_to(one, letters) for one in key.parts]
        match key.kind:
            case "one":
                return self.char(intersect(key.chars, letters))
            case "row":
                return self.concat(inner)
            case "any":
                return self.union(inner)
        return self.repeat(inner[0], key.min_count, key.max_count)

    def split_at_first(self, part: int, letters: CharSet, plain: CharSet) -> list[CharSplit]:
        """All ways to the first of some letters, with plain ones before it.

        It must be one without `&` and `~`; `TooComplex` where ways would have to be counted.
        """
        key = self._nodes[part]
        match key.kind:
            case "one":
                some = intersect(key.chars, letters)
                return [CharSplit(self.empty_string, some, self.empty_string)] if some else []
            case "any":
                return [
                    cut for one in key.parts for cut in self.split_at_first(one, letters, plain)
                ]
            case "row":
                found, before = [], self.empty_string
                for at, one in enumerate(key.parts):
                    cuts = self.split_at_first(one, letters, plain)
                    found += self._wrap_splits(before, cuts, self.concat(key.parts[at + 1 :]))
                    before = self._concat_pair(before, self.restrict_to(one, plain))
                return found
        [inner] = key.parts
        cuts, same = self.split_at_first(inner, letters, plain), self.restrict_to(inner, plain)
        if cuts and max(key.min_count, key.max_count or 0) > MAX_UNROLLED:
            raise TooComplex
        found = []
        for count in range(max(1, key.min_count) if key.max_count is None else key.max_count):
            most = None if key.max_count is None else key.max_count - count - 1
            rest = self.repeat(inner, max(0, key.min_count - count - 1), most)
            endless = most is None and count >= key.min_count - 1  # this way stands for all others
            found += self._wrap_splits(
                self.repeat(same, count, None if endless else count), cuts, rest
            )
        return found

    def _wrap_splits(self, before: int, cuts: Iterable[CharSplit], after: int) -> list[CharSplit]:
        return [
            CharSplit(
                self._concat_pair(before, cut.before),
                cut.chars,
                self._concat_pair(cut.after, after),
            )
            for cut in cuts
        ]

    def get_automaton(self, part: int) -> Automaton:
        if part not in self._automata:
            self._automata[part] = self._build_automaton(part)
        return self._automata[part]

    def _build_automaton(self, part: int) -> Automaton:
        states = {part: 0}
        queue, leads = [part], []
        for state in queue:
            found: dict[int, list[tuple[int, int]]] = {}
            for letters in self._get_char_classes(state):
                to = self._derive(state, letters[0][0])
                if to != self.empty_language:
                    found.setdefault(to, []).extend(letters)
            for to in found:
                if to not in states:
                    states[to] = len(states)
                    queue.append(to)
            if len(states) > MAX_STATES:
                raise TooComplex
            leads.append({states[to]: union_ranges(some) for to, some in found.items()})
        return trim_automaton(leads, [self._nullable[state] for state in queue])

    def _derive(self, part: int, code: int) -> int:
        """What may follow a letter."""
        step = part, code
        if step not in self._derivatives:
            if len(self._derivatives) > MAX_DERIVATIVES:
                raise TooComplex
            self._derivatives[step] = self._compute_derivative(part, code)
        return self._derivatives[step]

    def _compute_derivative(self, part: int, code: int) -> int:
        key = self._nodes[part]
        match key.kind:
            case "one":
                hit = any(low <= code <= high for low, high in key.chars)
                return self.empty_string if hit else self.empty_language
            case "row":
                if not key.parts:
                    return self.empty_language
                first, rest = key.parts
                found = self._concat_pair(self._derive(first, code), rest)
                return (
                    self.union((found, self._derive(rest, code)))
                    if self._nullable[first]
                    else found
                )
            case "any":
                return self.union(self._derive(one, code) for one in key.parts)
            case "both":
                return self.intersect(self._derive(one, code) for one in key.parts)
            case "other":
                return self.complement(self._derive(key.parts[0], code))
            case "times":
                most = None if key.max_count is None else key.max_count - 1
                left = self.repeat(key.parts[0], max(0, key.min_count - 1), most)
                return self._concat_pair(self._derive(key.parts[0], code), left)

    def _get_char_classes(self, part: int) -> tuple[CharSet, ...]:
        """Letters in groups: what may follow is the same after all letters of one."""
        if part not in self._char_classes:
            self._char_classes[part] = self._compute_char_classes(part)
        return self._char_classes[part]

    def _compute_char_classes(self, part: int) -> tuple[CharSet, ...]:
        key = self._nodes[part]
        if key.kind == "one":
            return tuple(some for some in (key.chars, complement(key.chars)) if some)
        if key.kind == "row" and key.parts and not self._nullable[key.parts[0]]:
            return self._get_char_classes(key.parts[0])
        return self._refine_char_classes(key.parts)

    def _refine_char_classes(self, parts: Iterable[int]) -> tuple[CharSet, ...]:
        found: list[CharSet] = [ALL_CHARS]
        for part in parts:
            groups = self._get_char_classes(part)
            self._compared_ranges += len(found) * len(groups)
            self._compared_ranges += sum(map(len, found)) + sum(map(len, groups))
            if self._compared_ranges > MAX_COMPARED_RANGES:
                raise TooComplex
            found = [some for left in found for right in groups if (some := intersect(left, right))]
        return tuple(found)


def trim_automaton(leads: list[dict[int, CharSet]], ends: list[bool]) -> Automaton:
    """The machine without what leads nowhere, its first state apart from all others."""
    backwards: dict[int, list[int]] = {}
    for state, to in enumerate(leads):
        for one in to:
            backwards.setdefault(one, []).append(state)
    alive = {state for state, end in enumerate(ends) if end}
    queue = list(alive)
    while queue:
        for before in backwards.get(queue.pop(), ()):
            if before not in alive:
                alive.add(before)
                queue.append(before)
    again = 0 in alive and 0 in backwards
    kept = [0, *([0] if again else []), *sorted(alive - {0})]
    places = {state: place for place, state in enumerate(kept)}  # the first again has the second
    return Automaton(
        tuple(
            tuple((letters, places[to]) for to, letters in leads[state].items() if to in alive)
            for state in kept
        ),
        tuple(ends[state] for state in kept),
    )
