"""Routes of paths, the wire API of errors, owners of requests, and query strings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from dragoman.errors import DragomanError, TooLarge
from dragoman.http.asgi import DEFAULT_DIALECT, WEBSOCKET, RequestContext
from dragoman.http.router import Route, Router
from dragoman.keys.digests import make_key_owner
from dragoman.protocols.dialect import Dialect
from tests.support.serving import make_scripted_app


async def send_context(request: RequestContext) -> None:
    """Respond with what the context knows about the request."""
    context = {"route": request.route, "params": request.params, "owner": request.owner}
    context |= {"query": request.query}
    await request.send_response(200, json.dumps(context).encode())


async def read_small_body(request: RequestContext) -> None:
    await request.read_body(10, 5)


def encode_loud_error(error: DragomanError, request_id: str) -> bytes:
    return json.dumps({"shout": error.message.upper()}).encode()


def make_route(path: str, method: str = "GET", **fields: Any) -> Route:
    return Route(
        path=path, method=method, handler=send_context, summary="Send the context.", **fields
    )


PATTERNS = [
    "/v1/responses/{id}",
    "/v1/responses/compact",
    "/v1/responses/{id}/cancel",
    "/v1/responses/{id}/input_items",
    "/v1/conversations/{id}/items/{item}",
    "/v1/conversations/{conversation}",
    "/v1/models/{model...}",
    "/v1/models/special/{id}",
    "/v1/models",
    "/",
]

MATCHES: list[tuple[str, str, dict[str, str]]] = [
    ("/", "/", {}),
    ("/v1/responses/abc", "/v1/responses/{id}", {"id": "abc"}),
    ("/responses/abc", "/v1/responses/{id}", {"id": "abc"}),
    ("/v1/responses/compact", "/v1/responses/compact", {}),
    ("/v1/responses/compact/cancel", "/v1/responses/{id}/cancel", {"id": "compact"}),
    ("/v1/responses/compacted", "/v1/responses/{id}", {"id": "compacted"}),
    ("/v1/responses/{id}", "/v1/responses/{id}", {"id": "{id}"}),
    ("/v1/responses/a b/cancel", "/v1/responses/{id}/cancel", {"id": "a b"}),
    ("/v1/conversations/c", "/v1/conversations/{conversation}", {"conversation": "c"}),
    (
        "/v1/conversations/c/items/i",
        "/v1/conversations/{id}/items/{item}",
        {"id": "c", "item": "i"},
    ),
    ("/v1/models/a", "/v1/models/{model...}", {"model": "a"}),
    ("/v1/models/a/b:c/d", "/v1/models/{model...}", {"model": "a/b:c/d"}),
    ("/v1/models/special", "/v1/models/{model...}", {"model": "special"}),
    ("/v1/models/special/x", "/v1/models/special/{id}", {"id": "x"}),
    ("/v1/models/special/x/y", "/v1/models/{model...}", {"model": "special/x/y"}),
    ("/models" + "/x" * 200, "/v1/models/{model...}", {"model": "/".join("x" * 200)}),
]
UNKNOWN_PATHS = [
    "*",
    "",
    "//",
    "/v1",
    "/v1/responses",
    "/v1/responses/",
    "/v1/responses//cancel",
    "/v1/responses/a/b",
    "/v1/responses/a/cancel/",
    "/v1/conversations/c/items",
    "/v1/conversations/c/items/",
    "/v1/models/",
    "/v2/responses/a",
    "v1/responses/a",
    "/" * 5000,
]


@pytest.mark.parametrize(("path", "pattern", "params"), MATCHES)
def test_path_matches_its_route(path: str, pattern: str, params: dict[str, str]) -> None:
    match = Router([make_route(pattern) for pattern in PATTERNS]).find(path)
    route = match.methods["GET"]
    assert route.path == pattern
    assert dict(zip(route.parameters, match.values, strict=True)) == params


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_unknown_path_matches_no_route(path: str) -> None:
    assert not Router([make_route(pattern) for pattern in PATTERNS]).find(path).methods


def make_client(routes: list[Route], **options: Any) -> Any:
    """A client of an app that has these routes, too."""
    app = make_scripted_app(**options)
    for route in routes:
        app.router.add(route)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def get(routes: list[Route], path: str, method: str = "GET", **fields: Any) -> httpx.Response:
    options = fields.pop("options", {})

    async def send() -> httpx.Response:
        async with make_client(routes, **options) as client:
            response: httpx.Response = await client.request(method, path, **fields)
            return response

    return asyncio.run(send())


QUERIES: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("?", {}),
    ("?beta=true", {"beta": "true"}),
    ("?a=1&a=2&b=", {"a": "2", "b": ""}),
    ("?include[]=x&include[]=y", {"include[]": "y"}),
    ("?include%5B%5D=a%20b", {"include[]": "a b"}),
    ("?include=%ff%zz%", {"include": "\ufffd%zz%"}),
    ("?&&=&===", {"": "=="}),
    ("?%00=%00", {"\0": "\0"}),
]


@pytest.mark.parametrize(("query", "fields"), QUERIES)
def test_query_string_is_parsed(query: str, fields: dict[str, str]) -> None:
    assert get([make_route("/")], f"/{query}").json()["query"] == fields


def test_too_many_query_fields_get_400() -> None:
    assert get([make_route("/")], "/?" + "a=1&" * 1000).status_code == 400


LOUD: Dialect[object] = Dialect(
    name="loud", encode_error=encode_loud_error, get_error_status=lambda error: 529
)
LOUD_IF_LARGE: Dialect[object] = Dialect(
    name="loud if large",
    encode_error=encode_loud_error,
    get_error_status=lambda error: 529 if isinstance(error, TooLarge) else error.status,
)
TWO_DIALECTS = [
    make_route("/v1/loud", "POST", dialects=(LOUD,)),
    Route(
        path="/v1/loud/large",
        method="POST",
        handler=read_small_body,
        summary="Read a small body.",
        dialects=(LOUD_IF_LARGE,),
    ),
    make_route("/v1/quiet", "POST"),
]
KEYS = {"api_key": ("secret", "other"), "admin_key": ("boss",)}
FAILURES: list[tuple[str, str, dict[str, Any], int, bool]] = [
    ("POST", "/v1/loud", {"options": KEYS}, 529, True),
    ("POST", "/loud", {"options": KEYS}, 529, True),
    ("GET", "/v1/loud", {}, 529, True),
    ("POST", "/v1/loud", {"headers": {"host": "evil.example"}}, 529, True),
    ("POST", "/v1/loud", {"headers": {"host": "a/b"}}, 529, True),
    ("POST", "/v1/loud/nothing", {}, 529, True),
    ("POST", "/v1/loud/nothing/at/all", {"options": KEYS}, 529, True),
    ("POST", "/v1/loud/large", {"content": b"x" * 11}, 529, True),
    ("PUT", "/v1/loud/large", {}, 405, True),
    ("GET", "/v1/quiet", {}, 405, False),
    ("POST", "/v1/nothing", {}, 404, False),
    ("POST", "/v1", {}, 404, False),
]


@pytest.mark.parametrize(("method", "path", "fields", "status", "loud"), FAILURES)
def test_error_is_written_in_the_wire_api_of_its_path(
    method: str, path: str, fields: dict[str, Any], status: int, loud: bool
) -> None:
    response = get(TWO_DIALECTS, path, method, **fields)
    assert response.status_code == status
    assert set(response.json()) == ({"shout"} if loud else {"error"})


def test_client_header_selects_among_several_wire_apis() -> None:
    claimed: Dialect[object] = Dialect(
        name="claimed",
        encode_error=encode_loud_error,
        client_header=b"x-loud",
        request_id_headers=(b"loud-id",),
    )
    routes = [make_route("/v1/shared", "POST", dialects=(DEFAULT_DIALECT, claimed))]
    plain = get(routes, "/v1/shared")
    assert set(plain.json()) == {"error"}
    assert plain.headers["x-request-id"]
    loud = get(routes, "/v1/shared", headers={"x-loud": "1"})
    assert set(loud.json()) == {"shout"}
    assert loud.headers["loud-id"]
    assert "x-request-id" not in loud.headers


def test_http_method_named_websocket_is_rejected() -> None:
    routes = [make_route("/v1/talk", WEBSOCKET), make_route("/v1/talk", "POST")]
    response = get(routes, "/v1/talk", WEBSOCKET)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


OWNERS: list[tuple[dict[str, str], str | None]] = [
    ({"x-api-key": "secret"}, "secret"),
    ({"authorization": "Bearer secret"}, "secret"),
    ({"authorization": "Bearer secret", "x-api-key": "secret"}, "secret"),
    ({"authorization": "Bearer other", "x-api-key": ""}, "other"),
    ({"authorization": "Bearer wrong", "x-api-key": "secret"}, None),
    ({"authorization": "Bearer other", "x-api-key": "wrong"}, None),
    ({"authorization": "Bearer other", "x-api-key": "secret"}, None),
    ({"x-api-key": "boss"}, "boss"),
    ({"x-api-key": "wrong"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "key"), OWNERS)
def test_owner_is_the_key_that_was_accepted(headers: dict[str, str], key: str | None) -> None:
    response = get([make_route("/")], "/", headers=headers, options=KEYS)
    assert response.status_code == (401 if key is None else 200)
    if key is not None:
        owner = response.json()["owner"]
        assert owner == make_key_owner(key.encode())  # which rows of older versions have
        assert len(owner) == 32
        assert key not in owner


def test_owners_differ_by_key_and_are_empty_without_keys() -> None:
    assert len({make_key_owner(key) for key in (b"secret", b"other", b"boss")}) == 3
    assert get([make_route("/")], "/", headers={"x-api-key": "any"}).json()["owner"] == ""
    assert get([make_route("/", access="open")], "/", options=KEYS).json()["owner"] == ""
