"""Filters of templates that were converted from Go's language, see `prompt.go_template`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from jinja2 import Undefined, pass_context

from dragoman.prompt.template.budget import Value
from dragoman.prompt.template.filters import FilterFunction, RenderContext, bounded_range

# Go writes these characters of JSON for web pages
HTML_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
LARGEST_WHOLE = 1e21  # from which on Go writes floats with an exponent


def _make_charged_filter(work: Callable[[Value], Value]) -> FilterFunction:
    """Make a filter that charges for the size of its value, which it copies."""

    @pass_context
    def apply(context: RenderContext, value: Value) -> Value:
        budget = context.budget
        if type(value) is not str:
            budget.spend(2 * budget.measure(value))
        return work(None if isinstance(value, Undefined) else value)

    return apply


def to_text(value: Value) -> str:
    """Write a value as Go does; lists and objects of Ollama's types are JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return f"[{' '.join(map(to_text, value))}]"
    if isinstance(value, bool | dict | list):
        return to_json(value)
    return str(_shorten_floats(value))


def to_json(value: Value) -> str:
    text = json.dumps(_shorten_floats(value), ensure_ascii=False, separators=(",", ":"))
    return text.translate(HTML_ESCAPES)


def _shorten_floats(value: Value) -> Value:
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        return int(value)
    if isinstance(value, dict):
        return {key: _shorten_floats(item) for key, item in value.items()}
    return [*map(_shorten_floats, value)] if isinstance(value, list) else value


def list_items(value: Value) -> list[tuple[Value, Value]]:
    """Return what `range` goes through: the items of a list, or of an object by their keys."""
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, int):
        value = bounded_range(value)
    return [*enumerate(value or ())]


def join_system(messages: Value) -> str:
    return "\n\n".join(_get_content(item) for item in messages if item["role"] == "system")


def merge_messages(messages: Value) -> list[dict[str, Value]]:
    """Return the messages, with neighbours of one role as one; results of tools stay apart."""
    merged: list[dict[str, Value]] = []
    for role, group in groupby(messages, key=itemgetter("role")):
        parts = [*group]
        if role == "tool":
            merged += [part | {"content": _get_content(part)} for part in parts]
        else:
            merged.append(parts[0] | {"content": "\n\n".join(map(_get_content, parts))})
    return merged


def list_turns(messages: Value) -> list[dict[str, str]]:
    """Return the questions of a conversation with their answers; the last is to be answered."""
    return [*_iterate_turns(merge_messages(messages))]


def _iterate_turns(messages: list[dict[str, Value]]) -> Iterator[dict[str, str]]:
    empty = {"system": "", "prompt": "", "response": ""}
    turn = dict(empty)
    for message in messages:
        role, content = message["role"], message["content"]
        is_over = turn["response"] or (role == "system" and turn["prompt"])
        if is_over and role in ("system", "user"):
            yield turn
            turn = dict(empty)
        field = {"system": "system", "user": "prompt", "assistant": "response"}.get(role)
        if field is not None:
            turn[field] = content
    yield turn


def _get_content(message: Value) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


GO_FILTERS: dict[str, FilterFunction] = {
    "go_text": _make_charged_filter(to_text),
    "go_json": _make_charged_filter(to_json),
    "go_items": _make_charged_filter(list_items),
    "go_system": _make_charged_filter(join_system),
    "go_messages": _make_charged_filter(merge_messages),
    "go_turns": _make_charged_filter(list_turns),
}
