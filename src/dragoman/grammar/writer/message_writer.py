"""A whole answer in a format whose messages have headers.

An answer is a row of messages; the header of each says whether it is thoughts, text, or a call and
of which tool. A prompt may end where a header begins, so the first one may lack its opening mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dragoman.grammar.lark_builder import ANY, UP_TO_THREE, LarkBuilder, join_alternatives
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_partial_markers
from dragoman.grammar.writer.call_writer import CallWriter
from dragoman.grammar.writer.tool_names import ParsedTool
from dragoman.grammar.writer.unquoted_text import write_text_until
from dragoman.output.spec import MessageHeader


class HeaderWriter:
    """The headers of messages; where an answer is `silent`, none that a thought could have."""

    def __init__(
        self, lark: LarkBuilder, header: MessageHeader, opening: str, *, without_reasoning: bool = False
    ) -> None:
        """`opening` is what the prompt ends with, if that is where a header begins."""
        self.lark = lark
        self.header = header
        self.ends_at_next_header = (
            not header.close
        )  # a message then ends where the next header begins
        self._opening = opening
        thoughts = [route for route, where in header.routes if where == "reasoning"]
        self._templates = [
            (kind, text)
            for kind, text in header.spellings
            if not without_reasoning or (kind != "reasoning" and not any(re.search(r, text) for r in thoughts))
        ]

    def write_headers(self, where: str, first: bool, name: str = "") -> list[str]:
        """Headers of a kind; the first of an answer may lack what the prompt ends with."""
        found = []
        for text in [text for kind, text in self._templates if kind == where]:
            bare = next((text[len(one) :] for one in self.header.open if text.startswith(one)), "")
            opened = self._opening.endswith(self.header.open) or not self.header.separator
            if self.ends_at_next_header and not first:
                found.append(bare)
            elif bare and opened and (first or bare.startswith("<")):
                found += [text, bare]
            else:
                found += [text, text.lstrip()] if first else [text]
        return [
            self.lark.write_marker(text.replace("{name}", name)) for text in dict.fromkeys(found)
        ]


class MessageWriter:
    """Writes the rules of one answer. No text of it holds one of `banned`."""

    def __init__(
        self,
        heads: HeaderWriter,
        calls: CallWriter | None,
        offers: Sequence[ParsedTool],
        banned: Sequence[str] = (),
    ) -> None:
        self.lark = heads.lark
        self._write_headers = heads.write_headers
        self._header = heads.header
        self._calls = calls
        self._ignored_markers = () if calls is None else calls.ignored_markers
        self._tools = offers
        self._banned_markers = banned
        self._ends_at_next_header = heads.ends_at_next_header

    def write_constrained(self, content: str | None, *, starts_in_reasoning: bool, parallel: bool) -> str:
        """Thoughts, then content of a shape or calls."""

        def last(first: bool) -> str:
            found = []
            if content is not None:
                heads = (
                    self._write_headers("text", first)[:2]
                    if first
                    else self._write_headers("text", first)[:1]
                )
                found.append(
                    f"{join_alternatives(heads)} {self.lark.add_optional_space()} {content} {self._write_end()}"
                )
            if self._calls is not None:
                found.append(self._write_calls(first, parallel))
            return join_alternatives(found)

        return self._write_after_reasoning(last, inside=starts_in_reasoning)

    def write_free(self, *, starts_in_reasoning: bool, parallel: bool, may_stay_open: bool) -> str:
        """Messages of any kind; one call at most where only one may be made."""
        text = self.lark.add_text_without([*map(marker_to_regex, self._list_markers())], "FREE") + "?"
        closed = self._write_message_rest()
        short = write_text_until(self.lark, ANY, self._header.close, self._list_markers())
        ends = [text, short] if self._header.close else [text]
        rows = self._write_messages(parallel)
        if starts_in_reasoning:
            unclosed = [text] if may_stay_open else []
            return join_alternatives([f"{closed} {rows}", *unclosed])
        first = join_alternatives(
            [*self._write_headers("text", True), *self._write_headers("reasoning", True)]
        )
        found = [f"{first} {one}" for one in ends]
        found += [f"{first} {closed} {rows}"]
        if self._calls is not None:
            found.append(
                f"{self._write_call(True)} {self._write_after_call(rows) if parallel else ''}"
            )
        found = [f"({joint})? {one}" for one in found] if (joint := self._write_joint()) else found
        # where a header begins in letters, text without a header would swallow it
        bare = all(text.startswith("<") for _, text in self._header.spellings)
        return join_alternatives([*found, *(ends if bare else ())])

    def _write_messages(self, parallel: bool) -> str:
        """Messages that follow a first one, or none."""
        name = self.lark.reserve("rows")
        joint = self._write_joint()
        text = self.lark.add_text_without([*map(marker_to_regex, self._list_markers())], "FREE") + "?"
        heads = join_alternatives(
            [*self._write_headers("text", False), *self._write_headers("reasoning", False)]
        )
        closed = self._write_message_rest()
        found = ['""', f"{joint} {heads} {text}", f"{joint} {heads} {closed} {name}"]
        if self._ends_at_next_header:
            found += self._write_text_after_marker([text, f"{closed} {name}"])
        if self._calls is not None:
            found.append(
                f"{joint} {self._write_call(False)} {self._write_after_call(name) if parallel else ''}"
            )
        return self.lark.define(name, " | ".join(found))

    def _write_text_after_marker(self, after: Sequence[str]) -> list[str]:
        """What follows a header's mark where that is only a word: the text goes on after it."""
        lark = self.lark
        heads = [text for kind, text in self._header.spellings if kind != "call"]
        heads += [
            text.replace("{name}", offer.name)
            for kind, text in self._header.spellings
            for offer in self._tools
            if kind == "call"
        ]
        bare = [text.removeprefix(self._header.open[0]) for text in heads]
        begun = "|".join(map(prefixes_to_regex, bare))
        known = "|".join(map(escape_regex, bare))
        other = f"/(?s:.+)/ & ~/{begun}/ & ~/(?:{known})(?s:.*)/{exclude_partial_markers(self._banned_markers)}"
        differs = lark.add_shortest_match(lark.add_terminal(other, "OTHER"))
        return [lark.add_terminal(f"/{begun}/ & ~/{known}/", "BEGUN")] + [
            f"{differs} {one}" for one in after
        ]

    def _write_after_call(self, rows: str) -> str:
        """What follows a call, which does not run up to the next header as a text does."""
        if not self._ends_at_next_header:
            return rows
        return f"({self.lark.add_optional_space()} {self.lark.write_any_marker(self._header.open)} {rows})?"

    def _write_after_reasoning(self, last: Callable[[bool], str], *, inside: bool) -> str:
        joint, closed = self._write_joint(), self._write_message_rest()
        heads = self._write_headers("reasoning", False)
        again = f"({joint} {join_alternatives(heads)} {closed})*" if heads else ""
        if inside:
            return f"{closed} {again} {joint} {last(False)}"
        first = self._write_headers("reasoning", True)
        if not first:
            return last(True)
        return join_alternatives(
            [last(True), f"{join_alternatives(first)} {closed} {again} {joint} {last(False)}"]
        )

    # messages

    def _write_calls(self, first: bool, parallel: bool) -> str:
        joint = self._write_joint()
        if self._ends_at_next_header:
            joint = (
                f"{self.lark.add_optional_space()} {self.lark.write_any_marker(self._header.open)}"
            )
        more = f"({joint} {self._write_call(False)})*" if parallel else ""
        return f"{self._write_call(first)} {more}"

    def _write_call(self, first: bool) -> str:
        assert self._calls is not None  # noqa: S101
        found = []
        for offer in self._tools:
            rest = self._calls.write_addressed_call(offer)
            heads = self._write_headers("call", first, offer.name)
            found += [f"{head} {rest} {self._write_end()}" for head in heads]
        return self.lark.add_rule(" | ".join(found), "message")

    def _write_joint(self) -> str:
        return self.lark.write_marker(self._header.separator) if self._header.separator else ""

    def _write_message_rest(self) -> str:
        """The rest of a message up to its end; a header in it would be taken for one."""
        marks = [mark for mark in self._list_markers() if mark not in self._list_closing_markers()]
        return write_text_until(self.lark, ANY, self._list_closing_markers(), marks)

    def _list_closing_markers(self) -> tuple[str, ...]:
        return self._header.close or self._header.open

    def _write_end(self) -> str:
        """What may close the last message."""
        marks = (*self._header.close, *self._ignored_markers)
        return f"({self.lark.write_any_marker(marks)}){UP_TO_THREE}" if marks else ""

    def _list_markers(self) -> list[str]:
        header = self._header
        ends = [mark for mark in header.end if mark.strip()]
        return list(dict.fromkeys((*header.open, *header.close, *ends, *self._banned_markers)))
