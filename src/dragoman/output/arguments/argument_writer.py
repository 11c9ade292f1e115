"""Emits arguments that are read one by one as one JSON object."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dragoman.output.arguments.json_strings import escape, quote
from dragoman.output.arguments.schemas.parameter_types import ParameterSchema, Types
from dragoman.output.calls import CallRecorder

MakeItem: TypeAlias = Callable[[ParameterSchema], str]  # returns an element of a list as JSON


class ArgumentWriter:
    """Emits arguments as one JSON object."""

    def __init__(self, calls: CallRecorder) -> None:
        self._calls = calls
        self.has_arguments = False
        self._in_string = False
        self._string_key = ""  # of a string without any text so far
        self._lines = 0  # line breaks at the end of a string, which may be markup
        self._key = ""  # of values that wait: the schema wants a list, and each may be an element
        self._values: list[tuple[str, MakeItem]] = []  # as one value, and as element of a list
        calls.get_missing_end = self.get_missing_end

    def get_missing_end(self) -> str:
        return '"}' if self._in_string else "}"

    def _start_member(self, key: str) -> str:
        self.write_list()
        lead = ", " if self.has_arguments else "{"
        self.has_arguments = True
        return f"{lead}{quote(key)}: "

    def write_member(self, key: str, value: str) -> None:
        self._calls.write_arguments(self._start_member(key) + value)

    def write_value(self, key: str, types: Types, value: str, make_item: MakeItem) -> None:
        """Write a value. Several values of a key whose schema is a list become a list."""
        if "array" not in types or value.startswith("["):
            self.write_member(key, value)
            return
        if key != self._key:
            self.write_list()
        self._key = key
        self._values.append((value, make_item))

    def write_list(self) -> None:
        """Write the values that wait; a single one is not a list."""
        values, self._values = self._values, []
        if len(values) == 1:
            self.write_member(self._key, values[0][0])
        elif values:
            schema = self._calls.tools.get_parameter_schema(self._calls.name, self._key)
            items = (make_item(schema.get_item(n)) for n, (_, make_item) in enumerate(values))
            self.write_member(self._key, f"[{', '.join(items)}]")

    def start_string(self, key: str) -> None:
        """Start a string; it is written with its first text, for there may be none."""
        self._string_key = key
        self._in_string = False
        self._lines = 0

    def write_string(self, text: str) -> None:
        if self._in_string and not self._lines and text[-1] != "\n":
            self._calls.write_arguments(escape(text))
            return
        stripped = text.rstrip("\n")
        lines, self._lines = self._lines, len(text) - len(stripped)
        if stripped:
            self._write_text("\n" * lines + stripped)
        else:
            self._lines += lines

    def _write_text(self, text: str) -> None:
        lead = "" if self._in_string else self._start_member(self._string_key) + '"'
        self._in_string = True
        self._calls.write_arguments(lead + escape(text))

    def end_string(self, *, is_closed: bool) -> None:
        """End a string; without its closing tag, it has no line breaks at its end.

        A string without text is a value only if it is closed.
        """
        if is_closed and (self._lines or not self._in_string):
            self._write_text("\n" * self._lines)
        if self._in_string:
            self._in_string = False
            self._calls.write_arguments('"')

    def close(self) -> None:
        self._calls.write_arguments("}" if self.has_arguments else "{}")
        self._calls.close_call()
