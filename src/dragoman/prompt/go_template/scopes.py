"""The variables of a template in Go's language, by the names they get in Jinja.

In Jinja, a variable that is set in a loop is gone after it, and one that is set in an `if` is not.
So every declaration gets a name of its own, and its value is an attribute of a `namespace`, which
can be changed from inside of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

ROOT = "go_root"


class Scopes:
    """Finds variables in the block that declares them."""

    def __init__(self) -> None:
        self._scopes: list[dict[str, str]] = [{}]
        self._count = 0
        self.dot = ROOT  # the expression for `.`

    @contextmanager
    def open_block(self, dot: str | None = None) -> Iterator[None]:
        """Begin a block, in which `.` may be another value."""
        outer = self.dot
        self.dot = dot or outer
        self._scopes.append({})
        yield
        self._scopes.pop()
        self.dot = outer

    def make_name(self, name: str) -> str:
        """Return a name that no other variable has."""
        self._count += 1
        return f"go_{name}_{self._count}"

    def declare(self, variable: str) -> str:
        """Return the name of the namespace for a new variable."""
        name = self._scopes[-1][variable] = self.make_name("var")
        return name

    def find(self, variable: str) -> str | None:
        """Return the name of the namespace of a variable; None if it is not declared."""
        return next((scope[variable] for scope in self._scopes[::-1] if variable in scope), None)
