"""Writes the rules of a whole answer in a format whose messages have headers.

An answer is a sequence of messages. The header of each message decides whether it is reasoning,
text, or a call of the tool it names. A prompt may end with the start of a header, so the first
header of an answer may lack its opening marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dragoman.grammar.lark_builder import (
    ANY,
    UP_TO_THREE,
    LarkBuilder,
    join_alternatives,
    repeat_more,
)
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_partial_markers
from dragoman.grammar.writer.call_writer import CallWriter
from dragoman.grammar.writer.tool_names import ParsedTool
from dragoman.grammar.writer.unquoted_text import write_text_until
from dragoman.output.marker_patterns import is_run
from dragoman.output.spec import MessageHeader


class HeaderWriter:
    """Writes headers; for an answer `without_reasoning`, none that reasoning could have.

    `prompt_end` is the end of the prompt if a header starts there.
    """

    def __init__(
        self,
        lark: LarkBuilder,
        header: MessageHeader,
        prompt_end: str,
        *,
        without_reasoning: bool = False,
    ) -> None:
        self.lark = lark
        self.header = header
        self._prompt_end = prompt_end
        patterns = [pattern for pattern, channel in header.routes if channel == "reasoning"]
        self._spellings = [
            (channel, text)
            for channel, text in header.spellings
            if not without_reasoning
            or (
                channel != "reasoning" and not any(re.search(pattern, text) for pattern in patterns)
            )
        ]

    @property
    def ends_at_next_header(self) -> bool:
        """Whether messages have no closing marker, so that the next header ends them."""
        return not self.header.close

    def write_headers(self, channel: str, *, is_first: bool, name: str = "") -> list[str]:
        """Write the headers of a channel; the first of an answer may lack its opening marker."""
        headers: list[str] = []
        is_open = self._prompt_end.endswith(self.header.open) or not self.header.separator
        for text in [text for kind, text in self._spellings if kind == channel]:
            rest = next(
                (text[len(opener) :] for opener in self.header.open if text.startswith(opener)), ""
            )
            if self.ends_at_next_header and not is_first:
                headers.append(rest)
            elif rest and is_open and (is_first or rest.startswith("<")):
                headers += [text, rest]
            else:
                headers += [text, text.lstrip()] if is_first else [text]
        return [
            self.lark.write_marker(text.replace("{name}", name)) for text in dict.fromkeys(headers)
        ]


class MessageWriter:
    """Writes the rules of one answer, whose text contains none of the `banned` markers."""

    def __init__(
        self,
        headers: HeaderWriter,
        calls: CallWriter | None,
        tools: Sequence[ParsedTool],
        banned: Sequence[str] = (),
    ) -> None:
        self.lark = headers.lark
        self._headers = headers
        self._header = headers.header
        self._ends_at_next_header = headers.ends_at_next_header
        self._calls = calls
        self._max_calls = None if calls is None else calls.max_calls
        self._ignored_markers = () if calls is None else calls.ignored_markers
        self._tools = tools
        self._banned_markers = banned

    def write_constrained(self, content: str | None, *, starts_in_reasoning: bool) -> str:
        """Write reasoning, then constrained content or calls."""

        def write_last(is_first: bool) -> str:
            options = []
            if content is not None:
                headers = self._headers.write_headers("text", is_first=is_first)
                header = join_alternatives(headers[: 2 if is_first else 1])
                space = self.lark.add_optional_space()
                options.append(f"{header} {space} {content} {self._write_end()}")
            if self._calls is not None:
                options.append(self._write_calls(is_first=is_first))
            return join_alternatives(options)

        return self._write_after_reasoning(write_last, starts_in_reasoning=starts_in_reasoning)

    def write_free(self, *, starts_in_reasoning: bool, may_stay_open: bool) -> str:
        """Write messages of any kind, of which one may be a call, or any number.

        With `may_stay_open`, the answer may end inside reasoning that is never closed.
        """
        text, rest = self._write_text(), self._write_message_rest()
        ends = [text]
        if self._header.close:
            ends.append(write_text_until(self.lark, ANY, self._header.close, self._list_markers()))
        messages = self._write_messages()
        if starts_in_reasoning:
            return join_alternatives([f"{rest} {messages}", *([text] if may_stay_open else ())])
        header = self._write_any_header(is_first=True)
        options = [f"{header} {end}" for end in ends]
        options += [f"{header} {rest} {messages}"]
        if self._calls is not None:
            more = self._write_after_call(messages) if self._max_calls != 1 else ""
            options.append(f"{self._write_call(is_first=True)} {more}")
        if separator := self._write_separator():
            options = [f"({separator})? {option}" for option in options]
        # text without a header would swallow a header that begins with a letter
        allows_no_header = all(spelling.startswith("<") for _, spelling in self._header.spellings)
        return join_alternatives([*options, *(ends if allows_no_header else ())])

    def _write_messages(self) -> str:
        """Write any number of messages after the first one."""
        name = self.lark.reserve("messages")
        separator, text = self._write_separator(), self._write_text()
        header, rest = self._write_any_header(is_first=False), self._write_message_rest()
        options = ['""', f"{separator} {header} {text}", f"{separator} {header} {rest} {name}"]
        if self._ends_at_next_header:
            options += self._write_text_after_marker([text, f"{rest} {name}"])
        if self._calls is not None:
            more = self._write_after_call(name) if self._max_calls != 1 else ""
            options.append(f"{separator} {self._write_call(is_first=False)} {more}")
        return self.lark.define(name, " | ".join(options))

    def _write_any_header(self, *, is_first: bool) -> str:
        """Write a header of text or reasoning."""
        text = self._headers.write_headers("text", is_first=is_first)
        reasoning = self._headers.write_headers("reasoning", is_first=is_first)
        return join_alternatives([*text, *reasoning])

    def _write_text_after_marker(self, after: Sequence[str]) -> list[str]:
        """Write what follows an opening marker that is an ordinary word and begins no header.

        The text of the message continues there, up to one of `after`.
        """
        lark = self.lark
        spellings = [text for channel, text in self._header.spellings if channel != "call"]
        spellings += [
            text.replace("{name}", tool.name)
            for channel, text in self._header.spellings
            for tool in self._tools
            if channel == "call"
        ]
        opener = self._header.open[0]
        rests = [text.removeprefix(opener) for text in spellings]
        partial = "|".join(
            prefixes_to_regex(spelling)
            for rest in rests
            for spelling in (rest, rest.replace("\n", "\r\n"))
        )
        whole = "|".join(map(marker_to_regex, rests))
        # of a longer run of its character, the parser takes the last ones for the marker
        if is_run(opener):
            whole += f"|{escape_regex(opener[0])}"
        other = f"/(?s:.+)/ & ~/{partial}/ & ~/(?:{whole})(?s:.*)/"
        other += exclude_partial_markers(self._banned_markers)
        no_header = lark.add_shortest_match(lark.add_terminal(other, "OTHER"))
        partial_header = lark.add_terminal(f"/{partial}/ & ~/{whole}/", "PARTIAL")
        return [partial_header, *(f"{no_header} {continuation}" for continuation in after)]

    def _write_after_call(self, messages: str) -> str:
        """Write what follows a call, which does not extend to the next header as text does."""
        if not self._ends_at_next_header:
            return messages
        opener = self.lark.write_any_marker(self._header.open)
        return f"({self.lark.add_optional_space()} {opener} {messages})?"

    def _write_after_reasoning(
        self, write_last: Callable[[bool], str], *, starts_in_reasoning: bool
    ) -> str:
        """Write optional messages of reasoning, and the last message.

        `write_last` takes whether the last message is also the first.
        """
        separator, rest = self._write_separator(), self._write_message_rest()
        headers = self._headers.write_headers("reasoning", is_first=False)
        more = f"({separator} {join_alternatives(headers)} {rest})*" if headers else ""
        if starts_in_reasoning:
            return f"{rest} {more} {separator} {write_last(False)}"
        first_headers = self._headers.write_headers("reasoning", is_first=True)
        if not first_headers:
            return write_last(True)
        first = f"{join_alternatives(first_headers)} {rest}"
        return join_alternatives(
            [write_last(True), f"{first} {more} {separator} {write_last(False)}"]
        )

    # Single messages

    def _write_calls(self, *, is_first: bool) -> str:
        separator = self._write_separator()
        if self._ends_at_next_header:
            opener = self.lark.write_any_marker(self._header.open)
            separator = f"{self.lark.add_optional_space()} {opener}"
        more = repeat_more(f"{separator} {self._write_call(is_first=False)}", self._max_calls)
        return f"{self._write_call(is_first=is_first)} {more}"

    def _write_call(self, *, is_first: bool) -> str:
        assert self._calls is not None  # noqa: S101
        options = []
        for tool in self._tools:
            rest = self._calls.write_addressed_call(tool)
            headers = self._headers.write_headers("call", is_first=is_first, name=tool.name)
            options += [f"{header} {rest} {self._write_end()}" for header in headers]
        return self.lark.add_rule(" | ".join(options), "message")

    def _write_text(self) -> str:
        """Write optional text without markers."""
        return self.lark.add_text_without(map(marker_to_regex, self._list_markers()), "FREE") + "?"

    def _write_separator(self) -> str:
        return self.lark.write_marker(self._header.separator) if self._header.separator else ""

    def _write_message_rest(self) -> str:
        """Write a message after its header; the parser would act on a header inside it."""
        closing = self._header.close or self._header.open
        banned = [marker for marker in self._list_markers() if marker not in closing]
        return write_text_until(self.lark, ANY, closing, banned)

    def _write_end(self) -> str:
        """Write the markers that may close the last message."""
        markers = (*self._header.close, *self._ignored_markers)
        return f"({self.lark.write_any_marker(markers)}){UP_TO_THREE}" if markers else ""

    def _list_markers(self) -> list[str]:
        header = self._header
        ends = [marker for marker in header.end if marker.strip()]
        return list(dict.fromkeys((*header.open, *header.close, *ends, *self._banned_markers)))
