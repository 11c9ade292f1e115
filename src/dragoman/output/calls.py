"""The calls of one answer as they are found, and what is known of the tools they name.

A call is not handed out before it is certain: its name is held back until its arguments begin,
so that text which only looks like a call for a while can still be given back as text. From then
on arguments flow out as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.output.arguments.parameter_types import Schema, Types, schema_of
from dragoman.output.span import Span
from dragoman.output.text_buffer import MarkerSet, TextBuffer

NOTHING = schema_of(None)


class Toolbox:
    """The tools that were declared; None is "any name will do"."""

    def __init__(self, tools: Mapping[str, Any] | None, accept: bool = False) -> None:
        self._tools = {name: schema_of(said) for name, said in (tools or {}).items()}
        self._types: dict[str, dict[str, Types]] = {}
        self._accept = accept or tools is None

    def allows(self, name: str) -> bool:
        return self._accept or name in self._tools

    def meant(self, name: str) -> str:
        """The declared tool that a name means: models write some twice, as in `read.read`."""
        first, _, second = name.partition(".")
        twice = first == second and first in self._tools and name not in self._tools
        return first if twice else name

    def types(self, name: str) -> Mapping[str, Types]:
        """The kinds of each parameter of a tool, found when they are first wanted."""
        found = self._types.get(name)
        if found is None:
            tool = self._tools.get(name)
            found = {} if tool is None else {key: tool.member(key).types for key in tool.names()}
            self._types[name] = found
        return found

    def schema(self, name: str, key: str) -> Schema:
        return self._tools.get(name, NOTHING).member(key)


class Calls:
    """Takes down what the readers of calls find."""

    def __init__(
        self, src: TextBuffer, spans: list[Span], tools: Toolbox, give_back: Callable[[], None]
    ) -> None:
        self.tools = tools
        self.spoiled = False  # whether one of a draft was
        self.count = 0  # calls that began
        self.found = False  # whether the present attempt found one
        self.muted = False  # the present one is of a tool that nobody declared
        self.name = ""
        self.closing: Callable[[], str] = str  # what would complete the arguments
        self.held: Callable[[], str] = str  # what of them is held back
        self.ends: MarkerSet | None = None  # marks that end a call, whatever of it is missing
        self._src = src
        self._spans = spans
        self._give_back = give_back
        self._text = False  # whether the last call became text
        self._before = 0  # calls there were before this attempt
        self._draft: list[Span] | None = None
        self._id = ""
        self._begun = False
        self._open = False

    def attempt(self, *, draft: bool) -> None:
        """What is read from here on may be a call. Of a draft nothing is handed out yet."""
        self._draft = [] if draft else None
        self._before = self.count
        self._text = False
        self.found = self.muted = self.spoiled = self._begun = self._open = False

    def open(self, name: str, own: str = "") -> None:
        """A call of this name, with the id that the model itself gave it."""
        self.name = name = self.tools.meant(name)
        self._id = own
        self.muted = not self.tools.allows(name)
        self._begun, self._open = False, True
        self.closing = self.held = str

    def types(self, key: str) -> Types:
        known = self.tools.types(self.name)
        return known[key] if key in known else self.tools.schema(self.name, key).types

    def args(self, text: str) -> None:
        if self.muted:
            return
        spans = self._spans if self._draft is None else self._draft
        if not self._begun:
            self._begun = self.found = True
            spans.append(Span("tool_name", self.name, 0, self.count, self._id))
        if self._draft is None:
            self._src.hold()  # what comes now may still turn out to be no part of it
        if text:
            spans.append(Span("tool_args", text, 0, self.count))

    def close(self) -> None:
        """The call is whole. What follows may be another one."""
        self.count += self._begun
        self._text = self.muted
        if self.muted:
            self.return_muted()
        elif self._begun:
            self.settle()
        self._begun = self._open = self.muted = False

    def return_muted(self) -> None:
        """A call that nobody may make is text."""
        self.spoiled = True
        if self._draft is None:
            self._give_back()
            self._src.hold()

    def settle(self) -> None:
        """What was read up to here is dealt with, unless it belongs to a call that is text."""
        if self._draft is None and not self._text and not self.muted:
            self._src.hold()

    def renew(self) -> None:
        """Another call begins. What is left of one that became text is text too."""
        if self._text and self._draft is None:
            self._give_back()
            self._src.hold()
        self._text = False

    def end(self) -> None:
        """The attempt is over."""
        self.muted = self._text = False

    @property
    def begun(self) -> bool:
        """Whether a call was handed out that is not whole yet."""
        return self._begun

    @property
    def opened(self) -> bool:
        """Whether a call's name is known that is not whole yet."""
        return self._open

    def judge(self, meant: bool) -> None:
        """Whether the draft was meant."""
        if meant:
            self._spans.extend(self._draft or ())
        else:
            self.count = self._before
        self._draft = None
