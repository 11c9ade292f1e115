"""A whole answer in a format whose messages have headers.

An answer is a row of messages; the header of each says whether it is thoughts, text, or a call and
of which tool. A prompt may end where a header begins, so the first one may lack its opening mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dragoman.grammar.lark_builder import ANY, FEW, Lark, beginnings, either, escaped, pattern
from dragoman.grammar.regex.exclude_markers import unbegun
from dragoman.grammar.writer.calls import Calls
from dragoman.grammar.writer.raw_text import ended_by
from dragoman.grammar.writer.tool_names import Offer
from dragoman.output.spec import MessageHeader


class Heads:
    """The headers of messages; where an answer is `silent`, none that a thought could have."""

    def __init__(
        self, lark: Lark, header: MessageHeader, opening: str, *, silent: bool = False
    ) -> None:
        """`opening` is what the prompt ends with, if that is where a header begins."""
        self.lark = lark
        self.header = header
        self.letters = not header.close  # a message then ends where the next header begins
        self._opening = opening
        thoughts = [route for route, where in header.routes if where == "reasoning"]
        self._written = [
            (kind, text)
            for kind, text in header.spellings
            if not silent or (kind != "reasoning" and not any(re.search(r, text) for r in thoughts))
        ]

    def of(self, where: str, first: bool, name: str = "") -> list[str]:
        """Headers of a kind; the first of an answer may lack what the prompt ends with."""
        found = []
        for text in [text for kind, text in self._written if kind == where]:
            bare = next((text[len(one) :] for one in self.header.open if text.startswith(one)), "")
            opened = self._opening.endswith(self.header.open) or not self.header.separator
            if self.letters and not first:
                found.append(bare)
            elif bare and opened and (first or bare.startswith("<")):
                found += [text, bare]
            else:
                found += [text, text.lstrip()] if first else [text]
        return [self.lark.mark(text.replace("{name}", name)) for text in dict.fromkeys(found)]


class Messages:
    """Writes the rules of one answer. No text of it holds one of `banned`."""

    def __init__(
        self,
        heads: Heads,
        calls: Calls | None,
        offers: Sequence[Offer],
        banned: Sequence[str] = (),
    ) -> None:
        self.lark = heads.lark
        self._heads = heads.of
        self._header = heads.header
        self._calls = calls
        self._spare = () if calls is None else calls.dropped
        self._offers = offers
        self._banned = banned
        self._letters = heads.letters

    def demanded(self, content: str | None, *, inside: bool, parallel: bool) -> str:
        """Thoughts, then content of a shape or calls."""

        def last(first: bool) -> str:
            found = []
            if content is not None:
                heads = self._heads("text", first)[:2] if first else self._heads("text", first)[:1]
                found.append(f"{either(heads)} {self.lark.gap()} {content} {self._end()}")
            if self._calls is not None:
                found.append(self._call_rows(first, parallel))
            return either(found)

        return self._after_thoughts(last, inside=inside)

    def free(self, *, inside: bool, parallel: bool, endless: bool) -> str:
        """Messages of any kind; one call at most where only one may be made."""
        text = self.lark.without([*map(pattern, self._marks())], "FREE") + "?"
        closed = self._closed()
        short = ended_by(self.lark, ANY, self._header.close, self._marks())
        ends = [text, short] if self._header.close else [text]
        rows = self._rows(parallel)
        if inside:
            unclosed = [text] if endless else []
            return either([f"{closed} {rows}", *unclosed])
        first = either([*self._heads("text", True), *self._heads("reasoning", True)])
        found = [f"{first} {one}" for one in ends]
        found += [f"{first} {closed} {rows}"]
        if self._calls is not None:
            found.append(f"{self._call(True)} {self._more(rows) if parallel else ''}")
        found = [f"({joint})? {one}" for one in found] if (joint := self._joint()) else found
        # where a header begins in letters, text without a header would swallow it
        bare = all(text.startswith("<") for _, text in self._header.spellings)
        return either([*found, *(ends if bare else ())])

    def _rows(self, parallel: bool) -> str:
        """Messages that follow a first one, or none."""
        name = self.lark.reserve("rows")
        joint = self._joint()
        text = self.lark.without([*map(pattern, self._marks())], "FREE") + "?"
        heads = either([*self._heads("text", False), *self._heads("reasoning", False)])
        closed = self._closed()
        found = ['""', f"{joint} {heads} {text}", f"{joint} {heads} {closed} {name}"]
        if self._letters:
            found += self._no_header([text, f"{closed} {name}"])
        if self._calls is not None:
            found.append(f"{joint} {self._call(False)} {self._more(name) if parallel else ''}")
        return self.lark.define(name, " | ".join(found))

    def _no_header(self, after: Sequence[str]) -> list[str]:
        """What follows a header's mark where that is only a word: the text goes on after it."""
        lark = self.lark
        heads = [text for kind, text in self._header.spellings if kind != "call"]
        heads += [
            text.replace("{name}", offer.name)
            for kind, text in self._header.spellings
            for offer in self._offers
            if kind == "call"
        ]
        bare = [text.removeprefix(self._header.open[0]) for text in heads]
        begun = "|".join(map(beginnings, bare))
        known = "|".join(map(escaped, bare))
        other = f"/(?s:.+)/ & ~/{begun}/ & ~/(?:{known})(?s:.*)/{unbegun(self._banned)}"
        differs = lark.shortest(lark.terminal(other, "OTHER"))
        return [lark.terminal(f"/{begun}/ & ~/{known}/", "BEGUN")] + [
            f"{differs} {one}" for one in after
        ]

    def _more(self, rows: str) -> str:
        """What follows a call, which does not run up to the next header as a text does."""
        if not self._letters:
            return rows
        return f"({self.lark.gap()} {self.lark.marks(self._header.open)} {rows})?"

    def _after_thoughts(self, last: Callable[[bool], str], *, inside: bool) -> str:
        joint, closed = self._joint(), self._closed()
        heads = self._heads("reasoning", False)
        again = f"({joint} {either(heads)} {closed})*" if heads else ""
        if inside:
            return f"{closed} {again} {joint} {last(False)}"
        first = self._heads("reasoning", True)
        if not first:
            return last(True)
        return either([last(True), f"{either(first)} {closed} {again} {joint} {last(False)}"])

    # messages

    def _call_rows(self, first: bool, parallel: bool) -> str:
        joint = self._joint()
        if self._letters:
            joint = f"{self.lark.gap()} {self.lark.marks(self._header.open)}"
        more = f"({joint} {self._call(False)})*" if parallel else ""
        return f"{self._call(first)} {more}"

    def _call(self, first: bool) -> str:
        assert self._calls is not None  # noqa: S101
        found = []
        for offer in self._offers:
            rest = self._calls.addressed(offer)
            heads = self._heads("call", first, offer.name)
            found += [f"{head} {rest} {self._end()}" for head in heads]
        return self.lark.rule(" | ".join(found), "message")

    def _joint(self) -> str:
        return self.lark.mark(self._header.separator) if self._header.separator else ""

    def _closed(self) -> str:
        """The rest of a message up to its end; a header in it would be taken for one."""
        marks = [mark for mark in self._marks() if mark not in self._closes()]
        return ended_by(self.lark, ANY, self._closes(), marks)

    def _closes(self) -> tuple[str, ...]:
        return self._header.close or self._header.open

    def _end(self) -> str:
        """What may close the last message."""
        marks = (*self._header.close, *self._spare)
        return f"({self.lark.marks(marks)}){FEW}" if marks else ""

    def _marks(self) -> list[str]:
        header = self._header
        ends = [mark for mark in header.end if mark.strip()]
        return list(dict.fromkeys((*header.open, *header.close, *ends, *self._banned)))
