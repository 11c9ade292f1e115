"""Writes the rules of a whole answer: reasoning, then content or calls.

Reasoning is unconstrained, whether the prompt or the model opens it, and ends at the marker by
which the parser ends it. One of four things follows:

    free text in which calls may begin   the grammar of a call begins at its opening marker
    calls and nothing else               if a call is required
    constrained content                  a schema, a grammar
    constrained content, or calls        if both are asked for

Markers stay out of places where the parser would misunderstand them: free text contains an opening
marker only where a call follows, and nothing spells a marker that is a special token in plain text.
Formats whose messages have headers are written by `message_writer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.grammar.lark_builder import ANY, UP_TO_THREE, LarkBuilder, join_alternatives
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers, exclude_partial_markers
from dragoman.grammar.writer.call_body_writer import BEFORE_ODD_NAME, NAME_END, UnmarkedCallStart
from dragoman.grammar.writer.call_writer import CallWriter, join_regexes, list_read_names
from dragoman.grammar.writer.unquoted_text import write_text_until
from dragoman.output.rules import FormatRules

BRACKETS = (r"\{", r"\[")
ACTIVE_MEANINGS = ("section", "call", "first", "open")


class AnswerWriter:
    """Writes the rules of one answer.

    An answer `without_reasoning` contains no reasoning and nothing that the parser would take for
    its start.
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
        self._banned_at_start = rules.reasoning.opens_at_start if without_reasoning else ()

    def write_constrained(self, content: str | None) -> str:
        """Write an answer that is constrained content or calls, whichever are given."""
        options = [] if content is None else [self._wrap_content(content)]
        options += [] if self._calls is None else [self._calls.write_required()]
        return f"{self._write_leading_reasoning()} {join_alternatives(options)}"

    def write_free(self, *, may_stay_open: bool) -> str:
        """Write free text in which calls may begin: one, or any number.

        With `may_stay_open`, the answer may end inside reasoning that is never closed.
        """
        lark, parallel = self.lark, self._calls is None or self._calls.max_calls != 1
        trailing, unclosed = self._write_trailing_markers(), self._write_unclosed_sections()
        next_call = "" if self._calls is None else self._calls.next_call_regex
        answer, after = lark.reserve("free"), trailing
        if parallel:
            after = lark.reserve("after") if next_call else answer
        start = None if self._calls is None else self._calls.unmarked_start
        named = "" if start is None else self._write_named_calls(start, answer, after)
        unnamed = "" if start is None else self._write_no_name(start, answer, is_odd=True)
        places = {answer: ""}
        if parallel:
            places.setdefault(after, next_call)
        for place, not_at_start in places.items():
            calls, others = self._write_segments(not_at_start)
            options = [f"{call} {after}" for call in calls]
            options += [f"{segment} {answer}" for segment in others]
            if start is not None:
                text = self._build_leading_text((), not_at_start=not_at_start)
                options.append(f"{lark.add_text_up_to(f'/{start.prefix_regex}/', text)} {named}")
                odd = lark.add_text_up_to(f"/{start.odd_prefix_regex}/", text)
                options.append(f"{odd} {unnamed}")
            options += [self._write_plain_text(not_at_start=not_at_start), *unclosed]
            options += self._write_unclosed_ends(not_at_start) if may_stay_open else ()
            lark.define(place, " | ".join(options))
        first_call = None if self._calls is None else self._calls.write_unmarked_first_call()
        if first_call is not None:
            others = self._write_segments()[1]
            before = f"{join_alternatives(others)}*" if others else ""
            answer = lark.add_rule(f"{before} {first_call} {trailing} | {answer}", "answer")
        if not self._starts_in_reasoning:
            first = self._write_reasoning_at_start(answer, may_stay_open=may_stay_open)
            return join_alternatives([*first, answer])
        return self._write_opened_reasoning(answer, may_stay_open=may_stay_open)

    def _write_named_calls(self, start: UnmarkedCallStart, free: str, after_call: str) -> str:
        """Write what follows where a call may begin without a marker, by the name of a tool."""
        lark, space = self.lark, start.space_regex
        options = []
        for name, rest in start.names:
            regex = f"/{space}{escape_regex(name)}{space}{start.name_end_regex}/"
            options.append(f"{lark.add_terminal(regex, 'NAME')} {rest} {after_call}")
        options.append(self._write_no_name(start, free))
        return lark.add_rule(" | ".join(options), "named")

    def _write_no_name(self, start: UnmarkedCallStart, free: str, *, is_odd: bool = False) -> str:
        """Write text that the parser reads as no tool's name; `is_odd`: after a damaged key.

        It returns to the rule `free` at its first differing character, or the answer ends before.
        """
        lark, space = self.lark, start.space_regex
        lead, end = start.lead_regex, start.read_end_regex
        if is_odd:
            lead, end = BEFORE_ODD_NAME, NAME_END
        read_names = list_read_names(name for name, _ in start.names)
        prefixes = [prefixes_to_regex(name) for name, _ in start.names]
        prefixes += [  # of a name that is repeated
            rf"{escape_regex(name)}\.(?:{prefix})?"
            for (name, _), prefix in zip(start.names, prefixes, strict=True)
        ]
        partial = f"(?:{'|'.join(prefixes)}|{join_regexes(read_names)}{space})?"
        whole = f"{join_regexes(read_names)}{end}"
        if start.escape_regexes is not None:
            whole += f"|{partial}{start.escape_regexes[0]}"
            partial += f"(?:{start.escape_regexes[1]})?"
        partial_name = lark.add_terminal(f"/{lead}{partial}/ & /(?s:.+)/", "PARTIAL")
        other = f"/(?s:.+)/ & ~/{lead}{partial}/ & ~/{lead}(?:{whole})(?s:.*)/"
        other += exclude_partial_markers(self._banned_openers)
        no_name = lark.add_shortest_match(lark.add_terminal(other, "OTHER"))
        return lark.add_rule(f"{no_name} {free} | {partial_name}?", "no_name")

    # Reasoning

    def _write_leading_reasoning(self) -> str:
        """Write the optional reasoning at the start of an answer."""
        if not self._allows_reasoning:
            return ""
        space = self.lark.add_optional_space()
        if self._starts_in_reasoning:
            return f"{self._write_reasoning_rest()} {space}"
        openers = (*self._reasoning.open_with_name, *self._reasoning.opens_at_start)
        if not openers:
            return ""
        opener = self.lark.write_any_marker(openers)
        return f"({space} {opener} {self._write_reasoning_rest()} {space})?"

    def _write_reasoning_at_start(self, answer: str, *, may_stay_open: bool) -> list[str]:
        """Write reasoning that its marker opens only at the start of an answer, if there is one."""
        markers = self._reasoning.opens_at_start
        if not markers or not self._allows_reasoning:
            return []
        # the shortest match, or free text would extend over it
        regex = f"/(?:{'|'.join(map(marker_to_regex, markers))})/"
        opener = self.lark.add_shortest_match(regex, "opener")
        return [f"{opener} {self._write_opened_reasoning(answer, may_stay_open=may_stay_open)}"]

    def _write_opened_reasoning(self, answer: str, *, may_stay_open: bool) -> str:
        """Write reasoning after its opening marker, and the answer."""
        unclosed = [self._write_unclosed_reasoning()] if may_stay_open else []
        return join_alternatives([f"{self._write_reasoning_rest()} {answer}", *unclosed])

    def _write_reasoning_rest(self) -> str:
        """Write opened reasoning and the marker that closes it."""
        return write_text_until(self.lark, ANY, self._reasoning.close, self._list_special_markers())

    def _write_unclosed_reasoning(self) -> str:
        markers = (*self._reasoning.close, *self._list_special_markers())
        return self.lark.add_text_without(map(marker_to_regex, markers), "REASONING") + "?"

    def _write_unclosed_ends(self, not_at_start: str) -> list[str]:
        """Write the ways to end an answer with reasoning that is never closed."""
        if not self._allows_reasoning:
            return []
        unclosed = self._write_unclosed_reasoning()
        return [f"{start} {unclosed}" for start in self._write_reasoning_starts("", not_at_start)]

    def _list_special_markers(self) -> list[str]:
        """Return the markers that contain special tokens, which no text may spell."""
        meanings = self._rules.in_text.meanings
        return [marker for marker in meanings if not self.lark.is_plain_text(marker)]

    # Content

    def _wrap_content(self, content: str) -> str:
        """Add the markers that the format allows around content."""
        lark, wrapper = self.lark, self._reasoning.answer_wrapper
        lead = tail = ""
        if before := [*wrapper.open, *self._list_ignored_markers()]:
            lead = f"({lark.write_any_marker(before)} {lark.add_optional_space()}){UP_TO_THREE}"
        if after := [*wrapper.close, *self._list_ignored_markers()]:
            tail = f"({lark.add_optional_space()} {lark.write_any_marker(after)}){UP_TO_THREE}"
        return f"{lead} {content} {tail}"

    def _list_ignored_markers(self) -> list[str]:
        tools = self._rules.tools
        return [*self._reasoning.dropped, *(() if tools is None else tools.dropped)]

    def _write_trailing_markers(self) -> str:
        """Write the markers without meaning that may end an answer."""
        tools = self._rules.tools
        if tools is None or not tools.ignored_after_call:
            return ""
        markers = self.lark.write_any_marker(tools.ignored_after_call)
        return f"({self.lark.add_optional_space()} {markers}){UP_TO_THREE}"

    # Free text

    def _write_segments(self, not_at_start: str = "") -> tuple[list[str], list[str]]:
        """Write the repeated parts of free text: text and a call, text and another marker."""
        calls: list[str] = []
        for opening in [] if self._calls is None else self._calls.openings:
            calls += self._write_up_to_markers(
                (opening.marker,), opening.rest, not_at_start=not_at_start
            )
        others: list[str] = []
        if self._allows_reasoning:
            others += self._write_reasoning_starts(self._write_reasoning_rest(), not_at_start)
        text = self._write_plain_text(not_at_start=not_at_start)
        for marker, meaning in self._rules.in_text.meanings.items():
            if meaning not in ACTIVE_MEANINGS and self._starts_with_special_token(marker):
                others.append(f"{text} {self.lark.write_marker(marker)}")
        return calls, others

    def _write_unclosed_sections(self) -> list[str]:
        """Write the ways to end an answer with calls whose closing marker is missing."""
        tools, space = self._rules.tools, self.lark.add_optional_space()
        if self._calls is None or tools is None:
            return []
        wrapper = self._reasoning.answer_wrapper
        markers = [*tools.ignored_after_call, *self._list_ignored_markers(), *wrapper.close]
        trailing = ""
        if markers:
            trailing = f"({space} {self.lark.write_any_marker(markers)}){UP_TO_THREE}"
        ends = []
        for opening in self._calls.openings:
            if opening.unclosed_rest:
                rest = f"{opening.unclosed_rest} {trailing} {space}"
                ends += self._write_up_to_markers((opening.marker,), rest)
        return ends

    def _write_reasoning_starts(self, rest: str, not_at_start: str = "") -> list[str]:
        """Write text up to reasoning, its opening marker, and `rest`.

        If calls have no markers, a bracket in that text may begin a call, which would then contain
        the marker. So brackets are banned.
        """
        unmarked = self._calls is not None and self._calls.unmarked_start is not None
        banned = BRACKETS if unmarked else ()
        return self._write_up_to_markers(self._reasoning.open, rest, banned, not_at_start)

    def _write_up_to_markers(
        self,
        markers: Sequence[str],
        rest: str,
        banned: Sequence[str] = (),
        not_at_start: str = "",
    ) -> list[str]:
        """Write text without `banned` characters, up to any of these markers, and `rest`."""
        lark = self.lark
        plain = [marker for marker in markers if lark.is_plain_text(marker)]
        special = [marker for marker in markers if self._starts_with_special_token(marker)]
        options = []
        if plain:
            body = self._build_leading_text(banned, self._list_special_markers(), not_at_start)
            text = lark.add_terminal(body, "BEFORE")
            suffix = f"/(?:{'|'.join(map(marker_to_regex, plain))})/"
            options.append(f"{lark.add_text_up_to(suffix, text)} {rest}")
        if special:
            text = self._write_plain_text(banned, not_at_start)
            options.append(f"{text} {lark.write_any_marker(special)} {rest}")
        return options

    def _build_leading_text(
        self, banned: Sequence[str], markers: Sequence[str] = (), not_at_start: str = ""
    ) -> str:
        """Build the terminal body of text before a marker, which contains none of `markers`."""
        body = f"/[^{''.join(banned)}]*/" if banned else ANY
        for marker in self._banned_at_start:
            body += rf" & ~/\s*{marker_to_regex(marker)}(?s:.*)/"
        if not_at_start:
            body += f" & ~/{not_at_start}(?s:.*)/"
        forbidden = [] if self._calls is None else self._calls.list_forbidden_regexes()
        if forbidden:
            body += f" & ~/(?s:.*)(?:{'|'.join(forbidden)})(?s:.*)/"
        inner = () if self._calls is None else self._calls.inner_markers
        excluded = (*markers, *inner, *self._banned_openers)
        return body + exclude_markers(excluded, length_bounded=False)

    def _starts_with_special_token(self, marker: str) -> bool:
        """Whether a marker starts with a special token; one that only contains some is not used."""
        return self.lark.write_marker(marker).startswith("<[")

    def _write_plain_text(self, banned: Sequence[str] = (), not_at_start: str = "") -> str:
        """Write optional text in which nothing else begins."""
        starts = [rf"\s*{marker_to_regex(marker)}" for marker in self._banned_at_start]
        starts += [not_at_start] if not_at_start else []
        if self._calls is not None and self._calls.first_call_regex is not None:
            starts.append(self._calls.first_call_regex)
        excluded = [*self._list_excluded_regexes(), *banned]
        return self.lark.add_text_without(excluded, "FREE", "|".join(starts) or None) + "?"

    def _list_excluded_regexes(self) -> list[str]:
        """Return the regular expressions that match nowhere in free text."""
        meanings = self._rules.in_text.meanings.items()
        markers = [marker for marker, meaning in meanings if meaning in ACTIVE_MEANINGS]
        tools = self._rules.tools
        if tools is not None:
            markers = [marker for marker in markers if marker not in tools.unmarked_starts]
            markers += tools.call.open
        distinct = dict.fromkeys([*markers, *self._list_special_markers()])
        regexes = [marker_to_regex(marker) for marker in distinct]
        if self._calls is not None:
            ambiguous = self._calls.list_ambiguous_regexes()
            regexes = [regex for regex in regexes if regex not in ambiguous]
            if (start := self._calls.unmarked_start) is not None:
                regexes += [start.prefix_regex, start.odd_prefix_regex]
            regexes += self._calls.list_forbidden_regexes()
        return regexes
