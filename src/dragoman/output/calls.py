"""The calls of one answer as they are found, and what is known of the tools they name.

A call is not handed out before it is certain: its name is held back until its arguments begin,
so that text which only looks like a call for a while can still be given back as text. From then
on arguments flow out as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.output.arguments.parameter_types import ParameterSchema, Types, read_parameter_schema
from dragoman.output.span import Span
from dragoman.output.text_buffer import MarkerSet, TextBuffer

NO_SCHEMA = read_parameter_schema(None)


class DeclaredTools:
    """The tools that were declared; None is "any name will do"."""

    def __init__(self, tools: Mapping[str, Any] | None, accept: bool = False) -> None:
        self._tools = {name: read_parameter_schema(said) for name, said in (tools or {}).items()}
        self._types: dict[str, dict[str, Types]] = {}
        self._accept = accept or tools is None

    def is_allowed(self, name: str) -> bool:
        return self._accept or name in self._tools

    def resolve_name(self, name: str) -> str:
        """The declared tool that a name means: models write some twice, as in `read.read`."""
        first, _, second = name.partition(".")
        twice = first == second and first in self._tools and name not in self._tools
        return first if twice else name

    def parameter_types(self, name: str) -> Mapping[str, Types]:
        """The kinds of each parameter of a tool, found when they are first wanted."""
        found = self._types.get(name)
        if found is None:
            tool = self._tools.get(name)
            found = {} if tool is None else {key: tool.member(key).types for key in tool.names()}
            self._types[name] = found
        return found

    def parameter_schema(self, name: str, key: str) -> ParameterSchema:
        return self._tools.get(name, NO_SCHEMA).member(key)


class CallRecorder:
    """Takes down what the readers of calls find."""

    def __init__(
        self,
        buffer: TextBuffer,
        spans: list[Span],
        tools: DeclaredTools,
        give_back: Callable[[], None],
    ) -> None:
        self.tools = tools
        self.has_rejected_call = False  # whether one of a draft was
        self.count = 0  # calls that began
        self.has_call = False  # whether the present attempt found one
        self.is_undeclared = False  # the present one is of a tool that nobody declared
        self.name = ""
        self.missing_end: Callable[[], str] = str  # what would complete the arguments
        self.held_arguments: Callable[[], str] = str  # what of them is held back
        self.end_markers: MarkerSet | None = (
            None  # markers that end a call, whatever of it is missing
        )
        self._buffer = buffer
        self._spans = spans
        self._emit_held = give_back
        self._became_text = False  # whether the last call became text
        self._count_before = 0  # calls there were before this attempt
        self._draft: list[Span] | None = None
        self._id = ""
        self._is_emitting = False
        self._is_open = False

    def start_attempt(self, *, draft: bool) -> None:
        """What is read from here on may be a call. Of a draft nothing is handed out yet."""
        self._draft = [] if draft else None
        self._count_before = self.count
        self._became_text = False
        self.has_call = self.is_undeclared = self.has_rejected_call = self._is_emitting = (
            self._is_open
        ) = False

    def open_call(self, name: str, own: str = "") -> None:
        """A call of this name, with the id that the model itself gave it."""
        self.name = name = self.tools.resolve_name(name)
        self._id = own
        self.is_undeclared = not self.tools.is_allowed(name)
        self._is_emitting, self._is_open = False, True
        self.missing_end = self.held_arguments = str

    def parameter_types(self, key: str) -> Types:
        known = self.tools.parameter_types(self.name)
        return known[key] if key in known else self.tools.parameter_schema(self.name, key).types

    def write_arguments(self, text: str) -> None:
        if self.is_undeclared:
            return
        spans = self._spans if self._draft is None else self._draft
        if not self._is_emitting:
            self._is_emitting = self.has_call = True
            spans.append(Span("tool_name", self.name, 0, self.count, self._id))
        if self._draft is None:
            self._buffer.hold()  # what comes now may still turn out to be no part of it
        if text:
            spans.append(Span("tool_args", text, 0, self.count))

    def close_call(self) -> None:
        """The call is whole. What follows may be another one."""
        self.count += self._is_emitting
        self._became_text = self.is_undeclared
        if self.is_undeclared:
            self.emit_undeclared()
        elif self._is_emitting:
            self.commit()
        self._is_emitting = self._is_open = self.is_undeclared = False

    def emit_undeclared(self) -> None:
        """A call that nobody may make is text."""
        self.has_rejected_call = True
        if self._draft is None:
            self._emit_held()
            self._buffer.hold()

    def commit(self) -> None:
        """What was read up to here is dealt with, unless it belongs to a call that is text."""
        if self._draft is None and not self._became_text and not self.is_undeclared:
            self._buffer.hold()

    def start_next_call(self) -> None:
        """Another call begins. What is left of one that became text is text too."""
        if self._became_text and self._draft is None:
            self._emit_held()
            self._buffer.hold()
        self._became_text = False

    def end_attempt(self) -> None:
        """The attempt is over."""
        self.is_undeclared = self._became_text = False

    @property
    def is_emitting(self) -> bool:
        """Whether a call was handed out that is not whole yet."""
        return self._is_emitting

    @property
    def is_open(self) -> bool:
        """Whether a call's name is known that is not whole yet."""
        return self._is_open

    def resolve_draft(self, meant: bool) -> None:
        """Whether the draft was meant."""
        if meant:
            self._spans.extend(self._draft or ())
        else:
            self.count = self._count_before
        self._draft = None
