"""The route table: the one place where a path gets a handler, its methods and its access rule.

`{name}` in a path matches one segment, `{name...}` at its end the rest of the path, slashes
included. A literal segment wins over a parameter, and a parameter over the rest of a path. Every
path of the API also exists without its `/v1`.

A route lists the wire APIs that its path belongs to. Where there are several, the headers of a
request decide. Errors are written in that wire API; a path that does not exist has the wire API of
the closest routes. A route whose method is `WEBSOCKET` serves WebSocket handshakes; its
path may have other methods, too.

Tests and the OpenAPI document are generated from this table, so every new route is tested and
documented.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TypeAlias, TypedDict, Unpack

from msgspec import Struct

from dragoman.errors import MethodNotAllowed, NotFound
from dragoman.http.asgi import DEFAULT_DIALECT, WEBSOCKET, Access, RequestContext
from dragoman.keys.scopes import RouteName
from dragoman.options.values import suggest
from dragoman.protocols.dialect import Dialect
from dragoman.telemetry.log_format import escape_text

Handler: TypeAlias = Callable[[RequestContext], Awaitable[None]]
MAX_SEGMENTS = 64
MAX_SUGGESTED = 100  # characters of a path that is compared with ours
BASE = re.compile(r"(?:/v1|/openai|/api(?=/v1/))+(?=/)")  # of other servers, or doubled
_PARAMETER = re.compile(r"\{(\w+)(?:\.\.\.)?\}")


class Route(Struct, frozen=True, kw_only=True, dict=True):
    """A path with a method, its access rule and its handler."""

    path: str
    method: str
    handler: Handler
    summary: str
    dialects: tuple[Dialect[object], ...] = (DEFAULT_DIALECT,)  # the first is the default
    access: Access = "key"
    request_type: type | None = None  # the Struct of its body, for the OpenAPI document
    body_type: str = "application/json"  # the media type of its body
    response_type: type | None = None
    streams: bool = False
    counts_as_concurrent: bool = True  # False for a POST that runs no model

    @cached_property
    def is_concurrent(self) -> bool:
        """Whether its requests count as concurrent ones: reading and deleting never does."""
        return self.counts_as_concurrent and self.method in ("POST", WEBSOCKET)

    @cached_property
    def name(self) -> RouteName:
        """The route as the scopes of keys name it."""
        return RouteName(self.method, self.path)

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return _PARAMETER.findall(self.path)

    def select_dialect(self, request: RequestContext) -> Dialect[object]:
        """Return the wire API that the client of this request uses."""
        for dialect in self.dialects:
            header = dialect.client_header
            if header is not None and header in request.headers:
                return dialect
        return self.dialects[0]


class RouteOptions(TypedDict, total=False):
    """The optional fields of a `Route`."""

    access: Access
    request_type: type
    body_type: str
    response_type: type
    streams: bool
    counts_as_concurrent: bool


class RouteGroup:
    """Makes routes below one path."""

    def __init__(self, prefix: str, *dialects: Dialect[object]) -> None:
        self._prefix = prefix
        self._dialects = dialects or (DEFAULT_DIALECT,)

    def make(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str,
        **options: Unpack[RouteOptions],
    ) -> Route:
        return Route(
            path=self._prefix + path,
            method=method,
            handler=handler,
            summary=summary,
            dialects=self._dialects,
            **options,
        )


class RouteMatch(Struct, frozen=True):
    """The routes of a path, by method; none where the path does not exist."""

    methods: dict[str, Route]
    values: tuple[str, ...] = ()  # of the parameters
    nearest: Route | None = None  # its wire API is that of errors

    def get_route(self, method: str) -> Route | None:
        return self.methods.get("GET" if method == "HEAD" else method)


class PathNode:
    """A node of the path tree: the routes whose paths start with the segments that lead to it."""

    __slots__ = ("first", "literals", "methods", "parameter", "rest")

    def __init__(self, first: Route | None = None) -> None:
        self.first = first  # route whose path starts with these segments
        self.literals: dict[str, PathNode] = {}
        self.parameter: PathNode | None = None
        self.rest: dict[str, Route] = {}  # routes that take the rest of the path
        self.methods: dict[str, Route] = {}

    def add(self, segments: list[str], route: Route) -> None:
        if not segments:
            self.methods[route.method] = route
        elif segments[0].endswith("...}"):
            self.rest[route.method] = route
        elif _PARAMETER.fullmatch(segments[0]):
            self.parameter = self.parameter or PathNode(route)
            self.parameter.add(segments[1:], route)
        else:
            self.literals.setdefault(segments[0], PathNode(route)).add(segments[1:], route)

    def find(self, segments: list[str], index: int, values: tuple[str, ...]) -> RouteMatch | None:
        if index == len(segments):
            return _make_match(self.methods, values) if self.methods else None
        segment = segments[index]
        match = None
        if segment in self.literals:
            match = self.literals[segment].find(segments, index + 1, values)
        if match is None and self.parameter is not None and segment:
            match = self.parameter.find(segments, index + 1, (*values, segment))
        if match is None and self.rest and (rest := "/".join(segments[index:])):
            match = _make_match(self.rest, (*values, rest))
        return match

    def find_nearest(self, segments: list[str]) -> Route | None:
        """Return a route of the deepest node on the way, below its first segment."""
        node: PathNode | None = self
        nearest = None
        for depth, segment in enumerate(segments):
            node = node and (node.literals.get(segment) or node.parameter)
            if node is not None and depth:
                nearest = _get_first_route(node.methods) or node.first
        return nearest


class Router:
    """Finds the route of a request and calls its handler."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes: list[Route] = []
        self._exact: dict[str, RouteMatch] = {}  # by path, of those without parameters
        self._tree = PathNode()
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Add a route, or replace the one with the same path and method."""
        self.routes.append(route)
        for path in list_path_variants(route.path):
            self._tree.add(path.split("/"), route)
            if not route.parameters:
                known = self._exact.get(path)
                methods = {} if known is None else known.methods
                self._exact[path] = _make_match({**methods, route.method: route}, ())

    def find(self, path: str) -> RouteMatch:
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        segments = path.split("/", MAX_SEGMENTS)
        match = self._tree.find(segments, 0, ())
        return match or RouteMatch({}, (), self._tree.find_nearest(segments))

    def find_dialect(self, path: str) -> Dialect[object]:
        """Return the wire API of a path, for errors of requests that did not arrive completely."""
        nearest = self.find(path).nearest
        return DEFAULT_DIALECT if nearest is None else nearest.dialects[0]

    def has_websocket(self, path: str) -> bool:
        return WEBSOCKET in self.find(path).methods

    def resolve(self, request: RequestContext) -> None:
        """Set the wire API and the access rule of a request; both are needed to reject it, too."""
        match = self.find(request.path)
        route = match.get_route(request.method)
        nearest = route or match.nearest
        if nearest is not None:
            request.dialect = nearest.select_dialect(request)
        if route is not None:
            request.access = route.access
            request.route_name = route.name
            request.is_concurrent = route.is_concurrent

    def _suggest_path(self, path: str) -> str:
        """Return a question that suggests the same path with another base, or a similar path."""
        rest = BASE.sub("", path).rstrip("/")
        for position in range(1, len(rest)):  # a base URL that ends with the path of a route
            if rest[position] == "/" and {rest[:position], rest[position:]} <= self._exact.keys():
                return f" Did you mean /v1{rest[position:]}? The base URL of a client ends in /v1."
        for known in (f"/v1{rest}", rest):
            if known in self._exact:
                return f" Did you mean {known}?"
        if len(path) > MAX_SUGGESTED:
            return ""
        return suggest(path, self._exact, min_similarity=0.85).replace("`", "")

    async def dispatch(self, request: RequestContext) -> None:
        match = self.find(request.path)
        if not match.methods:
            hint = self._suggest_path(request.path)
            raise NotFound(f"Unknown path {escape_text(request.path)}.{hint} See /docs.")
        route = match.get_route(request.method)
        if route is None or (route.method == WEBSOCKET) != request.is_websocket:
            allowed = ", ".join(sorted(set(match.methods) - {WEBSOCKET}))
            request.extra_headers.append((b"allow", allowed.encode()))
            raise MethodNotAllowed(f"Use {allowed or 'a WebSocket'} for this path.")
        request.route = route.path
        if route.parameters:
            request.params = dict(zip(route.parameters, match.values, strict=True))
        request.update_record()
        await route.handler(request)


def _make_match(methods: dict[str, Route], values: tuple[str, ...]) -> RouteMatch:
    return RouteMatch(methods, values, _get_first_route(methods))


def _get_first_route(methods: dict[str, Route]) -> Route | None:
    return next(iter(methods.values()), None)


def list_path_variants(path: str) -> list[str]:
    """Return a path of the API, with and without `/v1`."""
    return [path, path.removeprefix("/v1")] if path.startswith("/v1/") else [path]
