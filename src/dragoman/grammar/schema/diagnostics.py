"""What is reported about a client's schema: errors, and warnings about unenforced keywords."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NoReturn

from dragoman.errors import InvalidSchema, UnsupportedKeyword
from dragoman.grammar.schema.limits import MAX_WARNINGS


class SchemaDiagnostics:
    """Places are JSON pointers into the schema; `param` is the request field of the schema.

    A keyword that cannot be enforced is an error in a strict schema, and a warning in others.
    """

    def __init__(self, param: str, *, strict: bool, ignores_exclusions: bool = False) -> None:
        self._param = param
        self.strict = strict
        self.keeps_all_types = strict  # of a schema without `type`, not only the implied ones
        self.ignores_exclusions = ignores_exclusions  # of `not`, `if` and `oneOf`
        self.unenforced: dict[str, str] = {}  # warnings by pointer

    def fail(self, pointer: str, problem: str) -> NoReturn:
        """Reject an invalid schema; `problem` is the predicate of the sentence about the place."""
        message = f"{self._describe(pointer)} {problem}."
        raise InvalidSchema(message, param=self._param)

    def report_unenforced(self, pointer: str) -> None:
        if self.strict:
            message = f"{self._describe(pointer)} is not supported in strict schemas."
            raise UnsupportedKeyword(message, param=self._param)
        self.unenforced.setdefault(pointer, f"{self._describe(pointer)} is not enforced.")

    def warn_about_types(self, pointer: str, types: Iterable[str]) -> None:
        """Report a schema without `type` of which only the implied types are allowed."""
        subject = self._describe(pointer)
        only = " or ".join(f"`{name}`" for name in types)
        self.unenforced.setdefault(
            f"{pointer}/type", f"{subject} has no `type`; only {only} is allowed."
        )

    def warn_about_order(self, limit: int) -> None:
        """Report that an object has too many properties to write them in any order."""
        self.unenforced.setdefault(
            "/properties order",
            f"`{self._param}`: an object with more than {limit} properties is written in the order "
            f"of the schema.",
        )

    def is_enforced(self, pointer: str) -> bool:
        """Whether nothing at or below a place has been reported as unenforced."""
        return not any(
            other == pointer or other.startswith(f"{pointer}/") for other in self.unenforced
        )

    def list_warnings(self) -> tuple[str, ...]:
        warnings = list(self.unenforced.values())
        if len(warnings) > MAX_WARNINGS:
            more = len(warnings) - MAX_WARNINGS
            warnings[MAX_WARNINGS:] = [f"`{self._param}`: {more} more keywords are not enforced."]
        return tuple(warnings)

    def _describe(self, pointer: str) -> str:
        if not pointer:
            return f"`{self._param}`"
        shown = pointer if len(pointer) <= 200 else f"{pointer[:100]}...{pointer[-100:]}"
        printable = "".join(
            char if char.isprintable() else json.dumps(char)[1:-1] for char in shown
        )
        return f"`{self._param}`: `{printable}`"
