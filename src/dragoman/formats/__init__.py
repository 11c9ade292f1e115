"""Every output format we know, one per file, as data.

A file here has `TOOLS`, `REASONING`, or both; being here is all it takes to be known. Names are
unique per kind, and a name that other servers use for the same thing is an alias.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from dragoman.output.spec import NO_REASONING, ReasoningFormat, ToolFormat


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """Tool formats by name, in order of their names."""
    return {one.name: one for one in _collect("TOOLS") if isinstance(one, ToolFormat)}


@cache
def reasoning_formats() -> dict[str, ReasoningFormat]:
    """Reasoning formats by name, in order of their names."""
    return {one.name: one for one in _collect("REASONING") if isinstance(one, ReasoningFormat)}


def find_tools(name: str) -> ToolFormat:
    """The tool format of that name or alias; a `ValueError` lists the choices."""
    found = _tools_by_any_name().get(name)
    if found is None:
        raise ValueError(f"unknown tool parser {name!r}; there are: {', '.join(tool_formats())}")
    return found


def find_reasoning(name: str) -> ReasoningFormat:
    """The reasoning format of that name or alias; a `ValueError` lists the choices."""
    found = _reasoning_by_any_name().get(name)
    if found is None:
        choices = ", ".join(reasoning_formats())
        raise ValueError(f"unknown reasoning parser {name!r}; there are: {choices}")
    return found


def _collect(kind: str) -> list[object]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return [getattr(module, kind) for module in modules if hasattr(module, kind)]


@cache
def _tools_by_any_name() -> dict[str, ToolFormat]:
    known = dict(tool_formats())
    for one in tool_formats().values():
        for alias in one.aliases:
            known.setdefault(alias, one)
    return known


@cache
def _reasoning_by_any_name() -> dict[str, ReasoningFormat]:
    from dataclasses import replace

    known = {"none": NO_REASONING, **reasoning_formats()}
    for one in reasoning_formats().values():
        for alias, inside in one.aliases.items():
            known.setdefault(alias, replace(one, starts_inside=inside))
    return known
