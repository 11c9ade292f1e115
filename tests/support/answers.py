"""Writes answers in any format, from the same description that the parser reads."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from dragoman.output.spec import (
    GAP,
    JsonObjects,
    NamedObject,
    NestedElements,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)


class WrittenCall(Struct, frozen=True):
    """A call and how a model writes it: `opening` and `closing` are its own markers."""

    name: str
    arguments: dict[str, Any]
    opening: str
    body: str
    closing: str

    @property
    def text(self) -> str:
        return self.opening + self.body + self.closing


class AnswerWriter:
    """Writes calls as the example of a format does."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        example = tool_format.example
        self.body = next(
            (body for body in tool_format.bodies if not isinstance(body, JsonObjects)),
            tool_format.bodies[0],
        )
        self._section_open = self._find(tool_format.section.open)
        self._section_close = self._find(tool_format.section.close)
        self._call_open = self._find(tool_format.call.open)
        self._call_close = self._find(tool_format.call.close)
        self._is_list = isinstance(self.body, JsonObjects) and "[{" in re.sub(r"\s", "", example)

    @property
    def has_sections(self) -> bool:
        """Whether several calls have a section around them, besides their own markers."""
        return bool(self._call_open and self._section_open) or self._is_list

    @property
    def separator(self) -> str:
        if self._format.header is not None and not self.has_sections:
            return self._format.header.separator
        return ", " if self._is_list else "\n"

    def open_section(self, name: str) -> str:
        return self._write_header(name) + self._section_open + ("[" if self._is_list else "")

    def close_section(self) -> str:
        return ("]" if self._is_list else "") + self._section_close

    def write_call(self, name: str, arguments: dict[str, Any], number: int = 0) -> WrittenCall:
        """Write a call with the markers that belong to it alone."""
        opening, closing = self._call_open, self._call_close
        if not self._call_open and not self._is_list:
            opening, closing = self._section_open, self._section_close or self._call_close
        header = self._write_header(name)
        if header and not self.has_sections:
            opening = header
        return WrittenCall(
            name, arguments, opening, self._write_body(name, arguments, number), closing
        )

    def _write_header(self, name: str) -> str:
        header = self._format.header
        spellings = dict(header.spellings) if header is not None else {}
        return spellings.get("call", "").replace("{name}", name)

    def _find(self, markers: tuple[str, ...]) -> str:
        """The marker as the example writes it, with the line break that follows it there."""
        example = self._format.example
        for marker in markers:
            text = marker.replace(GAP, "")
            if GAP in marker and text not in example:
                text = marker.replace(GAP, " ")
            start = example.find(text)
            if start >= 0:
                lead = "\n" if example[:start].endswith("\n") and text.startswith(("</",)) else ""
                end = start + len(text)
                after = "\n" if example[end : end + 1] == "\n" and not text.startswith("</") else ""
                return lead + text + after
        return markers[0].replace(GAP, " ") if markers else ""

    def _write_body(self, name: str, arguments: dict[str, Any], number: int) -> str:
        body = self.body
        match body:
            case JsonObjects():
                return self._write_object(body, name, arguments)
            case NamedObject():
                spelling = body.spellings[0].format(name=name, id="a1", number=number)
                end = body.name_ends[0] if body.name_ends else ""
                if self._format.header is not None:
                    spelling = end = ""
                values = self._write_named_arguments(body, arguments)
                fence = body.fence[-1] if body.fence else ""
                return f"{spelling}{end}{values}{fence and chr(10) + fence.strip()}"
            case TaggedArguments():
                return self._write_tags(body, name, arguments, number)
            case NestedElements():
                values = "".join(
                    f"{body.prefix}<{key}>{write_element(body, value)}{body.prefix}</{key}>"
                    for key, value in arguments.items()
                )
                return body.spellings[0].format(name=name) + body.name_ends[0] + values
            case PythonCalls():
                values = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
                call = f"{name}({values})"
                return f"[{call}]" if "[" in self._format.example else call

    def _write_object(self, body: JsonObjects, name: str, arguments: dict[str, Any]) -> str:
        if body.keyed:
            value: Any = {name: arguments}
        else:
            example = self._format.example.replace("'", '"')
            name_key = next(key for key in body.name if f'"{key}"' in example)
            arguments_key = next(key for key in body.arguments if f'"{key}"' in example)
            value = {name_key: name, arguments_key: arguments}
        return repr(value) if body.python else json.dumps(value, ensure_ascii=False)

    def _write_named_arguments(self, body: NamedObject, arguments: dict[str, Any]) -> str:
        if not body.string_markers:
            return json.dumps(arguments, ensure_ascii=False)
        return write_bare(arguments, body.string_markers[0])

    def _write_tags(
        self, body: TaggedArguments, name: str, arguments: dict[str, Any], number: int
    ) -> str:
        line = "\n" if "\n" in self._format.example.strip() else ""
        parts = []
        if self._call_open or self._section_open:  # else the header has the name
            spelling = body.spellings[0].format(name=name, number=number + 1, id="a1")
            parts = [spelling, body.name_ends[0]]
            if line and not body.name_ends[0].endswith("\n"):
                parts.append(line)
        for key, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            kind = {str: "string", bool: "boolean", int: "number", float: "number"}.get(
                type(value), "array" if isinstance(value, list) else "object"
            )
            is_text = "true" if isinstance(value, str) else "false"
            spelled = body.key_spelling.format(key=key, text=is_text, type=kind)
            trim = "\n" if body.trim == "newline" and ">\n1\n<" in self._format.example else ""
            between = (
                line if body.value.open and f"{body.key.close[0]}\n" in self._format.example else ""
            )
            parts.append(
                body.key.open[0].replace(GAP, "")
                + spelled
                + (body.key.close[0].replace(GAP, "") if body.key.close else "")
                + between
                + (body.value.open[0].replace(GAP, "") if body.value.open else "")
                + trim
                + text
                + trim
                + body.value.close[0].replace(GAP, "")
                + line
            )
        return "".join(parts)


def write_element(body: NestedElements, value: Any) -> str:
    if isinstance(value, dict):
        return "".join(
            f"{body.prefix}<{key}>{write_element(body, item)}{body.prefix}</{key}>"
            for key, item in value.items()
        )
    if isinstance(value, list):
        return "".join(
            f"{body.prefix}<{body.item}>{write_element(body, item)}{body.prefix}</{body.item}>"
            for item in value
        )
    return value if isinstance(value, str) else json.dumps(value)


def write_bare(value: Any, quote: str) -> str:
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{key}:{write_bare(item, quote)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(write_bare(item, quote) for item in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)
