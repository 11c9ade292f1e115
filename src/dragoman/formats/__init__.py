"""All known output formats, one data file each.

A file defines `TOOLS`, `REASONING`, or both; adding the file registers the format. Names are unique
per kind, and a name that other servers use for the same format is an alias. A format whose markers
have a suffix that the checkpoint chooses is also found with that suffix: `hy_v4:6124c78e`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module

from dragoman.options import suggest
from dragoman.output.marker_suffix import FORMAT, fill_suffix, find_suffix, is_suffix
from dragoman.output.spec import NO_REASONING, ReasoningFormat, ToolFormat

UNPARSED = frozenset({"none", "passthrough", "plain"})  # names that mean: leave the text as it is
DETECTED = frozenset({"auto", "hf", "response_template"})  # names that mean: detect the format


@cache
def get_tool_formats() -> dict[str, ToolFormat]:
    """Return the tool formats by name, sorted by name."""
    return {name: _fill_known_suffixes(entry) for name, entry in _read_tool_formats().items()}


@cache
def get_reasoning_formats() -> dict[str, ReasoningFormat]:
    """Return the reasoning formats by name, sorted by name."""
    return {name: _fill_known_suffixes(entry) for name, entry in _read_reasoning_formats().items()}


def find_tools(name: str) -> ToolFormat:
    """Return the tool format of that name or alias, or raise a `ValueError`."""
    known = _index_tool_formats()
    if name not in known:
        with_suffix = _find_tools_with_suffix(name)
        if with_suffix is not None:
            return with_suffix
        raise _make_error("tool", name, get_tool_formats(), [*known, *UNPARSED, *DETECTED])
    return known[name]


def find_reasoning(name: str) -> ReasoningFormat:
    """Return the reasoning format of that name or alias, or raise a `ValueError`."""
    known = _index_reasoning_formats()
    if name not in known:
        with_suffix = _find_reasoning_with_suffix(name)
        if with_suffix is not None:
            return with_suffix
        raise _make_error("reasoning", name, get_reasoning_formats(), [*known, *DETECTED])
    return known[name]


def is_registered(entry: ToolFormat | ReasoningFormat) -> bool:
    """Whether a format is found by its name; a checkpoint may define one of the same name."""
    try:
        find = find_tools if isinstance(entry, ToolFormat) else find_reasoning
        return find(entry.name) is entry
    except ValueError:
        return False


def list_tools_in(text: str) -> list[ToolFormat]:
    """Return all tool formats, those of markers with a suffix as the text has it."""
    return _apply_suffixes(get_tool_formats(), _read_tool_formats(), find_tools, text)


def list_reasoning_in(text: str) -> list[ReasoningFormat]:
    """Return all reasoning formats, those of markers with a suffix as the text has it."""
    return _apply_suffixes(get_reasoning_formats(), _read_reasoning_formats(), find_reasoning, text)


def _apply_suffixes(
    known: dict[str, FORMAT], described: dict[str, FORMAT], find: Callable[[str], FORMAT], text: str
) -> list[FORMAT]:
    entries = []
    for name, entry in known.items():
        suffix = find_suffix(described[name], text) if entry.suffixes else None
        is_new = suffix is not None and suffix not in entry.suffixes
        entries.append(find(f"{name}{suffix}") if is_new else entry)
    return entries


def _make_error(kind: str, name: str, names: Iterable[str], known: Iterable[str]) -> ValueError:
    """List the names of formats; names of other servers are only suggested."""
    if name in DETECTED:
        return ValueError(f"the {kind} parser {name!r} needs the model's chat template")
    choices = ", ".join(names)
    return ValueError(
        f"unknown {kind} parser {name!r}; choose one of: {choices}.{suggest(name, known)}"
    )


@cache
def _read_tool_formats() -> dict[str, ToolFormat]:
    """Return the tool formats as their files describe them."""
    return {entry.name: entry for entry in _collect("TOOLS") if isinstance(entry, ToolFormat)}


@cache
def _read_reasoning_formats() -> dict[str, ReasoningFormat]:
    entries = _collect("REASONING")
    return {entry.name: entry for entry in entries if isinstance(entry, ReasoningFormat)}


def _fill_known_suffixes(entry: FORMAT) -> FORMAT:
    return fill_suffix(entry, entry.suffixes) if entry.suffixes else entry


@lru_cache(maxsize=64)
def _find_tools_with_suffix(name: str) -> ToolFormat | None:
    return _find_with_suffix(name, _read_tool_formats())


@lru_cache(maxsize=64)
def _find_reasoning_with_suffix(name: str) -> ReasoningFormat | None:
    return _find_with_suffix(name, _read_reasoning_formats())


def _find_with_suffix(name: str, described: dict[str, FORMAT]) -> FORMAT | None:
    """Return a format by its name and a suffix; None if it has no suffixes."""
    base, colon, rest = name.partition(":")
    suffix, entry = colon + rest, described.get(base)
    if entry is None or not entry.suffixes or not is_suffix(suffix):
        return None
    return replace(fill_suffix(entry, (suffix,)), name=name)


def _collect(kind: str) -> list[object]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return [getattr(module, kind) for module in modules if hasattr(module, kind)]


@cache
def _index_tool_formats() -> dict[str, ToolFormat]:
    known = dict(get_tool_formats())
    for entry in get_tool_formats().values():
        for alias in entry.aliases:
            known.setdefault(alias, entry)
    return known


@cache
def _index_reasoning_formats() -> dict[str, ReasoningFormat]:
    known = {**dict.fromkeys(UNPARSED, NO_REASONING), **get_reasoning_formats()}
    for entry in (NO_REASONING, *get_reasoning_formats().values()):
        for alias, inside in entry.aliases.items():
            known.setdefault(alias, replace(entry, starts_inside=inside))
    return known
