"""Puts nodes together: what both of two nodes allow, exactly, and whether that is nothing.

`meet` says None where nodes cannot say it, or where it would take too long. What names no type
counts as it was said, so a choice is told to be exclusive by what its schema says, not by our
reading of it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dragoman.grammar.schema import limits, simplify
from dragoman.grammar.schema.llguidance_schema import Judge
from dragoman.grammar.schema.nodes import (
    Anything,
    Array,
    Either,
    Exactly,
    Foreign,
    Named,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.grammar.schema.simplify import NOTHING, Implied, either, item, several, size
from dragoman.types import Json


class Merger:
    """Merges the nodes of one schema.

    `known` gives what a name stands for, None where that is still being read; `outline` gives no
    less than what it stands for, at any time.
    """

    def __init__(
        self,
        known: Callable[[str], Node | None],
        outline: Callable[[str], Node],
        judge: Judge,
        budget: limits.Budget,
    ) -> None:
        self._known, self._outline, self._judge, self._budget = known, outline, judge, budget
        self._active: set[str] = set()
        self._values: dict[Exactly, set[str]] = {}
        self._level = 0

    def meet(self, one: Node, other: Node) -> Node | None:
        """What both allow; None where that cannot be said."""
        self._budget.step()
        for left, right in ((one, other), (other, one)):
            if isinstance(left, Anything):
                return right
            if isinstance(left, Nothing):
                return left
        if self._level >= limits.DEEPEST:
            return None
        self._level += 1
        try:
            return self._met(one, other)
        finally:
            self._level -= 1

    def _met(self, one: Node, other: Node) -> Node | None:
        if isinstance(one, Named):
            return self._named(one, other)
        if isinstance(other, Named):
            return self._named(other, one)
        if isinstance(one, Foreign) or isinstance(other, Foreign):
            return _foreign(one, other)
        if isinstance(one, Either) or isinstance(other, Either):
            return self._options(one, other)
        if isinstance(one, Exactly):
            return self._filtered(one, other)
        if isinstance(other, Exactly):
            return self._filtered(other, one)
        match one, other:
            case Text(), Text():
                return self._texts(one, other)
            case Number(), Number():
                return self._numbers(one, other)
            case Array(), Array():
                return self._arrays(one, other)
            case Object(), Object():
                return self._objects(one, other)
        return NOTHING

    def _named(self, one: Named, other: Node) -> Node | None:
        if one == other:
            return one
        if simplify.covers(other, self._outline(one.name)):
            return one
        found = None if one.name in self._active else self._known(one.name)
        if found is None:
            return None
        self._budget.step(size(found))
        self._active.add(one.name)
        try:
            return self.meet(found, other)
        finally:
            self._active.discard(one.name)

    def _options(self, one: Node, other: Node) -> Node | None:
        left = one.options if isinstance(one, Either) else (one,)
        right = other.options if isinstance(other, Either) else (other,)
        self._budget.step(size(one) * len(right) + size(other) * len(left))
        meant = rest = 0  # of both: how many come first
        if isinstance(one, Implied) and isinstance(other, Implied):
            meant, rest = one.meant, other.meant
        kept: list[Node] = []
        spare: list[Node] = []
        for at, mine in enumerate(left):
            for where, theirs in enumerate(right):
                met = self.meet(mine, theirs)
                if met is None:
                    return None
                soft = meant and at >= meant and where >= rest
                (spare if soft else kept).append(met)
        found, more = several(either(kept)), several(either(spare))
        if len(found) > max(limits.OPTIONS, len(left), len(right)):
            return None
        if found and more:
            return Implied((*found, *more), len(found))
        return either((*found, *more))

    def _filtered(self, one: Exactly, other: Node) -> Node | None:
        kept = []
        for text in one.values:
            fit = self.fits(json.loads(text), other)
            if fit is None:
                return None
            kept += [text] if fit else []
        return Exactly(tuple(kept)) if kept else NOTHING

    def _texts(self, one: Text, other: Text) -> Node | None:
        patterns = {one.pattern, other.pattern} - {None}
        formats = {one.format, other.format} - {None}
        if len(patterns) > 1 or len(formats) > 1:
            return None
        met = Text(
            max(one.least, other.least),
            simplify.least(one.most, other.most),
            one.pattern or other.pattern,
            one.format or other.format,
        )
        return self._judged(met)

    def _numbers(self, one: Number, other: Number) -> Node | None:
        multiple = simplify.common(one.multiple, other.multiple)
        if multiple == "":
            return None
        met = Number(
            one.integer or other.integer,
            simplify.tighter(one.minimum, other.minimum, max),
            simplify.tighter(one.maximum, other.maximum, min),
            simplify.tighter(one.above, other.above, max),
            simplify.tighter(one.below, other.below, min),
            multiple,
        )
        return self._judged(met)

    def _judged(self, node: Text | Number) -> Node | None:
        if simplify.impossible(node):
            return NOTHING
        said = self._judge.of(node)
        return NOTHING if said == "empty" else None if said == "refused" else node

    def _arrays(self, one: Array, other: Array) -> Node | None:
        first = []
        for index in range(max(len(one.first), len(other.first))):
            met = self.meet(item(one, index), item(other, index))
            if met is None:
                return None
            first.append(met)
        rest = self.meet(one.rest, other.rest)
        if rest is None:
            return None
        least, most = max(one.least, other.least), simplify.least(one.most, other.most)
        return simplify.array(Array(tuple(first), rest, least, most))

    def _objects(self, one: Object, other: Object) -> Node | None:
        mine, theirs = dict(one.members), dict(other.members)
        members = []
        for name in dict.fromkeys((*mine, *theirs)):
            met = self.meet(mine.get(name, one.others), theirs.get(name, other.others))
            if met is None:
                return None
            members.append((name, met))
        others = self.meet(one.others, other.others)
        if others is None:
            return None
        return simplify.object_(Object(tuple(members), one.required | other.required, others))

    # values

    def fits(self, value: Json, node: Node) -> bool | None:
        """Whether a node allows a value; None where one cannot tell. Formats count for nothing."""
        self._budget.step()
        if self._level >= limits.DEEPEST:
            return None
        self._level += 1
        try:
            return self._fit(value, node)
        finally:
            self._level -= 1

    def _fit(self, value: Json, node: Node) -> bool | None:
        match node:
            case Anything():
                return True
            case Nothing():
                return False
            case Exactly():
                return self._listed(value, node)
            case Text():
                return isinstance(value, str) and self._text_fits(value, node)
            case Number():
                return simplify.number_fits(value, node)
            case Either():
                return _any(self.fits(value, option) for option in node.options)
            case Named():
                found = self._known(node.name)
                return None if found is None else self.fits(value, found)
            case Array():
                return isinstance(value, list) and self._array_fits(value, node)
            case Object():
                return isinstance(value, dict) and self._object_fits(value, node)
        return None

    def _listed(self, value: Json, node: Exactly) -> bool:
        if node not in self._values:
            self._budget.step(len(node.values))
            self._values[node] = {simplify.same(json.loads(text)) for text in node.values}
        return simplify.same(value) in self._values[node]

    def _text_fits(self, value: str, node: Text) -> bool | None:
        if len(value) < node.least or (node.most is not None and len(value) > node.most):
            return False
        return True if node.pattern is None else self._judge.matches(value, node.pattern)

    def _array_fits(self, value: list[Json], node: Array) -> bool | None:
        if len(value) < node.least or (node.most is not None and len(value) > node.most):
            return False
        return _all(self.fits(one, item(node, index)) for index, one in enumerate(value))

    def _object_fits(self, value: dict[str, Json], node: Object) -> bool | None:
        if not node.required <= value.keys():
            return False
        members = dict(node.members)
        return _all(self.fits(one, members.get(name, node.others)) for name, one in value.items())

    # choices

    def apart(self, one: Node, other: Node) -> bool:
        """Whether nothing that is kept of the one is what the other says."""
        self._budget.step()
        if self._level >= limits.DEEPEST:
            return False
        one = self._outline(one.name) if isinstance(one, Named) else one
        other = self._outline(other.name) if isinstance(other, Named) else other
        self._level += 1
        try:
            return self._apart(one.kept if isinstance(one, Implied) else one, other)
        finally:
            self._level -= 1

    def exclusive(self, options: Sequence[Node]) -> bool:
        """Whether no value is one of two options."""
        if self._tagged(options):
            return True
        pairs = itertools.permutations(options, 2)
        return all(self.apart(one, other) for one, other in pairs)

    def _tagged(self, options: Sequence[Node]) -> bool:
        """Whether every option must have some member, with values that are its own."""
        seen = [self._outline(one.name) if isinstance(one, Named) else one for one in options]
        objects = [one for one in seen if isinstance(one, Object)]
        if len(objects) < len(options):
            return False
        tables = [dict(one.members) for one in objects]
        for name in frozenset.intersection(*(one.required for one in objects)):
            tags = [tag for table in tables if isinstance(tag := table.get(name), Exactly)]
            if len(tags) == len(tables):
                self._budget.step(sum(len(tag.values) for tag in tags))
                every = [simplify.same(json.loads(text)) for tag in tags for text in tag.values]
                if len(set(every)) == len(every):
                    return True
        return False

    def _apart(self, one: Node, other: Node) -> bool:
        if isinstance(one, Nothing) or isinstance(other, Nothing):
            return True
        if isinstance(one, Either):
            return all(self.apart(option, other) for option in one.options)
        if isinstance(other, Either):
            return all(self.apart(one, option) for option in other.options)
        if isinstance(one, Exactly):
            return all(self.fits(json.loads(text), other) is False for text in one.values)
        if isinstance(other, Exactly):
            return all(self.fits(json.loads(text), one) is False for text in other.values)
        if isinstance(one, Named) or isinstance(other, Named):
            return self.apart(one, other)
        unclear = Anything | Foreign
        if isinstance(one, unclear) or isinstance(other, unclear):
            return False
        match one, other:
            case Object(), Object():
                return self._objects_apart(one, other)
            case Text(), Text():
                # a format is enforced here, but does not count for JSON schema
                bare = replace(one, format=None), replace(other, format=None)
                return isinstance(self.meet(*bare), Nothing)
            case Number(), Number():
                return isinstance(self.meet(simplify.near(one), simplify.near(other)), Nothing)
        return type(one) is not type(other)

    def _objects_apart(self, one: Object, other: Object) -> bool:
        mine, theirs = dict(one.members), dict(other.members)
        names = sorted(one.required | other.required)
        # those that tell options apart are mostly of few values
        names.sort(key=lambda name: not isinstance(mine.get(name), Exactly))
        return any(
            self.apart(mine.get(name, one.others), theirs.get(name, other.others)) for name in names
        )


def _foreign(one: Node, other: Node) -> Node | None:
    for left, right in ((one, other), (other, one)):
        if isinstance(left, Foreign) and (left == right or (left.own and right == Object())):
            return left
    return None


def _any(found: Iterable[bool | None]) -> bool | None:
    unclear = False
    for one in found:
        if one:
            return True
        unclear = unclear or one is None
    return None if unclear else False


def _all(found: Iterable[bool | None]) -> bool | None:
    unclear = False
    for one in found:
        if one is False:
            return False
        unclear = unclear or one is None
    return None if unclear else True
