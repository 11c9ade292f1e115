"""The filters, tests and functions that a chat template may use, all of them bounded.

This is the whole list: nothing else exists for a template. It contains what real chat templates use
and omits what only web pages need. Every filter takes the rendering's context first, which also
keeps the compiler from running the filter at compile time.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

from jinja2 import filters as stock
from jinja2 import pass_context
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.tests import TESTS as STOCK_TESTS
from jinja2.utils import Namespace
from markupsafe import Markup, escape

from dragoman.prompt.template.budget import ITEM_BYTES, OverBudget, RenderBudget, Value

FilterFunction: TypeAlias = Callable[..., Value]

MAX_RANGE = 100_000
MAX_DATE_FORMAT = 200


class RenderContext(Context):
    """The context of one rendering, with its budget."""

    budget: RenderBudget


# Text


def _make_text_filter(change: Callable[[str], str]) -> FilterFunction:
    @pass_context
    def apply(context: RenderContext, value: Value) -> str:
        text = context.budget.to_text(value)
        context.budget.spend(3 * len(text))
        return change(text)

    return apply


@pass_context
def trim(context: RenderContext, value: Value, chars: str | None = None) -> str:
    text = value if type(value) is str else context.budget.to_text(value)
    trimmed = text.strip(chars)
    if trimmed is not text:
        context.budget.spend(len(text) if text.isascii() else 4 * len(text))
    return trimmed


@pass_context
def string(context: RenderContext, value: Value) -> str:
    return value if isinstance(value, Markup) else context.budget.to_text(value)


@pass_context
def safe(context: RenderContext, value: Value) -> Markup:
    return Markup(context.budget.to_text(value))  # noqa: S704  (the prompt is not a web page)


@pass_context
def escape_text(context: RenderContext, value: Value) -> Markup:
    text = context.budget.to_text(value)
    context.budget.check_length(5 * len(text))
    context.budget.spend(5 * len(text))
    return escape(text)


@pass_context
def replace(
    context: RenderContext, value: Value, old: Value, new: Value, count: int | None = None
) -> str:
    text = context.budget.to_text
    times = -1 if count is None else count
    return context.budget.replace(text(value), text(old), text(new), times)


@pass_context
def join(
    context: RenderContext, value: Value, d: Value = "", attribute: str | int | None = None
) -> str:
    budget = context.budget
    items = budget.to_list(value)
    if attribute is not None:
        items = list(map(stock.make_attrgetter(context.environment, attribute), items))
    return budget.join(budget.to_text(d), items)


@pass_context
def format_text(context: RenderContext, value: Value, *args: Value, **kwargs: Value) -> str:
    return context.budget.format_percent(context.budget.to_text(value), kwargs or args)


@pass_context
def indent(
    context: RenderContext, s: Value, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    text = context.budget.to_text(s)
    wide = len(width) if isinstance(width, str) else max(width, 0)
    length = len(text) + (1 + len(text.splitlines())) * wide
    context.budget.check_length(length)
    context.budget.spend(4 * length)
    return stock.do_indent(text, width, first, blank)


# JSON


@pass_context
def tojson(
    context: RenderContext,
    value: Value,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as models saw it in training: nothing is escaped for HTML."""
    budget = context.budget
    length = budget.measure(value)
    extra = sum(map(len, separators)) if separators else 0
    extra += len(indent) if isinstance(indent, str) else abs(indent or 0)
    if extra > 64:
        raise OverBudget("it asks for padding that is too wide")
    budget.check_length(length * (1 + extra // 4))
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.spend(len(text))
    return text


@pass_context
def fromjson(context: RenderContext, value: Value) -> Value:
    text = context.budget.to_text(value)
    context.budget.spend(ITEM_BYTES * len(text))
    return json.loads(text)


# Lists


def _make_eager_filter(original: FilterFunction, environment: bool = False) -> FilterFunction:
    """Make a filter that reads a whole list."""

    @pass_context
    def apply(context: RenderContext, value: Value, *args: Value, **kwargs: Value) -> Value:
        budget = context.budget
        items = value if isinstance(value, dict) else budget.to_list(value)
        budget.charge_scan(items)
        budget.spend(ITEM_BYTES * len(items))
        if environment:
            return original(context.environment, items, *args, **kwargs)
        return original(items, *args, **kwargs)

    return apply


def _make_lazy_filter(original: FilterFunction) -> FilterFunction:
    """Make a filter that takes one item of a list at a time."""

    @pass_context
    def apply(
        context: RenderContext, value: Value, *args: Value, **kwargs: Value
    ) -> Iterator[Value]:
        if not value:
            return iter(())
        filtered: Iterator[Value] = original(
            context, context.budget.iterate(value), *args, **kwargs
        )
        return filtered

    return apply


@pass_context
def sum_items(
    context: RenderContext, value: Value, attribute: str | int | None = None, start: Value = 0
) -> Value:
    budget = context.budget
    items = budget.to_list(value)
    if attribute is not None:
        items = map(stock.make_attrgetter(context.environment, attribute), items)
    for item in items:
        start = budget.add(start, item)
    return start


@pass_context
def reverse(context: RenderContext, value: Value) -> Value:
    if isinstance(value, str):
        return context.budget.take_slice(value, slice(None, None, -1))
    return context.budget.to_list(value)[::-1]


@pass_context
def items(context: RenderContext, value: Value) -> Iterator[tuple[Value, Value]]:
    return stock.do_items(value)


@pass_context
def to_list(context: RenderContext, value: Value) -> list[Value]:
    values = context.budget.to_list(value)
    context.budget.spend(8 * len(values))
    return list(values)


# Numbers and the rest


@pass_context
def round_number(
    context: RenderContext, value: float, precision: int = 0, method: str = "common"
) -> float:
    if abs(precision) > 30:
        raise TemplateRuntimeError("cannot round to so many digits")
    return stock.do_round(value, precision, method)  # type: ignore[arg-type]


def _make_simple_filter(original: FilterFunction) -> FilterFunction:
    @pass_context
    def apply(context: RenderContext, value: Value, *args: Value, **kwargs: Value) -> Value:
        context.budget.tick()
        return original(value, *args, **kwargs)

    return apply


@pass_context
def last(context: RenderContext, value: Value) -> Value:
    items = value if isinstance(value, (str, list, tuple)) else context.budget.to_list(value)
    return items[-1] if items else context.environment.undefined("No last item, it was empty.")


@pass_context
def first(context: RenderContext, value: Value) -> Value:
    context.budget.tick()
    for item in value:
        return item
    return context.environment.undefined("No first item, sequence was empty.")


FILTERS: dict[str, FilterFunction] = {
    "abs": _make_simple_filter(abs),
    "capitalize": _make_text_filter(str.capitalize),
    "count": _make_simple_filter(len),
    "d": _make_simple_filter(stock.do_default),
    "default": _make_simple_filter(stock.do_default),
    "dictsort": _make_eager_filter(stock.do_dictsort),
    "e": escape_text,
    "escape": escape_text,
    "first": first,
    "float": _make_simple_filter(stock.do_float),
    "format": format_text,
    "from_json": fromjson,
    "fromjson": fromjson,
    "groupby": _make_eager_filter(stock.sync_do_groupby, environment=True),
    "indent": indent,
    "int": _make_simple_filter(stock.do_int),
    "items": items,
    "join": join,
    "last": last,
    "length": _make_simple_filter(len),
    "list": to_list,
    "lower": _make_text_filter(str.lower),
    "map": _make_lazy_filter(stock.sync_do_map),
    "max": _make_eager_filter(stock.do_max, environment=True),
    "min": _make_eager_filter(stock.do_min, environment=True),
    "reject": _make_lazy_filter(stock.sync_do_reject),
    "rejectattr": _make_lazy_filter(stock.sync_do_rejectattr),
    "replace": replace,
    "reverse": reverse,
    "round": round_number,
    "safe": safe,
    "select": _make_lazy_filter(stock.sync_do_select),
    "selectattr": _make_lazy_filter(stock.sync_do_selectattr),
    "sort": _make_eager_filter(stock.do_sort, environment=True),
    "string": string,
    "sum": sum_items,
    "title": _make_text_filter(stock.do_title),
    "tojson": tojson,
    "trim": trim,
    "unique": _make_eager_filter(stock.do_unique, environment=True),
    "upper": _make_text_filter(str.upper),
}


# Tests: those of jinja2; the ones that compare or compute are bounded


def _make_comparing_test(original: FilterFunction) -> FilterFunction:
    @pass_context
    def apply(context: RenderContext, value: Value, other: Value) -> Value:
        return original(context.budget.charge_scan(value), context.budget.charge_scan(other))

    return apply


def _make_number_test(original: FilterFunction) -> FilterFunction:
    @pass_context
    def apply(context: RenderContext, value: Value, *args: Value) -> Value:
        if not isinstance(value, (int, float)):
            raise TemplateRuntimeError("only a number can be odd, even or divisible")
        return original(value, *args)

    return apply


def _make_case_test(original: Callable[[str], bool]) -> FilterFunction:
    @pass_context
    def apply(context: RenderContext, value: Value) -> bool:
        return original(context.budget.to_text(value))

    return apply


_STOCK: dict[str, FilterFunction] = dict(STOCK_TESTS)  # type: ignore[arg-type]
_COMPARING = "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in"
TESTS: dict[str, FilterFunction] = {
    **_STOCK,
    **{name: _make_comparing_test(_STOCK[name]) for name in _COMPARING.split()},
    **{name: _make_number_test(_STOCK[name]) for name in ("odd", "even", "divisibleby")},
    "lower": _make_case_test(str.islower),
    "upper": _make_case_test(str.isupper),
}


# Functions


class RejectedByTemplate(TemplateError):
    """The template itself rejects the conversation, with `raise_exception`."""


def raise_exception(message: object = "") -> NoReturn:
    raise RejectedByTemplate(str(message)[:1000] if isinstance(message, str) else "")


def strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_DATE_FORMAT or re.search(r"\d{3}", pattern):
        raise OverBudget("it asks for a date that is too long")
    return datetime.datetime.now().strftime(pattern)


def bounded_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise OverBudget("it asks for a range that is too long")
    return numbers


def plain_dict(*args: Value, **kwargs: Value) -> dict[Value, Value]:
    return dict(*args, **kwargs)


GLOBALS: dict[str, FilterFunction] = {
    "dict": plain_dict,
    "namespace": Namespace,
    "raise_exception": raise_exception,
    "range": bounded_range,
    "strftime_now": strftime_now,
}
