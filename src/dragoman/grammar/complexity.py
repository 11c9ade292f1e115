"""The errors for constraints that are too large or too costly to compile.

Every part of the compiler has limits of its own. They all fail with one of these two errors, which
other packages rely on: without a strict constraint, the answer is then left unconstrained.
"""

from __future__ import annotations

import re

from dragoman.errors import ConstraintTooComplex, SchemaTooComplex

HINT = "Simplify it: fewer alternatives, shorter repetitions, less nesting."
# how llguidance words errors about its limits
_LIMIT_MESSAGE = re.compile("(?i)too (?:big|many|complex)|fuel|limit|max is")


def make_too_complex_error(
    param: str | None, problem: str = "is too complex"
) -> ConstraintTooComplex:
    """Return the error for a constraint; `problem` is the predicate of the sentence about it."""
    subject = f"`{param}`" if param else "This constraint"
    return ConstraintTooComplex(f"{subject} {problem}. {HINT}", param=param)


def make_schema_too_complex_error(param: str, excess: str) -> SchemaTooComplex:
    """Return the error for a schema beyond a limit; `excess` says what it has too much of."""
    message = f"`{param}` is too complex: it has {excess}."
    return SchemaTooComplex(message, param=param)


def is_limit_message(message: str) -> bool:
    """Whether llguidance rejects a grammar because it exceeds a limit, not because it is wrong."""
    return _LIMIT_MESSAGE.search(message.partition("\n")[0]) is not None
