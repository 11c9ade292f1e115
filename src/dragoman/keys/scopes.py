"""What a key may use: routes and models.

A route is named by its group, which is the first segment of its path (`chat` for
`/v1/chat/completions`), or by its path, where `*` stands for any characters. A method may precede
both: `GET models`. Models are named by their ids or aliases, also with `*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from dragoman.options import suggest

EVERYTHING = "*"
ADMIN_GROUP = "admin"
_VERSION = re.compile(r"^/v\d+(?=/)")
_METHOD = re.compile(r"([A-Z]+) +(\S.*)")


class RouteName(Struct, frozen=True):
    """A route as scopes name it."""

    method: str
    path: str  # with its parameters: `/v1/responses/{id}`

    @property
    def group(self) -> str:
        """The first segment of the path, after the version."""
        return _VERSION.sub("", self.path).strip("/").partition("/")[0]

    @property
    def paths(self) -> tuple[str, str]:
        return self.path, self.path.removeprefix("/v1")


class KeyScope(Struct, frozen=True, kw_only=True):
    """The routes and models that a key may use."""

    routes: tuple[str, ...] = (EVERYTHING,)
    models: tuple[str, ...] = (EVERYTHING,)

    @property
    def names_routes(self) -> bool:
        """Whether the operator has chosen the routes, instead of allowing all."""
        return all(split_pattern(pattern)[1] != EVERYTHING for pattern in self.routes)

    def allows_route(self, route: RouteName) -> bool:
        return any(matches_route(pattern, route) for pattern in self.routes)

    def allows_model(self, names: Iterable[str]) -> bool:
        """Whether one of the names of a model is among those of the scope."""
        if EVERYTHING in self.models:
            return True
        return any(
            fnmatchcase(name.strip().lower(), pattern.strip().lower())
            for name in names
            for pattern in self.models
        )


def matches_route(pattern: str, route: RouteName) -> bool:
    method, target = split_pattern(pattern)
    if method not in ("", route.method):
        return False
    if not target.startswith("/"):
        return target in (EVERYTHING, route.group)
    return any(fnmatchcase(path, target) for path in route.paths)


def split_pattern(pattern: str) -> tuple[str, str]:
    """Return method and target of a pattern; the method may be missing."""
    match = _METHOD.fullmatch(pattern.strip())
    return (match[1], match[2]) if match else ("", pattern.strip())


def find_unknown_route(patterns: Iterable[str], routes: Iterable[RouteName]) -> str | None:
    """Return what is wrong with the first pattern that no route matches; None if all are right."""
    known = list(routes)
    for pattern in patterns:
        if not any(matches_route(pattern, route) for route in known):
            names = sorted({route.group for route in known if route.group})
            _, target = split_pattern(pattern)
            paths = {path for route in known for path in route.paths}
            hint = suggest(target, paths if target.startswith("/") else names)
            return f"there is no route `{pattern}`.{hint or ' Use ' + ', '.join(names) + '.'}"
    return None
