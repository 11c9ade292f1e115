"""Imports the function that creates an engine, named as `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Awaitable, Callable
from importlib.machinery import PathFinder
from typing import TypeAlias

from dragoman.errors import ModelBroken
from dragoman.types import Engine

Factory: TypeAlias = Callable[..., Engine | Awaitable[Engine]]


def check_factory(factory: str) -> None:
    """Raise `ModelBroken` unless the module of a factory seems to exist; nothing is imported."""
    package = factory.partition(":")[0].partition(".")[0]
    # engines run in a process that also finds modules in the working directory
    if (
        importlib.util.find_spec(package) is None
        and PathFinder.find_spec(package, [os.getcwd()]) is None
    ):
        raise _make_missing_error(package, factory)


def import_factory(factory: str) -> Factory:
    """Import `module:function`; raise `ModelBroken` if there is no such module or function."""
    name, _, function = factory.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, but not what it imports
        raise _make_missing_error(error.name, factory) from None
    found: Factory | None = getattr(module, function, None)
    if found is None:
        raise ModelBroken(f"The module `{name}` has no function `{function}`.")
    return found


def _make_missing_error(module: str, factory: str) -> ModelBroken:
    return ModelBroken(f"There is no module `{module}`, which the engine `{factory}` needs.")
