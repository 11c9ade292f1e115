"""Which route a path finds, in whose dialect it is refused, who asks, and with what query."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from dragoman.errors import DragomanError, TooLarge
from dragoman.http.asgi import WEBSOCKET, RequestContext
from dragoman.http.auth import ApiKeys
from dragoman.http.router import Route, Router
from tests.support.serving import scripted_app


async def tell(exchange: RequestContext) -> None:
    """Answer with what the exchange knows of the request."""
    said = {"route": exchange.route, "params": exchange.params, "owner": exchange.owner}
    said |= {"query": exchange.query, "include": exchange.query_values("include")}
    await exchange.send_response(200, json.dumps(said).encode())


async def large(exchange: RequestContext) -> None:
    await exchange.read_body(10, 5)


def shouted(error: DragomanError, request_id: str) -> bytes:
    return json.dumps({"shout": error.message.upper()}).encode()


def route(path: str, method: str = "GET", **more: Any) -> Route:
    return Route(path=path, method=method, handler=tell, summary="Tells.", **more)


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

FOUND: list[tuple[str, str, dict[str, str]]] = [
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
NOWHERE = [
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


@pytest.mark.parametrize(("path", "pattern", "params"), FOUND)
def test_a_path_finds_its_route(path: str, pattern: str, params: dict[str, str]) -> None:
    match = Router([route(one) for one in PATTERNS]).find(path)
    found = match.methods["GET"]
    assert found.path == pattern
    assert dict(zip(found.parameters, match.values, strict=True)) == params


@pytest.mark.parametrize("path", NOWHERE)
def test_a_path_that_leads_nowhere_finds_none(path: str) -> None:
    assert not Router([route(one) for one in PATTERNS]).find(path).methods


def asked(table: list[Route], **options: Any) -> Any:
    """A client of an app that has these routes too."""
    app = scripted_app(**options)
    for one in table:
        app.router.add(one)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def get(table: list[Route], path: str, method: str = "GET", **more: Any) -> httpx.Response:
    options = more.pop("options", {})

    async def ask() -> httpx.Response:
        async with asked(table, **options) as client:
            response: httpx.Response = await client.request(method, path, **more)
            return response

    return asyncio.run(ask())


QUERIES: list[tuple[str, dict[str, str], list[str]]] = [
    ("", {}, []),
    ("?", {}, []),
    ("?beta=true", {"beta": "true"}, []),
    ("?a=1&a=2&b=", {"a": "2", "b": ""}, []),
    ("?include[]=x&include[]=y", {"include[]": "y"}, ["x", "y"]),
    ("?include=x&include=y&includes=z", {"include": "y", "includes": "z"}, ["x", "y"]),
    ("?include%5B%5D=a%20b", {"include[]": "a b"}, ["a b"]),
    ("?include=%ff%zz%", {"include": "\ufffd%zz%"}, ["\ufffd%zz%"]),
    ("?&&=&===", {"": "=="}, []),
    ("?%00=%00", {"\0": "\0"}, []),
]


@pytest.mark.parametrize(("query", "said", "include"), QUERIES)
def test_queries_are_read(query: str, said: dict[str, str], include: list[str]) -> None:
    told = get([route("/")], f"/{query}").json()
    assert told["query"] == said
    assert told["include"] == include


def test_too_many_queries_are_a_400() -> None:
    assert get([route("/")], "/?" + "a=1&" * 1000).status_code == 400


def test_lists_come_as_the_openai_package_sends_them() -> None:
    async def ask() -> Any:
        async with asked([route("/v1/responses/{id}")]) as http:
            base = "http://localhost/v1"
            client = openai.AsyncOpenAI(api_key="x", base_url=base, http_client=http)
            raw = client.responses.with_raw_response
            kinds: Any = ["reasoning.encrypted_content", "message.output_text.logprobs"]
            return json.loads((await raw.retrieve("resp_1", include=kinds)).text)

    told = asyncio.run(ask())
    assert told["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert told["params"] == {"id": "resp_1"}


LOUD = [
    route("/v1/loud", "POST", error=shouted, status=lambda error: 529),
    Route(
        path="/v1/loud/large",
        method="POST",
        handler=large,
        summary="Takes little.",
        error=shouted,
        status=lambda error: 529 if isinstance(error, TooLarge) else error.status,
    ),
    route("/v1/quiet", "POST"),
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


@pytest.mark.parametrize(("method", "path", "more", "status", "loud"), FAILURES)
def test_every_failure_is_told_in_the_dialect_of_its_path(
    method: str, path: str, more: dict[str, Any], status: int, loud: bool
) -> None:
    response = get(LOUD, path, method, **more)
    assert response.status_code == status
    assert set(response.json()) == ({"shout"} if loud else {"error"})


def test_a_method_named_like_a_websocket_opens_none() -> None:
    table = [route("/v1/talk", WEBSOCKET), route("/v1/talk", "POST")]
    response = get(table, "/v1/talk", WEBSOCKET)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


SHOWN: list[tuple[dict[str, str], str | None]] = [
    ({"x-api-key": "secret"}, "secret"),
    ({"authorization": "Bearer secret"}, "secret"),
    ({"authorization": "Bearer wrong", "x-api-key": "secret"}, "secret"),
    ({"authorization": "Bearer other", "x-api-key": "wrong"}, "other"),
    ({"authorization": "Bearer other", "x-api-key": "secret"}, "other"),
    ({"x-api-key": "boss"}, "boss"),
    ({"x-api-key": "wrong"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "key"), SHOWN)
def test_what_is_kept_belongs_to_the_key_that_was_accepted(
    headers: dict[str, str], key: str | None
) -> None:
    keys = ApiKeys(KEYS["api_key"], KEYS["admin_key"])
    response = get([route("/")], "/", headers=headers, options=KEYS)
    assert response.status_code == (401 if key is None else 200)
    if key is not None:
        owner = response.json()["owner"]
        assert owner == keys.owner_of([key.encode()])
        assert len(owner) == 32
        assert key not in owner


def test_owners_differ_and_without_keys_there_is_none() -> None:
    keys = ApiKeys(KEYS["api_key"], KEYS["admin_key"])
    assert len({keys.owner_of([key]) for key in (b"secret", b"other", b"boss", b"wrong")}) == 4
    assert keys.owner_of([b"wrong"]) == keys.owner_of([]) == ""
    assert get([route("/")], "/", headers={"x-api-key": "any"}).json()["owner"] == ""
    assert get([route("/", access="open")], "/", options=KEYS).json()["owner"] == ""
