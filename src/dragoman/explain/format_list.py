"""Lists all output formats, for `dragoman formats`."""

from __future__ import annotations

import json

from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.spec import ReasoningFormat, ToolFormat

EVIDENCE = {
    "tested": "tested with",
    "parsers": "read from parsers",
    "documented": "read from documentation",
    "assumed": "assumed, not confirmed",
}


def format_table() -> str:
    """Return all formats, with their aliases and an example."""
    lines = ["TOOL FORMATS"]
    for tools in get_tool_formats().values():
        lines += _format_entry(tools)
    lines += ["", "REASONING FORMATS"]
    for reasoning in get_reasoning_formats().values():
        lines += _format_entry(reasoning)
    return "\n".join(lines)


def describe_formats() -> dict[str, object]:
    """Return all formats as plain data."""
    return {
        "tools": [_describe_format(entry) for entry in get_tool_formats().values()],
        "reasoning": [_describe_format(entry) for entry in get_reasoning_formats().values()],
    }


def _describe_format(entry: ToolFormat | ReasoningFormat) -> dict[str, object]:
    return {
        "name": entry.name,
        "models": entry.models,
        "aliases": list(entry.aliases),
        "example": entry.example,
        "evidence": entry.evidence,
        "sources": entry.sources,
    }


def _format_entry(entry: ToolFormat | ReasoningFormat) -> list[str]:
    other_names = ", ".join(entry.aliases)
    also = f" (also {other_names})" if other_names else ""
    example = json.dumps(entry.example, ensure_ascii=False)
    lines = [f"{entry.name}{also}", f"    {entry.models}", f"    {example}"]
    if entry.sources:
        lines.append(f"    {EVIDENCE[entry.evidence]}: {entry.sources}")
    return lines
