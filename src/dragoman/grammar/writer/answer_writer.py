"""A whole answer: reasoning, then content or calls.

Thoughts are free, however they were opened, and end at the mark that the parser ends them by. What
follows is one of four things:

    free text in which calls may begin     a call's grammar begins at its opening mark
    calls, and nothing else                where one is required
    content of a certain shape             a schema, a grammar
    content of a certain shape, or calls   both demands at once

Marks that mean something to the parser are kept out of where they mean nothing: free text holds an
opening mark only where a call follows, and a mark that is a control token is never spelt in
letters. Formats whose messages have headers are put together in `messages`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.grammar.lark_builder import ANY, UP_TO_THREE, LarkBuilder, join_alternatives
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers, exclude_partial_markers
from dragoman.grammar.writer.call_writer import CallWriter, UnmarkedCallStart
from dragoman.grammar.writer.unquoted_text import write_text_until
from dragoman.output.rules import FormatRules

BRACKETS = (r"\{", r"\[")
ACTIVE_MEANINGS = ("section", "call", "first", "open")


class AnswerWriter:
    """Writes the rules of one answer.

    `inside` says that it begins in thoughts, `silent` that it has none, nor anything that would be
    taken for the beginning of some.
    """

    def __init__(
        self,
        lark: LarkBuilder,
        rules: FormatRules,
        calls: CallWriter | None,
        *,
        starts_in_reasoning: bool = False,
        without_reasoning: bool = False,
    ) -> None:
        self.lark = lark
        self._rules = rules
        self._calls = calls
        self._starts_in_reasoning = starts_in_reasoning
        self._reasoning = rules.reasoning
        self._allows_reasoning = bool(rules.reasoning.close) and not without_reasoning
        self._banned_openers = rules.reasoning.open if without_reasoning else ()
        self._banned_beginnings = rules.reasoning.opens_at_start if without_reasoning else ()

    def write_constrained(self, content: str | None) -> str:
        """Content of a shape, or calls where there is none; both where there are both."""
        found = [] if content is None else [self._wrap_content(content)]
        found += [] if self._calls is None else [self._calls.write_required()]
        return f"{self._write_leading_reasoning()} {join_alternatives(found)}"

    def write_free(self, *, parallel: bool, may_stay_open: bool) -> str:
        """Free text in which calls may begin; `endless` lets it end in the middle of thoughts."""
        lark = self.lark
        calls, quiet = self._write_segments()
        text = self._write_plain_text()
        open_end = self._list_unclosed_endings() if may_stay_open else []
        last = join_alternatives([text, *open_end])
        if self._calls is not None and self._calls.unmarked_start is not None:
            after = None if parallel else self._write_trailing_markers()
            answer = self._write_unmarked_calls(
                self._calls.unmarked_start, calls, quiet, last, after
            )
        elif parallel or not calls:
            answer = f"{join_alternatives([*calls, *quiet])}* {last}" if calls or quiet else last
        else:
            before = f"{join_alternatives(quiet)}* " if quiet else ""
            answer = (
                f"{before}({join_alternatives(calls)} {self._write_trailing_markers()} | {last})"
            )
        answer = lark.add_rule(answer, "answer")
        started = None if self._calls is None else self._calls.write_unmarked_first_call()
        if started is not None:
            before = f"{join_alternatives(quiet)}*" if quiet else ""
            answer = lark.add_rule(
                f"{before} {started} {self._write_trailing_markers()} | {answer}", "answer"
            )
        if not self._starts_in_reasoning:
            return answer
        ended = [self._write_unclosed_reasoning()] if may_stay_open else []
        return join_alternatives([f"{self._write_reasoning_rest()} {answer}", *ended])

    def _write_unmarked_calls(
        self,
        weak: UnmarkedCallStart,
        calls: Sequence[str],
        quiet: Sequence[str],
        last: str,
        after: str | None,
    ) -> str:
        """The same where a call may begin with no mark of its own, but by a tool's name.

        Two rules take turns: one for text, one for where a name may stand. What is no name of a
        tool leads back to text with its first letter that differs. `after` is what follows a call
        if no other may.
        """
        lark = self.lark
        free, named = lark.reserve("free"), lark.reserve("named")
        then = free if after is None else after
        found = [f"{one} {free}" for one in quiet] + [f"{one} {then}" for one in calls]
        body = self._build_leading_text(())
        found += [f"{lark.add_text_up_to(f'/{weak.prefix_regex}/', body)} {named}", last]
        lark.define(free, " | ".join(found))
        letters = [escape_regex(name) for name, _ in weak.names]
        gap, every = weak.space_regex, "|".join(letters)
        begun = "|".join([*(prefixes_to_regex(name) for name, _ in weak.names), f"(?:{every}){gap}"])
        begin = lark.add_terminal(f"/{gap}(?:{begun})?/ & /(?s:.+)/", "BEGUN")
        known = f"{gap}(?:{every}){gap}{weak.name_end_regex}"
        other = (
            f"/(?s:.+)/ & ~/{gap}(?:{begun})?/ & ~/{known}(?s:.*)/{exclude_partial_markers(self._banned_openers)}"
        )
        differs = lark.add_shortest_match(lark.add_terminal(other, "OTHER"))
        names = []
        for name, (_, follow) in zip(letters, weak.names, strict=True):
            said = lark.add_terminal(f"/{gap}{name}{gap}{weak.name_end_regex}/", "NAME")
            names.append(f"{said} {follow} {then}")
        lark.define(named, " | ".join([*names, f"{differs} {free}", f"{begin}?"]))
        return free

    # thoughts

    def _write_leading_reasoning(self) -> str:
        """Thoughts that come first, if any do."""
        if not self._allows_reasoning:
            return ""
        if self._starts_in_reasoning:
            return f"{self._write_reasoning_rest()} {self.lark.add_optional_space()}"
        marks = (*self._reasoning.open, *self._reasoning.opens_at_start)
        if not marks:
            return ""
        gap = self.lark.add_optional_space()
        return f"({gap} {self.lark.write_any_marker(marks)} {self._write_reasoning_rest()} {gap})?"

    def _write_reasoning_rest(self) -> str:
        """The rest of thoughts, and the mark that ends them."""
        return write_text_until(self.lark, ANY, self._reasoning.close, self._list_special_markers())

    def _write_unclosed_reasoning(self) -> str:
        marks = (*self._reasoning.close, *self._list_special_markers())
        return self.lark.add_text_without(map(marker_to_regex, marks), "THOUGHTS") + "?"

    def _list_special_markers(self) -> list[str]:
        """Marks with control tokens in them, which nothing may spell in letters."""
        return [mark for mark in self._rules.in_text.meanings if not self.lark.is_plain_text(mark)]

    def _list_unclosed_endings(self) -> list[str]:
        """Thoughts at the end of an answer that nobody closed."""
        if not self._allows_reasoning:
            return []
        return [
            f"{one} {self._write_unclosed_reasoning()}" for one in self._write_reasoning_starts("")
        ]

    # content

    def _wrap_content(self, content: str) -> str:
        """Content, with what its format may write around it."""
        lark, wrap = self.lark, self._reasoning.answer_wrapper
        before = [*wrap.open, *self._list_ignored_markers()]
        after = [*wrap.close, *self._list_ignored_markers()]
        lead = (
            f"({lark.write_any_marker(before)} {lark.add_optional_space()}){UP_TO_THREE}"
            if before
            else ""
        )
        tail = (
            f"({lark.add_optional_space()} {lark.write_any_marker(after)}){UP_TO_THREE}"
            if after
            else ""
        )
        return f"{lead} {content} {tail}"

    def _list_ignored_markers(self) -> list[str]:
        tools = self._rules.tools
        return [*self._reasoning.dropped, *(() if tools is None else tools.dropped)]

    def _write_trailing_markers(self) -> str:
        """What may follow at the very end and means nothing."""
        tools = self._rules.tools
        marks = () if tools is None else tools.ignored_after_call
        return (
            f"({self.lark.add_optional_space()} {self.lark.write_any_marker(marks)}){UP_TO_THREE}"
            if marks
            else ""
        )

    # free text

    def _write_segments(self) -> tuple[list[str], list[str]]:
        """Text up to what begins a call and the call; text up to other marks and what they mean."""
        calls: list[str] = []
        for opening in [] if self._calls is None else self._calls.openings:
            calls += self._write_up_to_markers((opening.marker,), opening.rest)
        quiet: list[str] = []
        if self._allows_reasoning:
            quiet += self._write_reasoning_starts(self._write_reasoning_rest())
        marks = [
            mark
            for mark, what in self._rules.in_text.meanings.items()
            if what not in ACTIVE_MEANINGS
        ]
        text = self._write_plain_text()
        quiet += [
            f"{text} {self.lark.write_marker(mark)}"
            for mark in marks
            if self._starts_with_special_token(mark)
        ]
        return calls, quiet

    def _write_reasoning_starts(self, follow: str) -> list[str]:
        """Text up to thoughts, and what follows the mark that opens them.

        Where calls have no marks, a bracket may begin one, and then the mark would be part of it.
        """
        weak = self._calls is not None and self._calls.unmarked_start is not None
        return self._write_up_to_markers(self._reasoning.open, follow, BRACKETS if weak else ())

    def _write_up_to_markers(
        self, marks: Sequence[str], follow: str, banned: Sequence[str] = ()
    ) -> list[str]:
        """Text up to one of some marks, and what follows it; no letter of `banned` is in it."""
        letters = [mark for mark in marks if self.lark.is_plain_text(mark)]
        tokens = [mark for mark in marks if self._starts_with_special_token(mark)]
        found = []
        if letters:
            body = self.lark.add_terminal(self._build_leading_text(banned, spelt=True), "BEFORE")
            found.append(
                f"{self.lark.add_text_up_to(f'/(?:{_join_marker_regexes(letters)})/', body)} {follow}"
            )
        if tokens:
            found.append(
                f"{self._write_plain_text(banned)} {self.lark.write_any_marker(tokens)} {follow}"
            )
        return found

    def _build_leading_text(self, banned: Sequence[str], *, spelt: bool = False) -> str:
        """The regular expression of text before a mark."""
        body = f"/[^{''.join(banned)}]*/" if banned else ANY
        body += "".join(rf" & ~/\s*{marker_to_regex(mark)}(?s:.*)/" for mark in self._banned_beginnings)
        return body + exclude_markers(
            (*(self._list_special_markers() if spelt else ()), *self._banned_openers), length_bounded=False
        )

    def _starts_with_special_token(self, mark: str) -> bool:
        """Whether a mark begins with a control token; one that only holds some is not written."""
        return self.lark.write_marker(mark).startswith("<[")

    def _write_plain_text(self, banned: Sequence[str] = ()) -> str:
        """Text in which nothing begins, if there is any."""
        begins = [rf"\s*{marker_to_regex(mark)}" for mark in self._banned_beginnings]
        if self._calls is not None and self._calls.first_call_regex is not None:
            begins.append(self._calls.first_call_regex)
        kept_out = [*self._list_excluded_patterns(), *banned]
        return self.lark.add_text_without(kept_out, "FREE", "|".join(begins) or None) + "?"

    def _list_excluded_patterns(self) -> list[str]:
        """Regular expressions of what free text may not hold."""
        marks = [
            mark for mark, what in self._rules.in_text.meanings.items() if what in ACTIVE_MEANINGS
        ]
        tools = self._rules.tools
        if tools is not None:
            marks = [mark for mark in marks if mark not in tools.unmarked_starts]
            marks += [*tools.call.open]
        found = [marker_to_regex(mark) for mark in dict.fromkeys([*marks, *self._list_special_markers()])]
        if self._calls is not None:
            found = [one for one in found if one not in self._calls.list_ambiguous_regexes()]
            found += (
                []
                if self._calls.unmarked_start is None
                else [self._calls.unmarked_start.prefix_regex]
            )
            found += self._calls.list_forbidden_regexes()
        return found


def _join_marker_regexes(marks: Sequence[str]) -> str:
    return "|".join(map(marker_to_regex, marks))
