"""Builds regular expressions, including intersections and complements, and their automata.

An expression is represented by a number. Equal expressions have the same number (hash-consing), so
that every result about an expression is computed once. Automata come from Brzozowski derivatives:
what may follow a character is again an expression, and the expressions that occur are the states.
Unlike other constructions, this one covers `&` and `~`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

from dragoman.grammar.regex.automaton import Automaton, TooComplex, trim_automaton
from dragoman.grammar.regex.char_sets import (
    ALL_CHARS,
    NO_CHARS,
    CharSet,
    complement,
    intersect,
    to_regex_class,
    union_ranges,
)

MAX_EXPRESSIONS = 20_000
MAX_STATES = 1_000
MAX_UNROLLED = 8  # repetitions that `split_at_first` distinguishes
MAX_COMPARED_RANGES = 200_000
MAX_DERIVATIVES = 100_000

RegexId: TypeAlias = int
RegexKind: TypeAlias = Literal["char", "concat", "union", "intersection", "complement", "repeat"]


class RegexNode(NamedTuple):
    """The structure of an expression: its operator, operands and parameters."""

    kind: RegexKind
    parts: tuple[RegexId, ...] = ()  # a concatenation has two parts, or none if it is empty
    chars: CharSet = NO_CHARS
    min_count: int = 0
    max_count: int | None = None


class CharSplit(NamedTuple):
    """An expression split at one character: what precedes it, its possible values, the rest."""

    before: RegexId
    chars: CharSet
    after: RegexId


class RegexBuilder:
    """Builds and examines the expressions of one grammar."""

    def __init__(self) -> None:
        self._nodes: list[RegexNode] = []
        self._ids: dict[RegexNode, RegexId] = {}
        self._nullable: list[bool] = []
        self._char_classes: dict[RegexId, tuple[CharSet, ...]] = {}
        self._compared_ranges = 0
        self._derivatives: dict[tuple[RegexId, int], RegexId] = {}
        self._automata: dict[RegexId, Automaton] = {}
        self.empty_language = self.add_char(NO_CHARS)
        self.empty_string = self._intern(RegexNode("concat"), nullable=True)
        self.any_string = self.repeat(self.add_char(ALL_CHARS), 0, None)

    # construction

    def add_char(self, chars: CharSet) -> RegexId:
        """Return an expression for one character of a set."""
        return self._intern(RegexNode("char", chars=chars), nullable=False)

    def add_literal(self, text: str) -> RegexId:
        return self.concat(self.add_char(((ord(char), ord(char)),)) for char in text)

    def concat(self, parts: Iterable[RegexId]) -> RegexId:
        result = self.empty_string
        for part in reversed(list(parts)):
            result = self._concat_pair(part, result)
        return result

    def _concat_pair(self, first: RegexId, rest: RegexId) -> RegexId:
        if self.empty_language in (first, rest):
            return self.empty_language
        if self.empty_string in (first, rest):
            return rest if first == self.empty_string else first
        node = self._nodes[first]
        if node.kind == "concat":  # normal form: the first part of a concatenation is never one
            return self._concat_pair(node.parts[0], self._concat_pair(node.parts[1], rest))
        nullable = self._nullable[first] and self._nullable[rest]
        return self._intern(RegexNode("concat", (first, rest)), nullable=nullable)

    def union(self, options: Iterable[RegexId]) -> RegexId:
        members: set[RegexId] = set()
        chars: list[tuple[int, int]] = []
        for option in options:
            for alternative in self._list_alternatives(option):
                node = self._nodes[alternative]
                if node.kind == "char":
                    chars += node.chars
                else:
                    members.add(alternative)
        if self.any_string in members:
            return self.any_string
        if chars:
            members.add(self.add_char(union_ranges(chars)))
        members.discard(self.empty_language)
        if len(members) < 2:
            return next(iter(members), self.empty_language)
        nullable = any(self._nullable[member] for member in members)
        return self._intern(RegexNode("union", tuple(sorted(members))), nullable=nullable)

    def _list_alternatives(self, regex: RegexId) -> Iterable[RegexId]:
        node = self._nodes[regex]
        return node.parts if node.kind == "union" else (regex,)

    def intersect(self, parts: Iterable[RegexId]) -> RegexId:
        members: set[RegexId] = set()
        for part in parts:
            node = self._nodes[part]
            members.update(node.parts if node.kind == "intersection" else (part,))
        members.discard(self.any_string)
        if self.empty_language in members:
            return self.empty_language
        if len(members) < 2:
            return next(iter(members), self.any_string)
        nullable = all(self._nullable[member] for member in members)
        return self._intern(RegexNode("intersection", tuple(sorted(members))), nullable=nullable)

    def complement(self, regex: RegexId) -> RegexId:
        node = self._nodes[regex]
        if node.kind == "complement":
            return node.parts[0]
        if regex == self.empty_language:
            return self.any_string
        if regex == self.any_string:
            return self.empty_language
        return self._intern(RegexNode("complement", (regex,)), nullable=not self._nullable[regex])

    def repeat(self, regex: RegexId, min_count: int, max_count: int | None) -> RegexId:
        if max_count == 0 or regex == self.empty_string:
            return self.empty_string
        if regex == self.empty_language:
            return self.empty_string if min_count == 0 else regex
        if (min_count, max_count) == (1, 1):
            return regex
        if self._nullable[regex]:
            min_count = 0
        node = RegexNode("repeat", (regex,), NO_CHARS, min_count, max_count)
        return self._intern(node, nullable=min_count == 0)

    def _intern(self, node: RegexNode, nullable: bool) -> RegexId:
        if node not in self._ids:
            if len(self._nodes) >= MAX_EXPRESSIONS:
                raise TooComplex
            self._ids[node] = len(self._nodes)
            self._nodes.append(node)
            self._nullable.append(nullable)
        return self._ids[node]

    # examination

    def is_nullable(self, regex: RegexId) -> bool:
        """Whether an expression matches the empty string."""
        return self._nullable[regex]

    def collect_chars(self, regex: RegexId) -> CharSet | None:
        """Return all characters in an expression, or None if it contains `&` or `~`."""
        ranges: list[tuple[int, int]] = []
        queue, seen = [regex], {regex}
        while queue:
            node = self._nodes[queue.pop()]
            if node.kind in ("intersection", "complement"):
                return None
            ranges += node.chars
            parts = {part for part in node.parts if part not in seen}
            seen |= parts
            queue += parts
        return union_ranges(ranges)

    def to_regex(
        self, regex: RegexId, write_char: Callable[[CharSet], str] = to_regex_class
    ) -> str:
        """Write an expression without `&` and `~`; `write_char` writes one character of a set."""
        node = self._nodes[regex]
        parts = [self.to_regex(part, write_char) for part in node.parts]
        match node.kind:
            case "char":
                return write_char(node.chars)
            case "concat":
                return "".join(parts)
            case "union":
                return f"(?:{'|'.join(parts)})"
        max_count = "" if node.max_count is None else node.max_count
        return f"(?:{parts[0]}){{{node.min_count},{max_count}}}"

    def restrict_to(self, regex: RegexId, chars: CharSet) -> RegexId:
        """Restrict an expression without `&` and `~` to strings of these characters."""
        node = self._nodes[regex]
        parts = [self.restrict_to(part, chars) for part in node.parts]
        match node.kind:
            case "char":
                return self.add_char(intersect(node.chars, chars))
            case "concat":
                return self.concat(parts)
            case "union":
                return self.union(parts)
        return self.repeat(parts[0], node.min_count, node.max_count)

    def split_at_first(self, regex: RegexId, chars: CharSet, plain: CharSet) -> list[CharSplit]:
        """Split an expression in all ways at the first of some characters, with `plain` before it.

        The expression must be one without `&` and `~`. Raises `TooComplex` if it counts more
        repetitions than can be unrolled.
        """
        node = self._nodes[regex]
        match node.kind:
            case "char":
                matching = intersect(node.chars, chars)
                if not matching:
                    return []
                return [CharSplit(self.empty_string, matching, self.empty_string)]
            case "union":
                return [
                    split
                    for part in node.parts
                    for split in self.split_at_first(part, chars, plain)
                ]
            case "concat":
                result, before = [], self.empty_string
                for index, part in enumerate(node.parts):
                    splits = self.split_at_first(part, chars, plain)
                    result += self._wrap_splits(
                        before, splits, self.concat(node.parts[index + 1 :])
                    )
                    before = self._concat_pair(before, self.restrict_to(part, plain))
                return result
        return self._split_repetition(node, chars, plain)

    def _split_repetition(self, node: RegexNode, chars: CharSet, plain: CharSet) -> list[CharSplit]:
        [repeated] = node.parts
        splits = self.split_at_first(repeated, chars, plain)
        plain_part = self.restrict_to(repeated, plain)
        if splits and max(node.min_count, node.max_count or 0) > MAX_UNROLLED:
            raise TooComplex
        result = []
        for count in range(max(1, node.min_count) if node.max_count is None else node.max_count):
            max_rest = None if node.max_count is None else node.max_count - count - 1
            rest = self.repeat(repeated, max(0, node.min_count - count - 1), max_rest)
            # without an upper bound, the last round stands for all that would follow
            is_unbounded = max_rest is None and count >= node.min_count - 1
            before = self.repeat(plain_part, count, None if is_unbounded else count)
            result += self._wrap_splits(before, splits, rest)
        return result

    def _wrap_splits(
        self, before: RegexId, splits: Iterable[CharSplit], after: RegexId
    ) -> list[CharSplit]:
        return [
            CharSplit(
                self._concat_pair(before, split.before),
                split.chars,
                self._concat_pair(split.after, after),
            )
            for split in splits
        ]

    # automata

    def get_automaton(self, regex: RegexId) -> Automaton:
        if regex not in self._automata:
            self._automata[regex] = self._build_automaton(regex)
        return self._automata[regex]

    def _build_automaton(self, start: RegexId) -> Automaton:
        states = {start: 0}
        queue, transitions = [start], []
        for regex in queue:
            targets: dict[RegexId, list[tuple[int, int]]] = {}
            for chars in self._get_char_classes(regex):
                target = self._derive(regex, chars[0][0])
                if target != self.empty_language:
                    targets.setdefault(target, []).extend(chars)
            for target in targets:
                if target not in states:
                    states[target] = len(states)
                    queue.append(target)
            if len(states) > MAX_STATES:
                raise TooComplex
            transitions.append(
                {states[target]: union_ranges(ranges) for target, ranges in targets.items()}
            )
        return trim_automaton(transitions, [self._nullable[regex] for regex in queue])

    def _derive(self, regex: RegexId, code: int) -> RegexId:
        """Return the derivative of an expression: what may follow this character."""
        key = regex, code
        if key not in self._derivatives:
            if len(self._derivatives) > MAX_DERIVATIVES:
                raise TooComplex
            self._derivatives[key] = self._compute_derivative(regex, code)
        return self._derivatives[key]

    def _compute_derivative(self, regex: RegexId, code: int) -> RegexId:
        node = self._nodes[regex]
        match node.kind:
            case "char":
                matches = any(low <= code <= high for low, high in node.chars)
                return self.empty_string if matches else self.empty_language
            case "concat":
                if not node.parts:
                    return self.empty_language
                first, rest = node.parts
                result = self._concat_pair(self._derive(first, code), rest)
                if not self._nullable[first]:
                    return result
                return self.union((result, self._derive(rest, code)))
            case "union":
                return self.union(self._derive(part, code) for part in node.parts)
            case "intersection":
                return self.intersect(self._derive(part, code) for part in node.parts)
            case "complement":
                return self.complement(self._derive(node.parts[0], code))
            case "repeat":
                max_rest = None if node.max_count is None else node.max_count - 1
                rest = self.repeat(node.parts[0], max(0, node.min_count - 1), max_rest)
                return self._concat_pair(self._derive(node.parts[0], code), rest)

    def _get_char_classes(self, regex: RegexId) -> tuple[CharSet, ...]:
        """Partition all characters: the derivative is the same for all members of a class."""
        if regex not in self._char_classes:
            self._char_classes[regex] = self._compute_char_classes(regex)
        return self._char_classes[regex]

    def _compute_char_classes(self, regex: RegexId) -> tuple[CharSet, ...]:
        node = self._nodes[regex]
        if node.kind == "char":
            return tuple(chars for chars in (node.chars, complement(node.chars)) if chars)
        if node.kind == "concat" and node.parts and not self._nullable[node.parts[0]]:
            return self._get_char_classes(node.parts[0])
        return self._refine_char_classes(node.parts)

    def _refine_char_classes(self, parts: Iterable[RegexId]) -> tuple[CharSet, ...]:
        """Return the coarsest partition that refines those of all parts."""
        classes: list[CharSet] = [ALL_CHARS]
        for part in parts:
            finer = self._get_char_classes(part)
            self._compared_ranges += len(classes) * len(finer)
            self._compared_ranges += sum(map(len, classes)) + sum(map(len, finer))
            if self._compared_ranges > MAX_COMPARED_RANGES:
                raise TooComplex
            classes = [
                common for left in classes for right in finer if (common := intersect(left, right))
            ]
        return tuple(classes)
