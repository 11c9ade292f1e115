"""Regular expressions, read and followed letter by letter.

An expression is a number: the same expression always has the same one, so that what comes of it is
worked out once. What may follow a letter is again an expression (its derivative), and those that
come up are the states of a machine. That holds for `&` and `~` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from dragoman.grammar.regex.char_sets import ALL_CHARS, NO_CHARS, CharSet, to_regex_class, union_ranges, intersect, complement

MOST = 20_000  # expressions
MOST_STATES = 1_000
MOST_COUNTED = 8  # repetitions that are told apart
MOST_RANGES = 200_000  # that are compared
MOST_STEPS = 100_000  # from one expression to another

Kind: TypeAlias = Literal["one", "row", "any", "both", "other", "times"]


class TooComplex(Exception):
    """More than we are willing to work out."""


class Key(NamedTuple):
    """What an expression is."""

    kind: Kind
    parts: tuple[int, ...] = ()
    letters: CharSet = NO_CHARS
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Automaton:
    """States from 0 on: where letters lead from each, and whether a text may end there.

    Every state leads to an end; none leads back to the first.
    """

    transitions: tuple[tuple[tuple[CharSet, int], ...], ...]
    ends: tuple[bool, ...]

    def after(self, state: int | None, text: str) -> int | None:
        """The state after a text; None where it cannot come."""
        for letter in text:
            code, leads = ord(letter), () if state is None else self.transitions[state]
            state = next(
                (to for some, to in leads if any(low <= code <= high for low, high in some)), None
            )
        return state


class Cut(NamedTuple):
    """A way to a letter: what stands before it, which it may be, and what follows it."""

    before: int
    letters: CharSet
    after: int


class Patterns:
    """Expressions of one grammar."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._known: dict[Key, int] = {}
        self._empty: list[bool] = []  # whether it matches nothing at all, too
        self._splits: dict[int, tuple[CharSet, ...]] = {}
        self._compared = 0
        self._steps: dict[tuple[int, int], int] = {}
        self._machines: dict[int, Automaton] = {}
        self.nothing = self.one(NO_CHARS)
        self.blank = self._number(Key("row"), empty=True)
        self.everything = self.times(self.one(ALL_CHARS), 0, None)

    # making them

    def one(self, letters: CharSet) -> int:
        """One letter."""
        return self._number(Key("one", letters=letters), empty=False)

    def text(self, said: str) -> int:
        return self.row(self.one(((ord(letter), ord(letter)),)) for letter in said)

    def row(self, parts: Iterable[int]) -> int:
        """One after the other."""
        found = self.blank
        for part in reversed(list(parts)):
            found = self._before(part, found)
        return found

    def _before(self, first: int, rest: int) -> int:
        if self.nothing in (first, rest):
            return self.nothing
        if self.blank in (first, rest):
            return rest if first == self.blank else first
        key = self._keys[first]
        if key.kind == "row":  # the first part of a row is never one itself
            return self._before(key.parts[0], self._before(key.parts[1], rest))
        empty = self._empty[first] and self._empty[rest]
        return self._number(Key("row", (first, rest)), empty=empty)

    def any(self, options: Iterable[int]) -> int:
        found: set[int] = set()
        letters: list[tuple[int, int]] = []
        for option in options:
            for one in self._options(option):
                key = self._keys[one]
                if key.kind == "one":
                    letters += key.letters
                else:
                    found.add(one)
        if self.everything in found:
            return self.everything
        if letters:
            found.add(self.one(union_ranges(letters)))
        found.discard(self.nothing)
        if len(found) < 2:
            return next(iter(found), self.nothing)
        empty = any(self._empty[one] for one in found)
        return self._number(Key("any", tuple(sorted(found))), empty=empty)

    def _options(self, option: int) -> Iterable[int]:
        key = self._keys[option]
        return key.parts if key.kind == "any" else (option,)

    def both(self, parts: Iterable[int]) -> int:
        found: set[int] = set()
        for part in parts:
            key = self._keys[part]
            found.update(key.parts if key.kind == "both" else (part,))
        found.discard(self.everything)
        if self.nothing in found:
            return self.nothing
        if len(found) < 2:
            return next(iter(found), self.everything)
        empty = all(self._empty[one] for one in found)
        return self._number(Key("both", tuple(sorted(found))), empty=empty)

    def other(self, part: int) -> int:
        """All that the part does not match."""
        key = self._keys[part]
        if key.kind == "other":
            return key.parts[0]
        if part == self.nothing:
            return self.everything
        if part == self.everything:
            return self.nothing
        return self._number(Key("other", (part,)), empty=not self._empty[part])

    def times(self, part: int, least: int, most: int | None) -> int:
        if most == 0 or part == self.blank:
            return self.blank
        if part == self.nothing:
            return self.blank if least == 0 else part
        if (least, most) == (1, 1):
            return part
        if self._empty[part]:
            least = 0
        return self._number(Key("times", (part,), NO_CHARS, least, most), empty=least == 0)

    def _number(self, key: Key, empty: bool) -> int:
        if key not in self._known:
            if len(self._keys) >= MOST:
                raise TooComplex
            self._known[key] = len(self._keys)
            self._keys.append(key)
            self._empty.append(empty)
        return self._known[key]

    # looking at them

    def letters(self, part: int) -> CharSet | None:
        """All letters that are in what it matches; None where that takes a machine to tell."""
        found: list[tuple[int, int]] = []
        queue, seen = [part], {part}
        while queue:
            key = self._keys[queue.pop()]
            if key.kind in ("both", "other"):
                return None
            found += key.letters
            inner = {one for one in key.parts if one not in seen}
            seen |= inner
            queue += inner
        return union_ranges(found)

    def written(self, part: int, one: Callable[[CharSet], str] = to_regex_class) -> str:
        """A regular expression, of one without `&` and `~`; `one` writes one letter of it."""
        key = self._keys[part]
        inner = [self.written(each, one) for each in key.parts]
        match key.kind:
            case "one":
                return one(key.letters)
            case "row":
                return "".join(inner)
            case "any":
                return f"(?:{'|'.join(inner)})"
        most = "" if key.most is None else key.most
        return f"(?:{inner[0]}){{{key.least},{most}}}"

    def empty(self, part: int) -> bool:
        """Whether it matches no letter at all, too."""
        return self._empty[part]

    def within(self, part: int, letters: CharSet) -> int:
        """What it matches that has only these letters; it must be one without `&` and `~`."""
        key = self._keys[part]
        inner = [self.within(one, letters) for one in key.parts]
        match key.kind:
            case "one":
                return self.one(intersect(key.letters, letters))
            case "row":
                return self.row(inner)
            case "any":
                return self.any(inner)
        return self.times(inner[0], key.least, key.most)

    def cut(self, part: int, letters: CharSet, plain: CharSet) -> list[Cut]:
        """All ways to the first of some letters, with plain ones before it.

        It must be one without `&` and `~`; `TooComplex` where ways would have to be counted.
        """
        key = self._keys[part]
        match key.kind:
            case "one":
                some = intersect(key.letters, letters)
                return [Cut(self.blank, some, self.blank)] if some else []
            case "any":
                return [cut for one in key.parts for cut in self.cut(one, letters, plain)]
            case "row":
                found, before = [], self.blank
                for at, one in enumerate(key.parts):
                    cuts = self.cut(one, letters, plain)
                    found += self._around(before, cuts, self.row(key.parts[at + 1 :]))
                    before = self._before(before, self.within(one, plain))
                return found
        [inner] = key.parts
        cuts, same = self.cut(inner, letters, plain), self.within(inner, plain)
        if cuts and max(key.least, key.most or 0) > MOST_COUNTED:
            raise TooComplex
        found = []
        for count in range(max(1, key.least) if key.most is None else key.most):
            most = None if key.most is None else key.most - count - 1
            rest = self.times(inner, max(0, key.least - count - 1), most)
            endless = most is None and count >= key.least - 1  # this way stands for all others
            found += self._around(self.times(same, count, None if endless else count), cuts, rest)
        return found

    def _around(self, before: int, cuts: Iterable[Cut], after: int) -> list[Cut]:
        return [
            Cut(self._before(before, cut.before), cut.letters, self._before(cut.after, after))
            for cut in cuts
        ]

    def machine(self, part: int) -> Automaton:
        if part not in self._machines:
            self._machines[part] = self._machine(part)
        return self._machines[part]

    def _machine(self, part: int) -> Automaton:
        states = {part: 0}
        queue, leads = [part], []
        for state in queue:
            found: dict[int, list[tuple[int, int]]] = {}
            for letters in self._split(state):
                to = self._after(state, letters[0][0])
                if to != self.nothing:
                    found.setdefault(to, []).extend(letters)
            for to in found:
                if to not in states:
                    states[to] = len(states)
                    queue.append(to)
            if len(states) > MOST_STATES:
                raise TooComplex
            leads.append({states[to]: union_ranges(some) for to, some in found.items()})
        return _trimmed(leads, [self._empty[state] for state in queue])

    def _after(self, part: int, code: int) -> int:
        """What may follow a letter."""
        step = part, code
        if step not in self._steps:
            if len(self._steps) > MOST_STEPS:
                raise TooComplex
            self._steps[step] = self._worked_out(part, code)
        return self._steps[step]

    def _worked_out(self, part: int, code: int) -> int:
        key = self._keys[part]
        match key.kind:
            case "one":
                hit = any(low <= code <= high for low, high in key.letters)
                return self.blank if hit else self.nothing
            case "row":
                if not key.parts:
                    return self.nothing
                first, rest = key.parts
                found = self._before(self._after(first, code), rest)
                return self.any((found, self._after(rest, code))) if self._empty[first] else found
            case "any":
                return self.any(self._after(one, code) for one in key.parts)
            case "both":
                return self.both(self._after(one, code) for one in key.parts)
            case "other":
                return self.other(self._after(key.parts[0], code))
            case "times":
                most = None if key.most is None else key.most - 1
                left = self.times(key.parts[0], max(0, key.least - 1), most)
                return self._before(self._after(key.parts[0], code), left)

    def _split(self, part: int) -> tuple[CharSet, ...]:
        """Letters in groups: what may follow is the same after all letters of one."""
        if part not in self._splits:
            self._splits[part] = self._groups(part)
        return self._splits[part]

    def _groups(self, part: int) -> tuple[CharSet, ...]:
        key = self._keys[part]
        if key.kind == "one":
            return tuple(some for some in (key.letters, complement(key.letters)) if some)
        if key.kind == "row" and key.parts and not self._empty[key.parts[0]]:
            return self._split(key.parts[0])
        return self._crossed(key.parts)

    def _crossed(self, parts: Iterable[int]) -> tuple[CharSet, ...]:
        found: list[CharSet] = [ALL_CHARS]
        for part in parts:
            groups = self._split(part)
            self._compared += len(found) * len(groups)
            self._compared += sum(map(len, found)) + sum(map(len, groups))
            if self._compared > MOST_RANGES:
                raise TooComplex
            found = [some for left in found for right in groups if (some := intersect(left, right))]
        return tuple(found)


def _trimmed(leads: list[dict[int, CharSet]], ends: list[bool]) -> Automaton:
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
