"""A block in which a context variable has a value.

Requests enter many such blocks, so this is a class: a generator costs three times as much.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class ContextValue(Generic[T]):
    """Sets a context variable inside its block, also for tasks that are started there."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
