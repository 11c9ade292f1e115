"""All known output formats, one data file each.

A file defines `TOOLS`, `REASONING`, or both; adding the file registers the format. Names are unique
per kind, and a name that other servers use for the same format is an alias.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib import import_module

from dragoman.options import suggest
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
    known = _tools_by_any_name()
    if name not in known:
        raise _make_error("tool", name, tool_formats(), [*known, *UNPARSED])
    return known[name]


def find_reasoning(name: str) -> ReasoningFormat:
    """Return the reasoning format of that name or alias, or raise a `ValueError`."""
    known = _reasoning_by_any_name()
    if name not in known:
        raise _make_error("reasoning", name, reasoning_formats(), known)
    return known[name]


def _make_error(kind: str, name: str, names: Iterable[str], known: Iterable[str]) -> ValueError:
    """List the names of formats; names of other servers are only suggested."""
    choices = ", ".join(names)
    return ValueError(
        f"unknown {kind} parser {name!r}; choose one of: {choices}.{suggest(name, known)}"
    )


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
