"""All known output formats, one data file each.

A file defines `TOOLS`, `REASONING`, or both; adding the file registers the format. Names are unique
per kind, and a name that other servers use for the same format is an alias.
"""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from functools import cache
from importlib import import_module

from dragoman.output.spec import NO_REASONING, ReasoningFormat, ToolFormat

UNPARSED = frozenset({"none", "passthrough"})  # names that mean: leave the text as it is


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """Return the tool formats by name, sorted by name."""
    return {entry.name: entry for entry in _collect("TOOLS") if isinstance(entry, ToolFormat)}


@cache
def reasoning_formats() -> dict[str, ReasoningFormat]:
    """Return the reasoning formats by name, sorted by name."""
    entries = _collect("REASONING")
    return {entry.name: entry for entry in entries if isinstance(entry, ReasoningFormat)}


def find_tools(name: str) -> ToolFormat:
    """Return the tool format of that name or alias, or raise a `ValueError`."""
    match = _tools_by_any_name().get(name)
    if match is None:
        raise ValueError(
            f"unknown tool parser {name!r}; choose one of: {', '.join(tool_formats())}"
        )
    return match


def find_reasoning(name: str) -> ReasoningFormat:
    """Return the reasoning format of that name or alias, or raise a `ValueError`."""
    match = _reasoning_by_any_name().get(name)
    if match is None:
        choices = ", ".join(reasoning_formats())
        raise ValueError(f"unknown reasoning parser {name!r}; choose one of: {choices}")
    return match


def _collect(kind: str) -> list[object]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return [getattr(module, kind) for module in modules if hasattr(module, kind)]


@cache
def _tools_by_any_name() -> dict[str, ToolFormat]:
    known = dict(tool_formats())
    for entry in tool_formats().values():
        for alias in entry.aliases:
            known.setdefault(alias, entry)
    return known


@cache
def _reasoning_by_any_name() -> dict[str, ReasoningFormat]:
    known = {**dict.fromkeys(UNPARSED, NO_REASONING), **reasoning_formats()}
    for entry in reasoning_formats().values():
        for alias, inside in entry.aliases.items():
            known.setdefault(alias, replace(entry, starts_inside=inside))
    return known
