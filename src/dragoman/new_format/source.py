"""Writes a format as the source of a file in `formats/`, formatted like the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from dragoman.output.spec import ReasoningFormat, ToolFormat

MAX_COLUMNS = 100
LAST_FIELDS = {"bodies", "default_reasoning", "evidence", "sources"}  # as in other files
PATTERN_FIELDS = {"name_pattern", "key_pattern"}


def write_source(summary: str, tools: ToolFormat, reasoning: ReasoningFormat | None = None) -> str:
    """Return the source of a file that defines `TOOLS`, and `REASONING` if there is one."""
    values: dict[str, Any] = {"TOOLS": tools}
    if reasoning is not None:
        values["REASONING"] = reasoning
    names = sorted({name for value in values.values() for name in _list_classes(value)})
    imports = f"from dragoman.output.spec import {', '.join(names)}"
    if len(imports) > MAX_COLUMNS:
        imports = "from dragoman.output.spec import (\n" + "".join(
            f"    {name},\n" for name in names
        )
        imports += ")"
    lines = [f"{name} = {_render(value, len(name) + 3)}" for name, value in values.items()]
    return f'"""{summary}"""\n\n{imports}\n\n' + "\n".join(lines) + "\n"


def _list_classes(value: object) -> set[str]:
    if is_dataclass(value):
        used = {type(value).__name__}
        for _, item in _list_fields(value):
            used |= _list_classes(item)
        return used
    if isinstance(value, tuple):
        return {name for item in value for name in _list_classes(item)}
    return set()


def _list_fields(value: Any) -> list[tuple[str, object]]:
    """Return the fields of a format that differ from their defaults."""
    found: list[tuple[str, object]] = []
    for field in fields(value):
        item = getattr(value, field.name)
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        if item != default:
            found.append((field.name, item))
    return sorted(found, key=lambda pair: pair[0] in LAST_FIELDS)


def _render(value: object, column: int, indent: int = 0, name: str = "") -> str:
    """Return a value as source: in one line if it fits, else one part per line."""
    inline = _render_inline(value, name)
    if column + len(inline) + 1 <= MAX_COLUMNS:
        return inline
    inner = " " * (indent + 4)
    if isinstance(value, str):
        return (
            "(\n"
            + "".join(f"{inner}{part}\n" for part in _split_string(value, indent))
            + inner[4:]
            + ")"
        )
    if isinstance(value, tuple):
        items = [_render(item, indent + 4, indent + 4) for item in value]
        return "(\n" + "".join(f"{inner}{item},\n" for item in items) + inner[4:] + ")"
    arguments = [
        f"{key}={_render(item, indent + 5 + len(key), indent + 4, key)}"
        for key, item in _list_fields(value)
    ]
    body = "".join(f"{inner}{argument},\n" for argument in arguments)
    return f"{type(value).__name__}(\n{body}{inner[4:]})"


def _render_inline(value: object, name: str = "") -> str:
    if isinstance(value, str):
        return f"r{_quote(value, raw=True)}" if name in PATTERN_FIELDS else _quote(value)
    if isinstance(value, tuple):
        items = ", ".join(_render_inline(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Mapping) or not is_dataclass(value):
        return repr(value)
    items = ", ".join(f"{key}={_render_inline(item, key)}" for key, item in _list_fields(value))
    return f"{type(value).__name__}({items})"


def _quote(text: str, *, raw: bool = False) -> str:
    """Return a string literal, in double quotes where that needs no more escapes."""
    if raw:  # a pattern writes its quotes as \\" already
        return f'"{text}"'
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\0", "\\0")
    escaped = escaped.replace("\t", "\\t").replace("\r", "\\r")
    if '"' in escaped and "'" not in escaped:
        return f"'{escaped}'"
    return '"' + escaped.replace('"', '\\"') + '"'


def _split_string(text: str, indent: int) -> list[str]:
    """Split a long string into literals that each fit in a line, at the ends of its lines."""
    width = MAX_COLUMNS - indent - 12
    parts: list[str] = []
    for line in text.splitlines(keepends=True):
        parts += [line[start : start + width] for start in range(0, len(line), width)]
    joined: list[str] = []
    for part in parts:
        if joined and len(_quote(joined[-1] + part)) <= MAX_COLUMNS - indent - 4:
            joined[-1] += part
        else:
            joined.append(part)
    return [_quote(part) for part in joined]
