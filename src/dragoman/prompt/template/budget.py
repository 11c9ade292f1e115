"""What one rendering may cost, and the operations that are paid for.

A chat template is a program by a stranger. The sandbox keeps it from touching anything; this keeps
it from taking for ever or eating the memory. Compiled templates call a `Budget` instead of doing
things themselves: a tick for each turn of a loop, and a bounded version of everything that can
make much out of little (`*`, `+`, `%`, slices, `replace`, `join`, writing a nested list, ...).

Three counters run down. *Fuel* stands for time: whenever a portion is used up the clock is read.
*Room* is all text and lists made on the way, in bytes, whether still alive or not. *Most* is the
size one single text may have. Sizes are known before the work is done, so nothing is made that
would have to be thrown away. Time is the processor time of the rendering thread, so that a busy
machine refuses no honest conversation.

Values that came with the request are `known`: trees of a known size that nobody may change. All
other containers are measured before they are written, compared or hashed, since a list that holds
itself twice, forty levels deep, is small in memory and endless to read.
"""

from __future__ import annotations

import functools
import operator
import re
import time
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

KnownSizes: TypeAlias = Mapping[int, int]

FUEL = 2_000  # steps between two looks at the clock
MAX_PADDING = 1_000  # widest padding that a format may ask for
MAX_BITS = 4_096  # largest whole number
ITEM_BYTES = 64  # bytes that an item of a list is counted as

SCALARS = frozenset({int, float, bool, type(None)})
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
NUMBER = re.compile(r"\d+")


class OverBudget(Exception):
    """The template wanted more than it may have."""


class RenderLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one rendering. Sizes grow with what the client sent."""

    seconds: float = 0.7
    steps: int = 4_000_000
    min_text: int = 1 << 20  # characters that every prompt may have
    growth: int = 16  # how much longer a prompt may be than what went in
    max_text: int = 64 << 20
    memory: int = 96 << 20  # bytes made on the way
    memory_growth: int = 256  # more of those for each character that went in


DEFAULT_LIMITS = RenderLimits()


def size_in_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


class RenderBudget:
    """What is left, and the bounded operations."""

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
        """Pay for steps; always true, so that it can stand in a condition."""
        self.fuel -= steps
        if self.fuel < 0:
            self._refill()
        return True

    def spend(self, size: int) -> None:
        """Pay for text or lists of so many bytes."""
        self.memory -= size
        self.fuel -= 1 + (size >> 8)
        if self.fuel < 0 or self.memory < 0:
            self._refill()

    def _refill(self) -> None:
        """Something ran out: look whether there is more."""
        if self.memory < 0:
            raise OverBudget("it needs too much memory")
        self._steps -= FUEL - self.fuel
        if self._steps < 0:
            raise OverBudget("it takes too many steps")
        if time.thread_time() > self._deadline:
            raise OverBudget("it takes too long")
        self.fuel = FUEL

    def check_length(self, length: int) -> None:
        """Is a text of this length allowed?"""
        if length > self.max_text:
            raise OverBudget("it makes a text that is too long")

    # Writing

    def write(self, value: Any) -> str:
        """A value as it is written into the prompt."""
        text = value if type(value) is str else self.to_text(value)
        self.memory -= len(text) if text.isascii() else 4 * len(text)
        self.fuel -= 1
        if self.fuel < 0 or self.memory < 0:
            self._refill()
        return text

    def to_text(self, value: Any) -> str:
        """A value as text, if it has one of bounded length."""
        if isinstance(value, str):
            return str(value)
        if type(value) in SCALARS or isinstance(value, Undefined):
            return str(value)
        self.measure(value)
        text = str(value)
        self.spend(size_in_bytes(text))
        return text

    def measure(self, value: Any) -> int:
        """About how long a value is when it is written down; bounded, whatever it holds."""
        total, seen = 0, 0
        stack: list[Any] = [value]
        known, most = self.known_sizes, self.max_text
        while stack:
            item = stack.pop()
            seen += 1
            if isinstance(item, str):
                total += len(item) + 4
            elif type(item) in SCALARS or isinstance(item, (Undefined, range)):
                total += 16
            elif (size := known.get(id(item))) is not None:
                total += size
            else:
                children = _children(item)
                total += 2 * len(children)
                stack.extend(children)
            if total > most:
                raise OverBudget("it makes a list that is too large")
            if not seen % 1024:
                self.tick(1024)
        self.tick(seen % 1024)
        return total

    def concat(self, parts: Iterable[Any]) -> str:
        """What `~` does."""
        texts = [part if type(part) is str else self.to_text(part) for part in parts]
        return cast("str", self.add_all(tuple(texts)))

    def join(self, between: str, values: Any) -> str:
        values = self.to_list(values)
        if not all(type(value) is str for value in values):
            values = [self.to_text(value) for value in values]
        length = sum(map(len, values)) + len(between) * len(values)
        self.check_length(length)
        self.spend(length)
        return between.join(values)

    def replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        found = text.count(old)
        length = len(text) + (found if count < 0 else min(found, count)) * len(new)
        self.check_length(length)
        self.spend(length)
        return text.replace(old, new, count)

    def format_percent(self, text: str, values: Any) -> str:
        """What `%` does to a text: no padding that is too wide, no sizes from the values."""
        slots = 0
        for width in PERCENT.findall(text):
            slots += 1
            if "*" in width or any(part and int(part[:9]) > MAX_PADDING for part in width):
                raise OverBudget("it asks for padding that is too wide")
        length = len(text) + slots * (MAX_PADDING + 2 * self.measure(values))
        self.check_length(length)
        self.spend(length)
        return str(text % values)

    # Lists, comparing, cutting

    def charge_new(self, value: Any) -> Any:
        """Pay for a list, tuple or dict that the template wrote down."""
        self.spend(ITEM_BYTES + ITEM_BYTES * len(value))
        return value

    def charge_scan(self, value: Any) -> Any:
        """A value that can be compared, searched or hashed in bounded time."""
        kind = type(value)
        if kind is str:
            self.tick(1 + (len(value) >> 10))
        elif kind is range:
            self.tick(1 + (len(value) >> 2))
        elif kind not in SCALARS and isinstance(value, Collection):
            self.tick(1 + (self.measure(value) >> 4))
        return value

    def to_list(self, values: Any) -> Any:
        """Something to go through more than once, of bounded length."""
        if type(values) is list or type(values) is tuple:
            self.tick(1 + (len(values) >> 2))
            return values
        if isinstance(values, str):
            self.spend((8 if values.isascii() else 80) * len(values))
        return list(self.iterate(values))

    def iterate(self, values: Iterable[Any]) -> Iterator[Any]:
        """Each value, paid for."""
        for value in values:
            self.spend(ITEM_BYTES // 2)
            yield value

    def take_slice(self, value: Any, where: slice) -> Any:
        """What `[from:to]` does."""
        if isinstance(value, str):
            length = len(range(*where.indices(len(value))))
            self.spend(length if value.isascii() else 4 * length)
        elif isinstance(value, (list, tuple)):
            self.spend(ITEM_BYTES + 8 * len(range(*where.indices(len(value)))))
        return value[where]

    # Arithmetic

    def add(self, left: Any, right: Any) -> Any:
        if isinstance(left, str) and isinstance(right, str):
            length = len(left) + len(right)
            self.check_length(length)
            self.spend(length if left.isascii() and right.isascii() else 4 * length)
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            self.spend(ITEM_BYTES + 8 * (len(left) + len(right)))
        return left + right

    def add_all(self, parts: tuple[Any, ...]) -> Any:
        """A chain of `+`, which is mostly one of texts."""
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

    def multiply(self, left: Any, right: Any) -> Any:
        for value, times in ((left, right), (right, left)):
            if not isinstance(times, int):
                continue
            if isinstance(value, str):
                self.check_length(len(value) * times)
                self.spend(max(size_in_bytes(value) * times, 0))
            elif isinstance(value, (list, tuple)):
                self.spend(max(8 * len(value) * times, 0))
            elif isinstance(value, int):
                self._check_bits(value.bit_length() + times.bit_length())
        return left * right

    def power(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() * abs(right))
        return left**right

    def modulo(self, left: Any, right: Any) -> Any:
        if isinstance(left, str):
            return self.format_percent(left, right)
        return left % right

    def _check_bits(self, bits: int) -> None:
        if bits > MAX_BITS:
            raise OverBudget("it makes a number that is too large")
        self.tick(1)

    def apply_operator(self, sign: str, left: Any, right: Any) -> Any:
        return OPERATORS[sign](self, left, right)

    # Methods of texts, lists and dicts

    def call_method(self, bound: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a value, after paying for what it makes."""
        owner, name = bound.__self__, bound.__name__
        if isinstance(owner, str):
            return self._call_text_method(owner, name, args, kwargs)
        if name not in METHODS.get(type(owner), ()):
            raise SecurityError(f"the method {name} cannot be used in a template")
        if name in CHANGING:
            if id(owner) in self.known_sizes:
                raise SecurityError("a template cannot change what it was given")
            if name == "extend":
                args = tuple(map(self.to_list, args))
            self.spend(
                ITEM_BYTES + ITEM_BYTES * sum(len(arg) for arg in args if hasattr(arg, "__len__"))
            )
        elif name == "copy":
            self.spend(ITEM_BYTES * (1 + len(owner)))
        elif name in COMPARING:
            self.charge_scan(owner)
        for arg in args:
            self.charge_scan(arg)
        return bound(*args, **kwargs)

    def _call_text_method(
        self, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
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
                by = args[0] if name != "splitlines" and args else kwargs.get("sep")
                pieces = text.count(by) if isinstance(by, str) and by else len(text) // 2
                self.spend(size_in_bytes(text) + ITEM_BYTES * (1 + pieces))
            case _ if name in READING:
                self.tick(1 + (len(text) >> 8))
            case _:
                self.spend(size_in_bytes(text))
        return getattr(text, name)(*args, **kwargs)


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, KeysView, ValuesView, ItemsView)):
        return value
    raise TemplateRuntimeError("a value of this kind cannot be written or compared")


def _charge_both(function: Callable[[Any, Any], Any]) -> Callable[[RenderBudget, Any, Any], Any]:
    def apply(budget: RenderBudget, left: Any, right: Any) -> Any:
        return function(budget.charge_scan(left), budget.charge_scan(right))

    return apply


OPERATORS: dict[str, Callable[[RenderBudget, Any, Any], Any]] = {
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
READING = frozenset({"count", "endswith", "find", "index", "rfind", "rindex", "startswith"})
CHANGING = frozenset({"append", "extend", "insert", "pop", "update", "setdefault"})
COMPARING = frozenset({"index", "count"})
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT.split()),
    Markup: frozenset(_TEXT.split()),
    list: frozenset({"append", "copy", "count", "extend", "index", "insert", "pop"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "pop", "setdefault", "update", "values"}),
}
