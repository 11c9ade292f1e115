"""The budget of one rendering, and the operations that are charged to it.

A chat template is untrusted code. The sandbox keeps it from accessing anything; the budget keeps it
from running forever or using all memory. Compiled templates call a `RenderBudget` for every loop
iteration, and for every operation that can make a large value out of small ones (`*`, `+`, `join`).

There are three limits. `fuel` limits time: each time it is used up, the clock is read. `memory` is
all text and lists that the template creates, in bytes, whether still in use or not. `max_text` is
the size of one single text. Sizes are computed before the work is done, so nothing is created only
to be thrown away. Time is the processor time of the rendering thread, so that a busy machine
rejects no harmless conversation.

The sizes of values that came with the request are known, and the template cannot change those
values. All other containers are measured before they are written, compared or hashed, since a list
that contains the same list twice, forty levels deep, is small in memory but exponential to read.
"""

from __future__ import annotations

import functools
import operator
import re
import time
import types
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from typing import Any, TypeAlias, cast

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from markupsafe import Markup
from msgspec import Struct

KnownSizes: TypeAlias = Mapping[int, int]  # of containers, by their `id`
Value: TypeAlias = Any  # a value that a template computes with; only the sandbox knows its type

FUEL = 2_000  # steps between two readings of the clock
MAX_PADDING = 1_000  # widest padding in a format
MAX_BITS = 4_096  # of an integer
ITEM_BYTES = 64  # charged for an item of a list

SCALARS = frozenset({int, float, bool, type(None)})
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
NUMBER = re.compile(r"\d+")


class OverBudget(Exception):
    """The template exceeds its limits."""


class RenderLimits(Struct, frozen=True, kw_only=True):
    """Limits of one rendering. Sizes grow with the size of the request."""

    seconds: float = 0.7
    steps: int = 4_000_000
    min_text: int = 1 << 20  # characters that every prompt may have
    growth: int = 16  # characters more for each character of the request
    max_text: int = 64 << 20
    memory: int = 96 << 20  # bytes that the template may create
    memory_growth: int = 256  # bytes more for each character of the request


DEFAULT_LIMITS = RenderLimits()


def measure_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


class RenderBudget:
    """The remaining budget, and the operations that are charged to it."""

    __slots__ = ("_deadline", "_steps", "fuel", "known_sizes", "max_text", "memory")

    def __init__(
        self,
        limits: RenderLimits = DEFAULT_LIMITS,
        size: int = 0,
        known_sizes: KnownSizes | None = None,
    ) -> None:
        self.known_sizes: KnownSizes = known_sizes or {}
        self.max_text = min(limits.min_text + limits.growth * size, limits.max_text)
        self.memory = limits.memory + limits.memory_growth * size
        self.fuel = FUEL
        self._steps = limits.steps
        self._deadline = time.thread_time() + limits.seconds

    def tick(self, steps: int = 1) -> bool:
        """Charge for steps. Always true, so that it can be part of a condition."""
        self.fuel -= steps
        if self.fuel < 0:
            self._refill()
        return True

    def spend(self, size: int) -> None:
        """Charge for text or lists of this size in bytes."""
        self.memory -= size
        self.fuel -= 1 + (size >> 8)
        if self.fuel < 0 or self.memory < 0:
            self._refill()

    def _refill(self) -> None:
        """Check the limits and fill up the fuel."""
        if self.memory < 0:
            raise OverBudget("it needs too much memory")
        self._steps -= FUEL - self.fuel
        if self._steps < 0:
            raise OverBudget("it takes too many steps")
        if time.thread_time() > self._deadline:
            raise OverBudget("it takes too long")
        self.fuel = FUEL

    def check_length(self, length: int) -> None:
        """Reject a text that would be too long."""
        if length > self.max_text:
            raise OverBudget("it makes a text that is too long")

    # Writing

    def write(self, value: object) -> str:
        """Return a value as it is written into the prompt."""
        text = value if type(value) is str else self.to_text(value)
        self.memory -= len(text) if text.isascii() else 4 * len(text)
        self.fuel -= 1
        if self.fuel < 0 or self.memory < 0:
            self._refill()
        return text

    def to_text(self, value: object) -> str:
        """Return a value as text, if that has a bounded length."""
        if isinstance(value, (str, Undefined)) or type(value) in SCALARS:
            return str(value)
        self.measure(value)
        text = str(value)
        self.spend(measure_bytes(text))
        return text

    def measure(self, value: object) -> int:
        """Estimate how long a value is as text, in bounded time."""
        total, seen = 0, 0
        stack: list[object] = [value]
        known_sizes, max_text = self.known_sizes, self.max_text
        while stack:
            item = stack.pop()
            seen += 1
            if isinstance(item, str):
                total += len(item) + 4
            elif type(item) in SCALARS or isinstance(item, (Undefined, range)):
                total += 16
            elif (size := known_sizes.get(id(item))) is not None:
                total += size
            else:
                children = _get_children(item)
                total += 2 * len(children)
                stack.extend(children)
            if total > max_text:
                raise OverBudget("it makes a list that is too large")
            if not seen % 1024:
                self.tick(1024)
        self.tick(seen % 1024)
        return total

    def concat(self, parts: Iterable[object]) -> str:
        """Implement `~`."""
        texts = [part if type(part) is str else self.to_text(part) for part in parts]
        return cast("str", self.add_all(tuple(texts)))

    def join(self, separator: str, values: Value) -> str:
        values = self.to_list(values)
        if not all(type(value) is str for value in values):
            values = [self.to_text(value) for value in values]
        length = sum(map(len, values)) + len(separator) * len(values)
        self.check_length(length)
        self.spend(length)
        return separator.join(values)

    def replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        matches = text.count(old)
        length = len(text) + (matches if count < 0 else min(matches, count)) * len(new)
        self.check_length(length)
        self.spend(length)
        return text.replace(old, new, count)

    def format_percent(self, text: str, values: object) -> str:
        """Implement `%` for a text, without wide padding and without widths from the values."""
        fields = 0
        for widths in PERCENT.findall(text):
            fields += 1
            if "*" in widths or any(width and int(width[:9]) > MAX_PADDING for width in widths):
                raise OverBudget("it asks for padding that is too wide")
        length = len(text) + fields * (MAX_PADDING + 2 * self.measure(values))
        self.check_length(length)
        self.spend(length)
        return str(text % values)

    # Lists, comparisons, slices

    def charge_new(self, value: Value) -> Value:
        """Charge for a list, tuple or dict literal of the template, and return it."""
        self.spend(ITEM_BYTES + ITEM_BYTES * len(value))
        return value

    def charge_scan(self, value: Value) -> Value:
        """Charge for comparing, searching or hashing a value, and return it."""
        kind = type(value)
        if kind is str:
            self.tick(1 + (len(value) >> 10))
        elif kind is range:
            self.tick(1 + (len(value) >> 2))
        elif kind not in SCALARS and isinstance(value, Collection):
            self.tick(1 + (self.measure(value) >> 4))
        return value

    def to_list(self, values: Value) -> Value:
        """Return values as a list or tuple of bounded length."""
        if type(values) is list or type(values) is tuple:
            self.tick(1 + (len(values) >> 2))
            return values
        if isinstance(values, str):
            self.spend((8 if values.isascii() else 80) * len(values))
        return list(self.iterate(values))

    def iterate(self, values: Iterable[Value]) -> Iterator[Value]:
        """Yield each value and charge for it."""
        for value in values:
            self.spend(ITEM_BYTES // 2)
            yield value

    def take_slice(self, value: Value, bounds: slice) -> Value:
        """Implement `value[start:stop:step]`."""
        if isinstance(value, str):
            length = len(range(*bounds.indices(len(value))))
            self.spend(length if value.isascii() else 4 * length)
        elif isinstance(value, (list, tuple)):
            self.spend(ITEM_BYTES + 8 * len(range(*bounds.indices(len(value)))))
        return value[bounds]

    # Arithmetic

    def add(self, left: Value, right: Value) -> Value:
        if isinstance(left, str) and isinstance(right, str):
            length = len(left) + len(right)
            self.check_length(length)
            self.spend(length if left.isascii() and right.isascii() else 4 * length)
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            self.spend(ITEM_BYTES + 8 * (len(left) + len(right)))
        return left + right

    def add_all(self, parts: tuple[Value, ...]) -> Value:
        """Implement a chain of `+`, whose parts are usually texts."""
        length = 0
        for part in parts:
            if type(part) is not str:
                return functools.reduce(self.add, parts)
            length += len(part)
        if length > self.max_text:
            self.check_length(length)
        text = "".join(parts)
        self.spend(length if text.isascii() else 4 * length)
        return text

    def multiply(self, left: Value, right: Value) -> Value:
        for value, times in ((left, right), (right, left)):
            if not isinstance(times, int):
                continue
            if isinstance(value, str):
                self.check_length(len(value) * times)
                self.spend(max(measure_bytes(value) * times, 0))
            elif isinstance(value, (list, tuple)):
                self.spend(max(8 * len(value) * times, 0))
            elif isinstance(value, int):
                self._check_bits(value.bit_length() + times.bit_length())
        return left * right

    def power(self, left: Value, right: Value) -> Value:
        if isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() * abs(right))
        return left**right

    def modulo(self, left: Value, right: Value) -> Value:
        if isinstance(left, str):
            return self.format_percent(left, right)
        return left % right

    def _check_bits(self, bits: int) -> None:
        if bits > MAX_BITS:
            raise OverBudget("it makes a number that is too large")
        self.tick(1)

    def apply_operator(self, name: str, left: Value, right: Value) -> Value:
        return OPERATORS[name](self, left, right)

    # Methods of texts, lists and dicts

    def call_method(
        self, method: types.BuiltinMethodType, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        """Charge for the result of a value's method, and call it."""
        owner: Value = method.__self__
        name = method.__name__
        if isinstance(owner, str):
            return self._call_text_method(owner, name, args, kwargs)
        if name not in METHODS.get(type(owner), ()):
            raise SecurityError(f"the method {name} cannot be used in a template")
        if name in MUTATING:
            if id(owner) in self.known_sizes:
                raise SecurityError("a template cannot change the values of the request")
            if name == "extend":
                args = tuple(map(self.to_list, args))
            items = sum(len(arg) for arg in args if hasattr(arg, "__len__"))
            self.spend(ITEM_BYTES * (1 + items))
        elif name == "copy":
            self.spend(ITEM_BYTES * (1 + len(owner)))
        elif name in COMPARING:
            self.charge_scan(owner)
        for arg in args:
            self.charge_scan(arg)
        return method(*args, **kwargs)

    def _call_text_method(
        self, text: str, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        if name not in METHODS[str]:
            raise SecurityError(f"the method {name} cannot be used in a template")
        match name, args:
            case "join", (values,):
                return self.join(text, values)
            case "replace", (str(), str(), *_):
                return self.replace(str(text), *args, **kwargs)
            case (("center" | "ljust" | "rjust" | "zfill"), (int(width), *_)):
                self.check_length(width)
                self.spend(max(4 * width, 0))
            case "expandtabs", _:
                size = args[0] if args else kwargs.get("tabsize", 8)
                self.check_length(len(text) + text.count("\t") * size)
                self.spend(len(text) + text.count("\t") * size)
            case (("split" | "rsplit" | "splitlines"), _):
                by: Value = args[0] if name != "splitlines" and args else kwargs.get("sep")
                splits = text.count(by) if isinstance(by, str) and by else len(text) // 2
                self.spend(measure_bytes(text) + ITEM_BYTES * (1 + splits))
            case _ if name in SEARCHING:
                self.tick(1 + (len(text) >> 8))
            case _:
                self.spend(measure_bytes(text))
        return getattr(text, name)(*args, **kwargs)


def _get_children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, KeysView, ValuesView, ItemsView)):
        return value
    raise TemplateRuntimeError("a value of this kind cannot be written or compared")


Operator: TypeAlias = Callable[[RenderBudget, Value, Value], Value]


def _charge_both(function: Callable[[Value, Value], Value]) -> Operator:
    def apply(budget: RenderBudget, left: Value, right: Value) -> Value:
        return function(budget.charge_scan(left), budget.charge_scan(right))

    return apply


OPERATORS: dict[str, Operator] = {
    "+": RenderBudget.add,
    "*": RenderBudget.multiply,
    "**": RenderBudget.power,
    "%": RenderBudget.modulo,
    "-": _charge_both(operator.sub),
    "/": _charge_both(operator.truediv),
    "//": _charge_both(operator.floordiv),
}

_TEXT = (
    "capitalize casefold center count endswith expandtabs find format index isalnum isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper "
    "join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill"
)
SEARCHING = frozenset({"count", "endswith", "find", "index", "rfind", "rindex", "startswith"})
MUTATING = frozenset({"append", "extend", "insert", "pop", "update", "setdefault"})
COMPARING = frozenset({"index", "count"})
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT.split()),
    Markup: frozenset(_TEXT.split()),
    list: frozenset({"append", "copy", "count", "extend", "index", "insert", "pop"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "pop", "setdefault", "update", "values"}),
}
