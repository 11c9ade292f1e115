"""The input and the output of the grammar compiler.

A `GrammarSpec` holds everything that decides a grammar and nothing else, so its encoded bytes are
the key of the cache, and it is sent to the worker process as it is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dragoman.types import BannedString, Constraint, Tool


class GrammarSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer must look like: `reasoning? (content | calls)` in the formats of one model."""

    constraint: Constraint | None = None  # on the content; None: free text
    tools: tuple[Tool, ...] = ()  # the tools that may be called
    tool_choice: Literal["auto", "required"] = "auto"
    max_calls: int | None = None  # None: any number; in free text, only a limit of 1 is enforced
    tool_format: str | None = None  # how calls are written; None: no calls
    reasoning_format: str | None = None
    starts_in_reasoning: bool | None = None  # None: the template does not decide it
    header_start: str | None = None  # the end of the prompt, if it opens a message header
    without_reasoning: bool = False  # no reasoning is allowed: its budget is spent
    banned_strings: tuple[BannedString, ...] = ()  # excludes a constraint and tools
    special_tokens: dict[str, int] = {}  # markers that are special tokens, by their text

    @property
    def param(self) -> str | None:
        """The request field to name in an error."""
        if self.constraint is not None:
            return self.constraint.param or None
        if self.banned_strings:
            return "banned_strings"
        if len(self.tools) == 1:
            [tool] = self.tools
            return tool.param if tool.input is None else tool.input.param
        return "tools"


class CompiledGrammar(Struct, frozen=True):
    """A verified grammar, and warnings about what it does not enforce."""

    grammar: str | None  # None: everything is allowed
    warnings: tuple[str, ...] = ()
    decides_end: bool = False  # the grammar decides where the answer ends; ignore stop strings
    constrains_content: bool = False  # white space before the content is not part of it
