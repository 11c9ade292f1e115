"""A property that is computed once. Requests have several, and `cached_property` takes a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

OwnerT = TypeVar("OwnerT")
T = TypeVar("T")


class ComputedOnce(Generic[OwnerT, T]):
    """Computes a value of an object when it is first read, and keeps it in its `__dict__`."""

    def __init__(self, compute: Callable[[OwnerT], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: OwnerT, owner: type) -> T: ...
    def __get__(self, instance: OwnerT | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
