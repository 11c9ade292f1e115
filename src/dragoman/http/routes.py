"""The table of routes: the one place where a path gets a handler, its methods and its guard.

Paths are matched exactly; a pattern that ends in `{name}` takes the rest of the path, slashes and
all. Every path of the API is also there without its `/v1`. Tests and the OpenAPI document are
generated from this table, so a route that is added is tested and documented the same day.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import MethodNotAllowed, NotFound
from dragoman.http.asgi import Exchange

Access: TypeAlias = Literal["open", "key", "admin"]
Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]


class Route(Struct, frozen=True, kw_only=True):
    """A path, who may ask it, and what answers."""

    path: str
    method: str
    handler: Handler
    summary: str
    access: Access = "key"
    body: Any = None  # the Struct of its JSON body, for the document
    answer: Any = None
    streams: bool = False


class Routes:
    """Looks routes up."""

    def __init__(self, routes: list[Route]) -> None:
        self.all = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefix: dict[str, dict[str, Route]] = {}
        for route in routes:
            for path in spellings(route.path):
                if path.endswith("}"):
                    table, path = self._prefix, path[: path.index("{")]
                else:
                    table = self._exact
                table.setdefault(path, {})[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], str] | None:
        """The routes of a path by method, and the rest of the path if the pattern takes one."""
        if path in self._exact:
            return self._exact[path], ""
        for prefix, methods in self._prefix.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return methods, path[len(prefix) :]
        return None

    def access(self, path: str, method: str) -> Access:
        """Who may ask; what does not exist is guarded like the rest."""
        found = self.find(path)
        route = found[0].get("GET" if method == "HEAD" else method) if found else None
        return "key" if route is None else route.access

    async def dispatch(self, exchange: Exchange) -> None:
        found = self.find(exchange.path)
        if found is None:
            raise NotFound("There is nothing at this path.")
        methods, rest = found
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            exchange.headers.append((b"allow", allowed.encode()))
            raise MethodNotAllowed(f"This path takes {allowed}.")
        exchange.route = route.path
        exchange.params["rest"] = rest
        await route.handler(exchange)


def spellings(path: str) -> list[str]:
    return [path, path.removeprefix("/v1")] if path.startswith("/v1/") else [path]
