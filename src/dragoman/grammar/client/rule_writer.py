"""A client's grammar, rewritten so that it derives texts as they are written.

Its rules stay as they are; `leaves` has what they are made of. What is ignored between two leaves
is written there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from dragoman.grammar.client.first_follow import Follow
from dragoman.grammar.client.lark_parser import Called, Expr, Grammar, Leaf, Options, Row, Times
from dragoman.grammar.client.terminal_writer import Leaves
from dragoman.grammar.client.text_syntax import Between, Quotes
from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat, join_alternatives
from dragoman.grammar.regex.char_sets import CharSet, intersect, to_regex_class


class Rewriting:
    """Writes the rules of one grammar in one spelling."""

    def __init__(
        self, lark: LarkBuilder, grammar: Grammar, follow: Follow, spelling: Quotes | Between
    ) -> None:
        self.lark = lark
        self.grammar = grammar
        self.follow = follow
        self._spelling = spelling
        self._names: dict[tuple[str, bool], str] = {}
        self._leaves = Leaves(lark, grammar, follow, spelling)

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
        return join_alternatives([*options, *([EMPTY] if self.follow.empty("start") else [])])

    def unbroken(self, leaf: Leaf) -> str | None:
        """A leaf that does not end with a piece that breaks it."""
        return self._leaves.unbroken(leaf)

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
        letters = patterns.collect_chars(leaf.said)
        if not letters:
            return None

        def one(some: CharSet) -> str:
            plain = intersect(some, spelling.plain)
            ways = [to_regex_class(plain)] if plain else []
            return f"(?:{'|'.join([*ways, *spelling.escapes(intersect(some, spelling.special))])})"

        return self.lark.add_terminal(f"/{patterns.to_regex(leaf.said, one)}/", "TEXT")

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
                return self._nothing(part) or self._leaves.whole(part) is not None
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
                said = self._leaves.whole(part)
                if said is None:
                    return EMPTY
                said = f"{self._between}{said}"
                return f"({said})?" if self._nothing(part) else said
            case Called():
                return self._rule(part.name)
            case Row():
                return " ".join(map(self.written, part.parts)) or EMPTY
            case Options():
                return join_alternatives(map(self.written, self._options(part)))
            case Times():
                if not self.can_be(part.part, possible):
                    return EMPTY
                return f"({self.written(part.part)}){format_repeat(part.least, part.most)}"

    def _options(self, part: Options) -> Iterator[Expr]:
        return (one for one in part.parts if self.can_be(one, self.possible))

    @cached_property
    def _between(self) -> str:
        """What may stand between two leaves and is ignored."""
        found = [
            said for leaf in self.grammar.ignored if (said := self._leaves.whole(leaf)) is not None
        ]
        return f"{self.lark.add_rule(f'{join_alternatives(found)}*', 'ignored')} " if found else ""

    def _first(self, part: Expr) -> str | None:
        """A part where nothing was written before, but for no text at all; None if it is only that.

        What is ignored stands between two leaves, so not before the first.
        """
        if not self.can_be(part, self.possible):
            return None
        match part:
            case Leaf():
                return self._leaves.whole(part)
            case Called():
                return self._rule(part.name, first=True) if self._begins(part) else None
            case Row():
                return self._first_of_row(part.parts)
            case Options():
                found = [said for one in part.parts if (said := self._first(one)) is not None]
                return join_alternatives(found) if found else None
            case Times():
                said = self._first(part.part) if part.most != 0 else None
                most = None if part.most is None else part.most - 1
                more = f"({self.written(part.part)}){format_repeat(max(0, part.least - 1), most)}"
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
                after = self.lark.add_rule(f"{self.written(parts[at])} {after}", "rest")
        return join_alternatives(found) if found else None
