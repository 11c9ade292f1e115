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

from dragoman.grammar.lark_builder import ANY, FEW, Lark, beginnings, either, escaped, pattern
from dragoman.grammar.regex.exclude_markers import avoiding, unbegun
from dragoman.grammar.writer.calls import Calls, Weak
from dragoman.grammar.writer.raw_text import ended_by
from dragoman.output.rules import FormatRules

BRACKETS = (r"\{", r"\[")
LOUD = ("section", "call", "first", "open")


class Answer:
    """Writes the rules of one answer.

    `inside` says that it begins in thoughts, `silent` that it has none, nor anything that would be
    taken for the beginning of some.
    """

    def __init__(
        self,
        lark: Lark,
        rules: FormatRules,
        calls: Calls | None,
        *,
        inside: bool = False,
        silent: bool = False,
    ) -> None:
        self.lark = lark
        self._rules = rules
        self._calls = calls
        self._inside = inside
        self._reasoning = rules.reasoning
        self._thinks = bool(rules.reasoning.close) and not silent
        self._openers = rules.reasoning.open if silent else ()
        self._begins = rules.reasoning.opens_at_start if silent else ()

    def demanded(self, content: str | None) -> str:
        """Content of a shape, or calls where there is none; both where there are both."""
        found = [] if content is None else [self._framed(content)]
        found += [] if self._calls is None else [self._calls.forced()]
        return f"{self._thought()} {either(found)}"

    def free(self, *, parallel: bool, endless: bool) -> str:
        """Free text in which calls may begin; `endless` lets it end in the middle of thoughts."""
        lark = self.lark
        calls, quiet = self._pieces()
        text = self._text()
        open_end = self._open_end() if endless else []
        last = either([text, *open_end])
        if self._calls is not None and self._calls.weak is not None:
            after = None if parallel else self._after()
            answer = self._told_apart(self._calls.weak, calls, quiet, last, after)
        elif parallel or not calls:
            answer = f"{either([*calls, *quiet])}* {last}" if calls or quiet else last
        else:
            before = f"{either(quiet)}* " if quiet else ""
            answer = f"{before}({either(calls)} {self._after()} | {last})"
        answer = lark.rule(answer, "answer")
        started = None if self._calls is None else self._calls.started()
        if started is not None:
            before = f"{either(quiet)}*" if quiet else ""
            answer = lark.rule(f"{before} {started} {self._after()} | {answer}", "answer")
        if not self._inside:
            return answer
        ended = [self._unclosed()] if endless else []
        return either([f"{self._closed()} {answer}", *ended])

    def _told_apart(
        self, weak: Weak, calls: Sequence[str], quiet: Sequence[str], last: str, after: str | None
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
        body = self._before(())
        found += [f"{lark.lazy(f'/{weak.look}/', body)} {named}", last]
        lark.define(free, " | ".join(found))
        letters = [escaped(name) for name, _ in weak.names]
        gap, every = weak.gap, "|".join(letters)
        begun = "|".join([*(beginnings(name) for name, _ in weak.names), f"(?:{every}){gap}"])
        begin = lark.terminal(f"/{gap}(?:{begun})?/ & /(?s:.+)/", "BEGUN")
        known = f"{gap}(?:{every}){gap}{weak.ends}"
        other = f"/(?s:.+)/ & ~/{gap}(?:{begun})?/ & ~/{known}(?s:.*)/{unbegun(self._openers)}"
        differs = lark.shortest(lark.terminal(other, "OTHER"))
        names = []
        for name, (_, follow) in zip(letters, weak.names, strict=True):
            said = lark.terminal(f"/{gap}{name}{gap}{weak.ends}/", "NAME")
            names.append(f"{said} {follow} {then}")
        lark.define(named, " | ".join([*names, f"{differs} {free}", f"{begin}?"]))
        return free

    # thoughts

    def _thought(self) -> str:
        """Thoughts that come first, if any do."""
        if not self._thinks:
            return ""
        if self._inside:
            return f"{self._closed()} {self.lark.gap()}"
        marks = (*self._reasoning.open, *self._reasoning.opens_at_start)
        if not marks:
            return ""
        gap = self.lark.gap()
        return f"({gap} {self.lark.marks(marks)} {self._closed()} {gap})?"

    def _closed(self) -> str:
        """The rest of thoughts, and the mark that ends them."""
        return ended_by(self.lark, ANY, self._reasoning.close, self._spelt())

    def _unclosed(self) -> str:
        marks = (*self._reasoning.close, *self._spelt())
        return self.lark.without(map(pattern, marks), "THOUGHTS") + "?"

    def _spelt(self) -> list[str]:
        """Marks with control tokens in them, which nothing may spell in letters."""
        return [mark for mark in self._rules.in_text.meanings if not self.lark.in_letters(mark)]

    def _open_end(self) -> list[str]:
        """Thoughts at the end of an answer that nobody closed."""
        if not self._thinks:
            return []
        return [f"{one} {self._unclosed()}" for one in self._thoughts("")]

    # content

    def _framed(self, content: str) -> str:
        """Content, with what its format may write around it."""
        lark, wrap = self.lark, self._reasoning.answer_wrapper
        before = [*wrap.open, *self._dropped()]
        after = [*wrap.close, *self._dropped()]
        lead = f"({lark.marks(before)} {lark.gap()}){FEW}" if before else ""
        tail = f"({lark.gap()} {lark.marks(after)}){FEW}" if after else ""
        return f"{lead} {content} {tail}"

    def _dropped(self) -> list[str]:
        tools = self._rules.tools
        return [*self._reasoning.dropped, *(() if tools is None else tools.dropped)]

    def _after(self) -> str:
        """What may follow at the very end and means nothing."""
        tools = self._rules.tools
        marks = () if tools is None else tools.ignored_after_call
        return f"({self.lark.gap()} {self.lark.marks(marks)}){FEW}" if marks else ""

    # free text

    def _pieces(self) -> tuple[list[str], list[str]]:
        """Text up to what begins a call and the call; text up to other marks and what they mean."""
        calls: list[str] = []
        for opening in [] if self._calls is None else self._calls.openings:
            calls += self._openings_of((opening.mark,), opening.follow)
        quiet: list[str] = []
        if self._thinks:
            quiet += self._thoughts(self._closed())
        marks = [mark for mark, what in self._rules.in_text.meanings.items() if what not in LOUD]
        text = self._text()
        quiet += [f"{text} {self.lark.mark(mark)}" for mark in marks if self._is_token(mark)]
        return calls, quiet

    def _thoughts(self, follow: str) -> list[str]:
        """Text up to thoughts, and what follows the mark that opens them.

        Where calls have no marks, a bracket may begin one, and then the mark would be part of it.
        """
        weak = self._calls is not None and self._calls.weak is not None
        return self._openings_of(self._reasoning.open, follow, BRACKETS if weak else ())

    def _openings_of(
        self, marks: Sequence[str], follow: str, banned: Sequence[str] = ()
    ) -> list[str]:
        """Text up to one of some marks, and what follows it; no letter of `banned` is in it."""
        letters = [mark for mark in marks if self.lark.in_letters(mark)]
        tokens = [mark for mark in marks if self._is_token(mark)]
        found = []
        if letters:
            body = self.lark.terminal(self._before(banned, spelt=True), "BEFORE")
            found.append(f"{self.lark.lazy(f'/(?:{_any(letters)})/', body)} {follow}")
        if tokens:
            found.append(f"{self._text(banned)} {self.lark.marks(tokens)} {follow}")
        return found

    def _before(self, banned: Sequence[str], *, spelt: bool = False) -> str:
        """The regular expression of text before a mark."""
        body = f"/[^{''.join(banned)}]*/" if banned else ANY
        body += "".join(rf" & ~/\s*{pattern(mark)}(?s:.*)/" for mark in self._begins)
        return body + avoiding((*(self._spelt() if spelt else ()), *self._openers), counted=False)

    def _is_token(self, mark: str) -> bool:
        """Whether a mark begins with a control token; one that only holds some is not written."""
        return self.lark.mark(mark).startswith("<[")

    def _text(self, banned: Sequence[str] = ()) -> str:
        """Text in which nothing begins, if there is any."""
        begins = [rf"\s*{pattern(mark)}" for mark in self._begins]
        if self._calls is not None and self._calls.begins is not None:
            begins.append(self._calls.begins)
        kept_out = [*self._kept_out(), *banned]
        return self.lark.without(kept_out, "FREE", "|".join(begins) or None) + "?"

    def _kept_out(self) -> list[str]:
        """Regular expressions of what free text may not hold."""
        marks = [mark for mark, what in self._rules.in_text.meanings.items() if what in LOUD]
        tools = self._rules.tools
        if tools is not None:
            marks = [mark for mark in marks if mark not in tools.unmarked_starts]
            marks += [*tools.call.open]
        found = [pattern(mark) for mark in dict.fromkeys([*marks, *self._spelt()])]
        if self._calls is not None:
            found = [one for one in found if one not in self._calls.harmless()]
            found += [] if self._calls.weak is None else [self._calls.weak.look]
            found += self._calls.forbidden()
        return found


def _any(marks: Sequence[str]) -> str:
    return "|".join(map(pattern, marks))
