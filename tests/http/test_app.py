"""Routes, keys, hosts, bodies and errors. Most tests are generated from the live route table."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman import config, runtime
from dragoman.errors import ERROR_CLASSES, DragomanError
from dragoman.http.asgi import WEBSOCKET, make_warning_headers
from dragoman.http.router import Route, list_path_variants
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.gguf import load
from dragoman.models.registry import ModelRegistry
from dragoman.protocols.shared import openai
from dragoman.testing import ScriptedEngine
from tests.support.serving import (
    RunningServer,
    make_chat,
    make_scripted_app,
    poll_until,
    run_app,
    serve_scripted,
)

ALL_ROUTES = make_scripted_app().router.routes
ROUTES = [route for route in ALL_ROUTES if route.method != WEBSOCKET]
OPEN_PATHS = {"/", "/docs", "/health", "/health/live", "/health/ready"}
LEAKS = re.compile(r"0x[0-9a-f]{6,}|Traceback|site-packages|/root/|/work/|/tmp/|Struct|msgspec")


def route_name(route: Route) -> str:
    return f"{route.method} {route.path}"


def make_path(route: Route) -> str:
    """A path of the route, with sample values for its parameters."""
    path = route.path.replace("{model...}", "scripted")
    return re.sub(r"\{(\w+)\}", r"some_\1", path)


def check_error(response: httpx.Response, route: Route | None = None) -> dict[str, Any]:
    """Check the error object that every failure has, and that it leaks no internals."""
    assert response.headers["content-type"] == "application/json"
    assert not LEAKS.search(response.text)
    body = response.json()
    encode_error = openai.encode_error if route is None else route.dialects[0].encode_error
    expected = json.loads(encode_error(DragomanError("The message."), "req_1"))
    assert set(body) == set(expected)
    error: dict[str, Any] = body["error"]
    if isinstance(expected["error"], str):
        assert isinstance(body["error"], str)
        error = {"message": body["error"]}
    else:
        assert set(error) == set(expected["error"])
    assert isinstance(error["message"], str)
    assert response.headers["x-request-id"]
    if encode_error is not openai.encode_error:  # other wire APIs have no codes
        error["code"] = None
    return error


@pytest.mark.parametrize("kind", [ERROR_CLASSES[name] for name in sorted(ERROR_CLASSES)])
def test_type_and_code_are_not_swapped(kind: type[DragomanError]) -> None:
    body = json.loads(openai.encode_error(kind("The message.", param="there")))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"] == "The message."
    assert body["param"] == "there"
    assert body["type"] == kind.type
    assert body["code"] == kind.code
    assert body["type"].endswith(("_error", "_unavailable"))
    assert kind.code is None or kind.code != kind.type or kind.status == 503


def test_server_without_models_sends_404() -> None:
    models = ModelRegistry(ModelCatalog(), load)
    app = make_app(runtime.build_runtime(models, config.load({"port": 0})), local=True)
    with run_app(app) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
        assert response.status_code == 404
        assert check_error(response)["code"] == "model_not_found"
        assert httpx.get(f"{server.url}/v1/models").json() == {"object": "list", "data": []}
        assert httpx.get(f"{server.url}/tokenizer_info").status_code == 404


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello there!")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("# a comment\nfrom-file\n")
    keys = {"api_key": ("secret", "sk-é"), "admin_key": ("boss",), "api_key_file": str(file)}
    with serve_scripted(ScriptedEngine("Hello there!"), **keys) as server:
        yield server


def send_to(server: RunningServer, route: Route, **fields: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url) as client:
        return client.request(route.method, make_path(route), **fields)


@pytest.mark.parametrize("route", ROUTES, ids=route_name)
def test_every_route_except_open_ones_needs_a_key(
    guarded_server: RunningServer, route: Route
) -> None:
    response = send_to(guarded_server, route)
    if route.path in OPEN_PATHS:
        assert response.status_code == 200
    else:
        assert response.status_code == 401
        assert check_error(response, route)["code"] in ("invalid_api_key", None)


def test_unknown_path_needs_a_key(guarded_server: RunningServer) -> None:
    assert httpx.get(f"{guarded_server.url}/v1/secret").status_code == 401


KEY_HEADERS: list[tuple[dict[str, str], int]] = [
    ({"authorization": "Bearer secret"}, 200),
    ({"authorization": "bearer secret"}, 200),
    ({"x-api-key": "secret"}, 200),
    ({"x-api-key": "from-file"}, 200),
    ({"x-api-key": "boss"}, 200),
    ({"authorization": "Bearer secret", "x-api-key": "secret"}, 200),
    ({"authorization": "Bearer wrong", "x-api-key": "secret"}, 401),
    ({"authorization": "Bearer secre"}, 401),
    ({"authorization": "Bearer secrets"}, 401),
    ({"authorization": "secret"}, 401),
    ({"authorization": "Basic secret"}, 401),
    ({"authorization": "Bearer # a comment"}, 401),
    ({"x-api-key": ""}, 401),
    ({"x-api-key": "x" * 30_000}, 401),
    ({"cookie": "x-api-key=secret"}, 401),
    ({"api-key": "secret"}, 401),
]


@pytest.mark.parametrize(("headers", "status"), KEY_HEADERS)
def test_key_is_accepted_in_two_headers(
    guarded_server: RunningServer, headers: dict[str, str], status: int
) -> None:
    response = httpx.get(f"{guarded_server.url}/v1/models", headers=headers)
    assert response.status_code == status


def test_key_can_be_any_bytes(guarded_server: RunningServer) -> None:
    with httpx.Client(base_url=guarded_server.url) as client:
        right = client.get("/v1/models", headers={b"x-api-key": "sk-é".encode()})
        wrong = client.get("/v1/models", headers={b"x-api-key": b"sk-\xff\x80"})
    assert (right.status_code, wrong.status_code) == (200, 401)


def test_key_in_the_query_string_is_ignored(guarded_server: RunningServer) -> None:
    assert httpx.get(f"{guarded_server.url}/v1/models?api_key=secret&key=secret").status_code == 401


def test_key_file_is_reloaded_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n")
    with serve_scripted(ScriptedEngine("x"), api_key_file=str(file)) as server:

        def is_allowed(key: str) -> bool:
            headers = {"x-api-key": key}
            return httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200

        assert is_allowed("one")
        file.write_text("two, longer\n")
        poll_until(lambda: not is_allowed("one"))
        assert is_allowed("two, longer")


ADMIN_ROUTES = [route for route in ROUTES if route.access == "admin"]


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=route_name)
def test_admin_routes_need_an_admin_key(guarded_server: RunningServer, route: Route) -> None:
    assert send_to(guarded_server, route).status_code == 401
    plain = send_to(
        guarded_server, route, headers={"x-api-key": "secret"}, json={"model": "scripted"}
    )
    assert plain.status_code == 403
    assert check_error(plain, route)["code"] in ("forbidden", None)
    admin = send_to(
        guarded_server, route, headers={"x-api-key": "boss"}, json={"model": "scripted"}
    )
    assert admin.status_code in (200, 400)


def test_admin_routes_are_forbidden_with_keys_but_no_admin_key() -> None:
    with serve_scripted(ScriptedEngine("x"), api_key=("secret",)) as server:
        for route in ADMIN_ROUTES:
            response = send_to(server, route, headers={"x-api-key": "secret"}, json={"model": "x"})
            assert response.status_code == 403
            assert "--admin-key" in check_error(response, route)["message"]


@pytest.fixture(scope="module", params=[(), ("boss",)], ids=["no admin key", "admin key"])
def open_server(request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, bool]]:
    """A server that everyone may use, and whether it has an admin key."""
    options = {"host": "0.0.0.0", "allow_open": True, "admin_key": request.param}
    with serve_scripted(ScriptedEngine("Hello there!"), **options) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        yield server, bool(request.param)


@pytest.mark.parametrize("route", ROUTES, ids=route_name)
def test_an_open_server_asks_for_a_key_on_admin_routes_alone(
    open_server: tuple[RunningServer, bool], route: Route
) -> None:
    server, has_admin_key = open_server
    responses = [send_to(server, route, headers=headers) for headers in ({}, {"x-api-key": "any"})]
    if route.access != "admin":
        assert not {response.status_code for response in responses} & {401, 403}
        return
    if has_admin_key:
        assert [response.status_code for response in responses] == [401, 403]
        headers = {"x-api-key": "boss"}
        allowed = send_to(server, route, headers=headers, json={"model": "scripted"})
        assert allowed.status_code in (200, 400)
        return
    for response in responses:
        assert response.status_code == 403
        assert "--admin-key" in check_error(response, route)["message"]


def test_a_server_for_this_machine_needs_no_admin_key() -> None:
    with serve_scripted(ScriptedEngine("x")) as server:
        for route in ADMIN_ROUTES:
            response = send_to(server, route, json={"model": "scripted"})
            assert response.status_code in (200, 400)


def test_a_mounted_app_needs_an_admin_key() -> None:
    async def send(**options: Any) -> list[int]:
        app = dragoman.app(ScriptedEngine("x"), name="scripted", **options)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return [
                (
                    await client.request(
                        route.method,
                        make_path(route),
                        json={"model": "scripted"},
                        headers={"x-api-key": "boss"},
                    )
                ).status_code
                for route in ADMIN_ROUTES
            ]

    assert set(asyncio.run(send())) == {403}
    assert set(asyncio.run(send(admin_key=("boss",)))) <= {200, 400}


HOSTS = [
    ("127.0.0.1", 200),
    ("localhost:8000", 200),
    ("LOCALHOST", 200),
    ("[::1]:80", 200),
    ("evil.example", 403),
    ("evil.example:8000", 403),
    ("127.0.0.1.evil.example", 403),
    ("localhost.", 403),
    ("a/?x=", 400),
    ("a@b", 400),
    ("local host", 400),
    ("localhost:port", 400),
]
TWO_HOSTS = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n"


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_local_server_rejects_other_host_names(
    server: RunningServer, host: str, status: int
) -> None:
    response = httpx.get(f"{server.url}/v1/models", headers={"host": host})
    assert response.status_code == status
    if status != 200:
        check_error(response)


def test_two_host_headers_get_400(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(TWO_HOSTS)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:5", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[bad", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_web_page_of_another_origin_is_rejected(
    server: RunningServer, origin: str, status: int, method: str
) -> None:
    response = httpx.request(method, f"{server.url}/v1/models", headers={"origin": origin})
    assert (response.status_code == 403) == (status == 403)
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("host", ["a/?x=", "x/health/live?", "[::1]/docs"])
@pytest.mark.parametrize("route", ROUTES, ids=route_name)
def test_no_host_header_bypasses_the_key(
    guarded_server: RunningServer, route: Route, host: str
) -> None:
    response = send_to(guarded_server, route, headers={"host": host})
    assert response.status_code == 400


@pytest.mark.parametrize("route", ROUTES, ids=route_name)
def test_wrong_method_gets_405_with_an_error_object(server: RunningServer, route: Route) -> None:
    response = httpx.request("PATCH", f"{server.url}{make_path(route)}")
    assert response.status_code == 405
    assert check_error(response, route)["code"] in ("method_not_allowed", None)
    assert route.method in response.headers["allow"]
    assert WEBSOCKET not in response.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/", "/v3/models", "/v1/chat", "//", "/%00"]
)
def test_unknown_path_gets_404_with_an_error_object(server: RunningServer, path: str) -> None:
    response = httpx.get(f"{server.url}{path}")
    assert response.status_code == 404
    assert check_error(response)["code"] == "not_found"


BODY_ROUTES = [
    route
    for route in ROUTES
    if route.request_type is not None and route.body_type == "application/json"
]


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_name)
@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "text/html"])
def test_wrong_content_type_gets_415(server: RunningServer, route: Route, kind: str) -> None:
    response = send_to(server, route, content=b"{}", headers={"content-type": kind})
    assert response.status_code == 415
    check_error(response, route)


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_name)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model": NaN}', b'{"model": "\\ud800"}', b"1"]
)
def test_invalid_body_gets_400(server: RunningServer, route: Route, body: bytes) -> None:
    response = send_to(server, route, content=body)
    assert response.status_code == 400
    check_error(response, route)


def test_every_path_exists_without_v1() -> None:
    for route in ROUTES:
        if route.path.startswith("/v1/"):
            assert len(list_path_variants(route.path)) == 2


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_models_are_listed_with_and_without_v1(server: RunningServer, path: str) -> None:
    listing = httpx.get(f"{server.url}{path}").json()
    assert listing["object"] == "list"
    assert listing["data"][0]["id"] == "scripted"
    assert listing["data"][0]["object"] == "model"
    assert isinstance(listing["data"][0]["created"], int)
    assert listing == httpx.get(f"{server.url}{path}").json()  # created is stable


def test_anthropic_clients_get_their_own_model_list(server: RunningServer) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listing = httpx.get(f"{server.url}/v1/models", headers=headers).json()
    assert listing["data"][0]["type"] == "model"
    assert listing["first_id"] == listing["last_id"] == "scripted"
    assert listing["has_more"] is False


def test_model_id_may_contain_slashes_and_colons() -> None:
    with serve_scripted(ScriptedEngine("x"), name="owner/model:7b") as server:
        card = httpx.get(f"{server.url}/v1/models/owner/model:7b").json()
        assert card["id"] == "owner/model:7b"
        encoded = httpx.get(f"{server.url}/v1/models/owner%2Fmodel%3A7b").json()
        assert encoded == card
        missing = httpx.get(f"{server.url}/v1/models/owner/other")
        assert missing.status_code == 404
        assert check_error(missing)["code"] == "model_not_found"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/metrics", "/health/live", "/?beta=true"])
def test_probes_get_200(server: RunningServer, method: str, path: str) -> None:
    response = httpx.request(method, f"{server.url}{path}")
    assert response.status_code == 200
    if method == "HEAD":
        assert response.content == b""


def test_unknown_query_fields_are_ignored(server: RunningServer) -> None:
    for query in ("?beta=true", "?", "?&&=%zz"):
        response = httpx.post(f"{server.url}/v1/chat/completions{query}", json=make_chat())
        assert response.status_code == 200


REQUEST_IDS = [
    ("my-id.1:2", True),
    ("x" * 128, True),
    ("x" * 129, False),
    ("two words", False),
    ("", False),
    ("<script>", False),
]


@pytest.mark.parametrize(("request_id", "accepted"), REQUEST_IDS)
def test_wellformed_request_id_is_returned(
    server: RunningServer, request_id: str, accepted: bool
) -> None:
    response = httpx.get(f"{server.url}/health/live", headers={"x-request-id": request_id})
    assert (response.headers["x-request-id"] == request_id) == accepted


@pytest.mark.parametrize("key", ["", "  "])
def test_empty_key_is_rejected_at_startup(key: str) -> None:
    for option in ("api_key", "admin_key"):
        with pytest.raises(config.SettingsError, match="empty"):
            make_scripted_app(**{option: (key,)})


def test_unknown_option_is_rejected_at_startup() -> None:
    with pytest.raises(config.SettingsError, match="api_keys"):
        make_scripted_app(api_keys=("secret",))
    with pytest.raises(config.SettingsError, match="port"):
        make_scripted_app(port=99_999)


def test_compressed_body_gets_415(server: RunningServer) -> None:
    response = httpx.post(
        f"{server.url}/v1/chat/completions",
        content=b"\x1f\x8b",
        headers={"content-encoding": "gzip", "content-type": "application/json"},
    )
    assert response.status_code == 415


def test_configured_hosts_are_allowed() -> None:
    with serve_scripted(ScriptedEngine("x"), allowed_host=("Example.com:80", "other")) as server:
        for host, status in (("example.com", 200), ("OTHER:9", 200), ("third", 403)):
            response = httpx.get(f"{server.url}/v1/models", headers={"host": host})
            assert response.status_code == status


def list_operations(path: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for method, operation in path.items() if not method.startswith("x-")]


def test_openapi_document_lists_exactly_the_routes(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    listing = {
        (method.removeprefix("x-").upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert listing == {(route.method, route.path.replace("...}", "}")) for route in ALL_ROUTES}
    for path, methods in document["paths"].items():
        for operation in list_operations(methods):
            parameters = operation.get("parameters", [])
            names = [field["name"] for field in parameters if field["in"] == "path"]
            assert names == re.findall(r"\{(\w+)\}", path)
    ids = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in list_operations(methods)
    ]
    assert len(ids) == len(set(ids))
    assert document["openapi"].startswith("3.")
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "top_k", "lora", "grammar", "tool_choice"} <= set(fields)


def test_docs_page_loads_nothing_from_other_hosts(server: RunningServer) -> None:
    page = httpx.get(f"{server.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=|https?://|@import", page.text)


WARNINGS: list[tuple[list[str], list[str]]] = [
    ([], []),
    (["`a` is not enforced.", "`b` neither."], ["`a` is not enforced.", "`b` neither."]),
    (["twice", "twice"], ["twice"]),
    (["a\r\nset-cookie: x=1\0", "é\ud800😀"], ["a??set-cookie: x=1?", "???"]),
    (["x" * 301], ["x" * 300]),
    ([str(i) for i in range(20)], [str(i) for i in range(16)]),
]


@pytest.mark.parametrize(("warnings", "values"), WARNINGS)
def test_warning_header_is_printable_ascii(warnings: list[str], values: list[str]) -> None:
    expected = [(b"x-dragoman-warning", value.encode()) for value in values]
    assert make_warning_headers(warnings) == expected


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", make_chat()),
        ("completions", {"model": "scripted", "prompt": "hi"}),
    ],
)
def test_ignored_fields_are_reported_in_a_header(
    path: str, fields: dict[str, Any], streamed: bool
) -> None:
    fields = fields | {"choice": ["yes", "no"], "stream": streamed}
    with serve_scripted(ScriptedEngine("yes", grammars=True)) as server:
        for ignored, count in (({}, 0), ({"response_format": {"type": "json_object"}}, 1)):
            response = httpx.post(f"{server.url}/v1/{path}", json=fields | ignored)
            assert response.status_code == 200
            warnings = response.headers.get_list("x-dragoman-warning")
            assert len(warnings) == count
            assert all(
                "`response_format`" in warning and "`choice`" in warning for warning in warnings
            )
