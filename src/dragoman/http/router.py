"""The table of routes: the one place where a path gets a handler, its methods and its guard.

`{name}` in a path stands for one segment of it, `{name...}` at its end for all the rest, slashes
and all. A path that is spelt out wins over a pattern, and a segment over the rest. Every path of
the API is also there without its `/v1`. A route says in which dialect its errors are written; a
path that leads nowhere has the errors of the routes it came closest to. A route whose method is
`WEBSOCKET` is for clients that ask for one there; it stands beside the other methods of its path.
Tests and the OpenAPI document are generated from this table, so a route that is added is tested and
documented the same day.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError, MethodNotAllowed, NotFound
from dragoman.http.asgi import WEBSOCKET, RequestContext
from dragoman.protocols.shared import openai

Access: TypeAlias = Literal["open", "key", "admin"]
Handler: TypeAlias = Callable[[RequestContext], Awaitable[None]]
_PARAMETER = re.compile(r"\{(\w+)(?:\.\.\.)?\}")


def own_status(failure: DragomanError) -> int:
    return failure.status


class Route(Struct, frozen=True, kw_only=True):
    """A path, who may ask it, and what answers."""

    path: str
    method: str
    handler: Handler
    summary: str
    access: Access = "key"
    request_type: Any = None  # the Struct of its JSON body, for the document
    response_type: Any = None
    streams: bool = False
    error: Callable[[DragomanError, str], bytes] = openai.encode_error  # in the dialect of the path
    # for clients of Messages, where they come to the same path
    other_error: Callable[[DragomanError, str], bytes] | None = None
    status: Callable[[DragomanError], int] = own_status  # what the dialect makes of a status

    @property
    def parameters(self) -> list[str]:
        """Names of the parts of the path that a client fills in."""
        return _PARAMETER.findall(self.path)


class RouteMatch(Struct, frozen=True):
    """What stands at a path: nothing, or a route for each method."""

    methods: dict[str, Route]
    values: tuple[str, ...] = ()  # what was found in place of the parameters
    nearest: Route | None = None  # whose errors are written

    def route(self, method: str) -> Route | None:
        return self.methods.get("GET" if method == "HEAD" else method)


class PathNode:
    """A place in the tree of patterns: what may come after the segments that led to it."""

    __slots__ = ("methods", "named", "one", "rest")

    def __init__(self) -> None:
        self.named: dict[str, PathNode] = {}
        self.one: PathNode | None = None
        self.rest: dict[str, Route] = {}  # routes that take everything from here on
        self.methods: dict[str, Route] = {}

    def add(self, segments: list[str], route: Route) -> None:
        if not segments:
            self.methods[route.method] = route
        elif segments[0].endswith("...}"):
            self.rest[route.method] = route
        elif _PARAMETER.fullmatch(segments[0]):
            self.one = self.one or PathNode()
            self.one.add(segments[1:], route)
        else:
            self.named.setdefault(segments[0], PathNode()).add(segments[1:], route)

    def find(self, segments: list[str], at: int, values: tuple[str, ...]) -> RouteMatch | None:
        if at == len(segments):
            return RouteMatch(self.methods, values, first(self.methods)) if self.methods else None
        segment = segments[at]
        found = None
        if segment in self.named:
            found = self.named[segment].find(segments, at + 1, values)
        if found is None and self.one is not None and segment:
            found = self.one.find(segments, at + 1, (*values, segment))
        if found is None and self.rest and (rest := "/".join(segments[at:])):
            found = RouteMatch(self.rest, (*values, rest), first(self.rest))
        return found

    def nearest(self, segments: list[str]) -> Route | None:
        """A route at the deepest place on the way that has one."""
        node: PathNode | None = self
        found = None
        for segment in segments:
            node = node and (node.named.get(segment) or node.one)
            found = (first(node.methods) if node else None) or found
        return found


class Router:
    """Looks routes up."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes: list[Route] = []
        self._exact: dict[str, dict[str, Route]] = {}
        self._tree = PathNode()
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Add a route, or put it in the place of one."""
        self.routes.append(route)
        for path in path_variants(route.path):
            self._tree.add(path.split("/"), route)
            if not route.parameters:
                self._exact.setdefault(path, {})[route.method] = route

    def find(self, path: str) -> RouteMatch:
        methods = self._exact.get(path)
        if methods is not None:
            return RouteMatch(methods, (), first(methods))
        segments = path.split("/", 64)
        found = self._tree.find(segments, 0, ())
        return found or RouteMatch({}, (), self._tree.nearest(segments))

    def has_websocket(self, path: str) -> bool:
        """Whether a WebSocket can be had there."""
        return WEBSOCKET in self.find(path).methods

    def look_up(self, exchange: RequestContext) -> None:
        """Tell an exchange what stands at its path, and how errors are written there."""
        exchange.match = match = self.find(exchange.path)
        route = match.route(exchange.method) or match.nearest
        if route is not None:
            other = route.other_error if exchange.messages else None
            exchange.write_error = other or route.error
            exchange.status_of = route.status

    @staticmethod
    def access(exchange: RequestContext) -> Access:
        """Who may ask; what does not exist is guarded like the rest."""
        route = found(exchange).route(exchange.method)
        return "key" if route is None else route.access

    @staticmethod
    async def dispatch(exchange: RequestContext) -> None:
        match = found(exchange)
        if not match.methods:
            raise NotFound("There is nothing at this path.")
        route = match.route(exchange.method)
        if route is None or (route.method == WEBSOCKET) != exchange.is_websocket:
            allowed = ", ".join(sorted(set(match.methods) - {WEBSOCKET}))
            exchange.headers.append((b"allow", allowed.encode()))
            raise MethodNotAllowed(f"This path takes {allowed or 'WebSockets only'}.")
        exchange.route = route.path
        exchange.params = dict(zip(route.parameters, match.values, strict=True))
        await route.handler(exchange)


def found(exchange: RequestContext) -> RouteMatch:
    assert isinstance(exchange.match, RouteMatch)  # noqa: S101  # looked up by Outermost
    return exchange.match


def first(methods: dict[str, Route]) -> Route | None:
    return next(iter(methods.values()), None)


def path_variants(path: str) -> list[str]:
    return [path, path.removeprefix("/v1")] if path.startswith("/v1/") else [path]
