"""Keys, hosts and ids: every route of the live table, with every way to send a key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from dragoman.testing import ScriptedEngine
from tests.support.hostile_http import (
    ADMIN,
    HANDSHAKE,
    KEYS,
    OTHER,
    USER,
    Headers,
    HostileServer,
    RawResponse,
    make_path,
    name_route,
    serve_hostile,
)
from tests.support.hostile_samples import OPEN_PATHS, SAMPLES, list_samples, takes_body
from tests.support.paths import ROOT
from tests.support.serving import make_scripted_app

ROUTES = make_scripted_app().router.routes
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
every_route = pytest.mark.parametrize("route", ROUTES, ids=name_route)

# Headers of a request without a valid key, by name.
NO_ACCESS: dict[str, Headers] = {
    "no key": [],
    "wrong bearer": [("authorization", "Bearer wrong")],
    "wrong x-api-key": [("x-api-key", "wrong")],
    "two wrong ones": [("authorization", "Bearer wrong"), ("x-api-key", "wrong")],
    "no scheme": [("authorization", USER)],
    "basic": [("authorization", "Basic dXNlci1rZXk6")],
    "api-key": [("api-key", USER)],
    "cookie": [("cookie", f"x-api-key={USER}; authorization=Bearer {USER}")],
    "forwarded": [("x-forwarded-for", "127.0.0.1"), ("x-real-ip", "127.0.0.1")],
    "start of a key": [("x-api-key", USER[:-1])],
    "more than a key": [("x-api-key", USER + "s")],
    "two keys in one": [("x-api-key", f"wrong,{USER}")],
    "empty": [("x-api-key", ""), ("authorization", "Bearer ")],
    "non-ascii": [("authorization", b"Bearer sk-\xc3\xa9"), ("x-api-key", b"\xff\xfe\x80")],
    "20 KB": [("x-api-key", "k" * 20_000)],
    "SQL": [("authorization", "Bearer ' OR 1=1 --")],
}
UNPARSED: dict[str, Headers] = {
    "NUL": [("x-api-key", b"user-key\0")],
    "64 KB": [("x-api-key", "k" * 65_536)],
}
HOSTS = [
    *("a/?x=", "a/health/live?", "[::1]/docs", "localhost/..//", "local host", "localhost:port"),
    *("localhost\\@evil.example", "user@localhost", "localhost#", "%6cocalhost", "[::1", "a,b"),
]
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "0"),
    *("localhost.", "2130706433", "0x7f000001", "127.1", "[::ffff:127.0.0.1]", "10.0.0.1"),
    "169.254.169.254",
]


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with serve_hostile(ScriptedEngine("Hello there!", tokens=True), **KEYS) as hostile:
        yield hostile


def attack(
    server: HostileServer,
    route: Route,
    headers: Headers,
    *,
    method: str | None = None,
    streamed: bool = False,
    has_host: bool = False,
    query: str = "",
    authority: str = "",
) -> RawResponse:
    """Send the sample of a route, over a WebSocket where the route is one.

    `authority` makes the target an absolute one.
    """
    body = b""
    method = method or route.method
    if method == WEBSOCKET:
        method, headers = "GET", [*headers, *HANDSHAKE.items()]
    elif takes_body(route):
        body = json.dumps({**SAMPLES[route.path], "stream": streamed}).encode()
    path = authority + make_path(route) + query
    return server.send_raw(method, path, headers, body, has_host=has_host)


def get_refusal(route: Route) -> set[int]:
    return {200} if route.path in OPEN_PATHS else {401}


def test_tables_cover_the_live_routes(server: HostileServer) -> None:
    """A new route that reads a body needs a sample; all else is taken from the table itself."""
    assert {name_route(route) for route in server.routes} == {name_route(route) for route in ROUTES}
    posts = {route.path for route in ROUTES if route.method in ("POST", "PUT", "PATCH")}
    assert posts == set(SAMPLES)
    assert {route.path for route in ROUTES if route.access == "open"} == OPEN_PATHS
    for sample in list_samples(ROUTES):
        path = make_path(sample.route)
        key = ADMIN if sample.route.access == "admin" else USER
        status = server.send("POST", path, key=key, json=sample.body).status_code
        assert status in ({404} if sample.route.parameters else {200, 400}), sample


@every_route
def test_hole_62_every_route_needs_a_key(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    count = 0
    for streamed in (False, True) if route.streams else (False,):
        for name, headers in NO_ACCESS.items():
            status = attack(server, route, headers, streamed=streamed).status
            assert status in get_refusal(route), name
            count += 1
    count_cases(count)


@every_route
@pytest.mark.parametrize("carrier", ["authorization", "x-api-key"])
def test_hole_62_a_valid_key_is_accepted_where_wrong_ones_are_not(
    server: HostileServer, route: Route, carrier: str
) -> None:
    key = ADMIN if route.access == "admin" else USER
    value = f"Bearer {key}" if carrier == "authorization" else key
    assert attack(server, route, [(carrier, value)]).status not in (401, 403)


# Headers with two different keys, of which at least one is valid.
TWO_KEYS: list[Headers] = [
    [("authorization", f"Bearer {USER}"), ("x-api-key", OTHER)],
    [("x-api-key", USER), ("authorization", f"Bearer {ADMIN}")],
    [("authorization", f"Bearer {ADMIN}"), ("authorization", f"Bearer {USER}")],
    [("x-api-key", ADMIN), ("x-api-key", OTHER)],
    [("authorization", "Bearer wrong"), ("x-api-key", ADMIN)],
    [("authorization", f"Bearer {ADMIN}"), ("x-api-key", "wrong")],
]


@every_route
def test_hole_62_two_different_keys_are_refused(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    for headers in TWO_KEYS:
        answer = attack(server, route, headers)
        assert answer.status in get_refusal(route), headers
        if answer.status == 401:
            assert b"two different API keys" in answer.body
    key = ADMIN if route.access == "admin" else USER
    for empty in ("", " "):  # which names no key
        both = [("authorization", f"Bearer {key}"), ("x-api-key", empty)]
        assert attack(server, route, both).status not in (401, 403)
    count_cases(len(TWO_KEYS) + 2)


@every_route
def test_hole_62_no_method_avoids_the_key(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    for method in METHODS:
        status = attack(server, route, [], method=method).status
        is_open = route.path in OPEN_PATHS and method in ("GET", "HEAD")
        assert status == (200 if is_open else 401), method
    count_cases(len(METHODS))


@every_route
def test_hole_62_no_spelling_of_a_path_avoids_the_key(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    """Paths that are almost the route, or almost an open one."""
    path = make_path(route)
    spellings = [
        *(
            path.upper(),
            path + "/",
            "/" + path,
            path + "%00",
            path + ";a",
            path + "?api_key=" + USER,
        ),
        *("/health/live/.." + path, "/docs/..%2f" + path, path.replace("/", "//"), "." + path),
        *(path.replace("/", "%2f"), path.replace("/", "\\"), "/health/live%2f..%2f.." + path),
        f"http://localhost{path}",
    ]
    for spelling in spellings:
        response = server.send_raw(route.method.replace(WEBSOCKET, "GET"), spelling)
        is_open = response.status == 200 and route.path in OPEN_PATHS
        assert response.status in (401, 400) or is_open, spelling
    count_cases(len(spellings))


@every_route
def test_hole_63_keys_of_any_bytes_are_refused_like_others(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    for name, headers in UNPARSED.items():
        status = attack(server, route, headers).status
        assert status in {401, 400, 431} | get_refusal(route), name
    count_cases(len(UNPARSED))


@every_route
def test_hole_60_no_host_header_moves_the_path(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    key = ("x-api-key", ADMIN)
    for hosts in ([], *([("host", host)] for host in HOSTS)):
        for headers in (hosts, [*hosts, key]):
            assert attack(server, route, headers, has_host=True).status == 400, hosts
    count_cases(2 + 2 * len(HOSTS))


@every_route
def test_hole_61_no_host_header_opens_a_route(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    """Headers by which proxies name the host or the path have no effect on the key."""
    spellings: list[Headers] = [
        [("host", "localhost"), ("host", "localhost")],
        [("host", "localhost"), ("host", "evil.example")],
        [("host", "")],
        [("host", "localhost"), ("x-forwarded-host", "localhost/health/live?")],
        [("host", "localhost"), ("x-original-url", "/health/live")],
        [("host", "localhost"), ("x-rewrite-url", "/health/live")],
        [("host", "localhost"), ("x-forwarded-prefix", "/health/live")],
        [("host", "localhost"), ("x-http-method-override", "HEAD")],
    ]
    for headers in spellings:
        status = attack(server, route, headers, has_host=True).status
        assert status in get_refusal(route) | {400, 403}, headers
    count_cases(len(spellings))


@every_route
def test_hole_61_the_host_of_an_absolute_target_replaces_the_header(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    """RFC 9112, section 3.2.2: `GET http://host/path` is a request to that host."""
    key = ("x-api-key", ADMIN if route.access == "admin" else USER)
    for host in FOREIGN_HOSTS:
        for scheme in ("http", "HTTPS"):
            response = attack(server, route, [key], authority=f"{scheme}://{host}")
            assert response.status == 403, host
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        headers = [("host", host), key]
        for own in ("http://localhost", "HTTP://LOCALHOST:80", "https://127.0.0.1:1"):
            status = attack(server, route, headers, authority=own, has_host=True).status
            assert status not in (400, 401, 403) or status == attack(server, route, [key]).status
        assert attack(server, route, [], authority="http://localhost").status in get_refusal(route)
    for authority in INVALID_AUTHORITIES:
        assert attack(server, route, [key], authority=authority).status == 400, authority
    for hosts in ([], [("host", "localhost"), ("host", "localhost")], [("host", "a b")]):
        headers = [*hosts, key]
        status = attack(server, route, headers, authority="http://localhost", has_host=True).status
        assert status == 400, hosts
    count_cases(2 * len(FOREIGN_HOSTS) + 12 + len(INVALID_AUTHORITIES) + 3)


INVALID_AUTHORITIES = [
    *("http://", "http://localhost@evil.example", "http://evil.example@localhost", "http://@"),
    *("http://user:password@localhost", "ftp://localhost", "ws://localhost", "file://localhost"),
    *("http://localhost:999999", "http://localhost\\@evil.example", "http://[::1", "http:"),
    *("http://local%68ost", "http://localhost,evil.example"),
]


@every_route
def test_hole_70_other_hosts_and_origins_are_refused(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    """As a page would send them whose name points to this machine: with the user's key."""
    pairs: list[tuple[str, str | None]] = [(host, None) for host in FOREIGN_HOSTS]
    pairs += [("localhost", origin) for origin in ORIGINS]
    count = 0
    for method in (route.method,) if route.method == WEBSOCKET else METHODS:
        for host, origin in pairs:
            origins = [] if origin is None else [("origin", origin)]
            headers = [("host", host), ("x-api-key", ADMIN), *origins]
            response = attack(server, route, headers, method=method, has_host=True)
            assert response.status == 403, (method, host, origin)
            assert not any(name.startswith("access-control-") for name in response.headers)
            count += 1
    count_cases(count)


ORIGINS = [
    "https://evil.example",
    "null",
    "http://[bad",
    "file://",
    "http://localhost.evil.example",
]


def test_hole_96_models_are_not_listed_without_a_key(server: HostileServer) -> None:
    for path in ("/v1/models", "/models", "/v1/models/scripted", "/tokenizer_info", "/metrics"):
        for headers in ({}, {"anthropic-version": "2023-06-01"}, {"x-api-key": "wrong"}):
            response = server.send("GET", path, headers=headers)
            assert response.status_code == 401
            assert "scripted" not in response.text.replace(path, "")


@every_route
def test_hole_65_ordinary_keys_are_refused_on_admin_routes(
    server: HostileServer, route: Route
) -> None:
    """Keys × routes: none, user, admin. Only `access="admin"` routes tell user and admin apart."""
    statuses = [
        attack(server, route, [] if key is None else [("x-api-key", key)]).status
        for key in (None, USER, ADMIN)
    ]
    if route.access == "admin":
        assert statuses[:2] == [401, 403]
        assert statuses[2] not in (401, 403)
    elif route.access == "key":
        assert statuses[0] == 401
        assert not {401, 403} & set(statuses[1:])


COMMAND_FIELDS = re.compile(r"command|argv?s?|env|cwd|shell|stdio|script|executable|binary")


def test_hole_65_no_route_takes_a_command(server: HostileServer) -> None:
    document = server.send("GET", "/openapi.json", key=USER).json()
    names = {
        name
        for schema in document["components"]["schemas"].values()
        for name in schema.get("properties", {})
    }
    assert not {name for name in names if COMMAND_FIELDS.fullmatch(name)}
    tool = {"type": "mcp", "server_label": "a", "command": "touch", "args": ["/tmp/canary"]}
    response = server.send(
        "POST", "/v1/responses", key=USER, json={**SAMPLES["/v1/responses"], "tools": [tool]}
    )
    assert response.status_code == 400


INJECTIONS = [
    "' OR '1'='1",
    "'; DROP TABLE responses; --",
    '" OR ""="',
    "1 UNION SELECT body FROM responses",
    "admin'--",
    "\\' OR 1=1 --",
    "%27 OR 1=1",
    "') OR ('a'='a",
    "1; SELECT pg_sleep(10)",
    "' AND randomblob(100000000) --",
    "a' || (SELECT key FROM keys) || '",
    "*",
    "%",
    "_",
]


def test_hole_64_no_key_is_part_of_a_query(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    for text in INJECTIONS:
        for header, value in (("authorization", f"Bearer {text}"), ("x-api-key", text)):
            for path in ("/v1/models", "/v1/responses/resp_1", "/v1/chat/completions"):
                assert server.send("GET", path, headers={header: value}).status_code == 401
    count_cases(6 * len(INJECTIONS))


ID_ROUTES = [route for route in ROUTES if "id" in route.parameters]


@pytest.mark.parametrize("route", ID_ROUTES, ids=name_route)
def test_hole_64_no_id_is_part_of_a_query(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    for text in INJECTIONS:
        path = re.sub(r"\{\w+\}", quote_all(text).replace("\\", ""), route.path)
        response = server.send(route.method, path, key=USER, json=SAMPLES.get(route.path))
        assert response.status_code == 404, text
    count_cases(len(INJECTIONS))


def quote_all(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


# Ids of another owner


def create_objects(server: HostileServer) -> dict[str, dict[str, str]]:
    """Create what USER owns: the parameters of its ids, by the first segments of the path."""
    chat = server.send(
        "POST",
        "/v1/chat/completions",
        key=USER,
        json={**SAMPLES["/v1/chat/completions"], "store": True, "metadata": {"secret": "a"}},
    ).json()
    response = server.send("POST", "/v1/responses", key=USER, json=SAMPLES["/v1/responses"]).json()
    conversation = server.send(
        "POST", "/v1/conversations", key=USER, json=SAMPLES["/v1/conversations"]
    ).json()
    items = server.send("GET", f"/v1/conversations/{conversation['id']}/items", key=USER).json()
    file = server.send(
        "POST", "/v1/files", key=USER, data={"purpose": "batch"}, files={"file": make_line()}
    ).json()
    batch = server.send(
        "POST", "/v1/batches", key=USER, json=SAMPLES["/v1/batches"] | {"input_file_id": file["id"]}
    ).json()
    return {
        "/v1/files": {"id": file["id"]},
        "/v1/batches": {"id": batch["id"]},
        "/v1/chat/completions": {"id": chat["id"]},
        "/v1/responses": {"id": response["id"], "item": response["output"][0]["id"]},
        "/v1/conversations": {"id": conversation["id"], "item": items["data"][0]["id"]},
    }


def make_line() -> bytes:
    """Make the input file of a batch."""
    path = "/v1/chat/completions"
    line = {"custom_id": "a", "method": "POST", "url": path, "body": SAMPLES[path]}
    return json.dumps(line).encode()


def fill_path(route: Route, objects: dict[str, dict[str, str]]) -> str:
    [values] = [values for prefix, values in objects.items() if route.path.startswith(prefix)]
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], route.path)


@pytest.mark.parametrize("route", ID_ROUTES, ids=name_route)
def test_hole_69_ids_of_another_key_do_not_exist(server: HostileServer, route: Route) -> None:
    """The same answer as for an id that does not exist; the object stays as it was."""
    objects = create_objects(server)
    path = fill_path(route, objects)
    body = SAMPLES.get(route.path)
    for key in (OTHER, ADMIN):
        response = server.send(route.method, path, key=key, json=body)
        assert response.status_code == 404
        absent = server.send(route.method, make_absent(path), key=key, json=body)
        known = response.text.replace(path, make_absent(path))
        assert strip_ids(known) == strip_ids(absent.text)
    for prefix, values in objects.items():
        path = f"{prefix}/{values['id']}"
        assert server.send("GET", path, key=USER).status_code == 200


def make_absent(path: str) -> str:
    return re.sub(r"[0-9a-f]{8}", "00000000", path)


def strip_ids(text: str) -> str:
    return re.sub(r"[a-z]+_\w{16,}|chatcmpl-\w+|file-\w+", "ID", text)


REFERENCES: list[tuple[str, Callable[[dict[str, dict[str, str]]], dict[str, Any]]]] = [
    ("/v1/responses", lambda ids: {"previous_response_id": ids["/v1/responses"]["id"]}),
    ("/v1/responses", lambda ids: {"conversation": ids["/v1/conversations"]["id"]}),
    (
        "/v1/responses",
        lambda ids: {"input": [{"type": "item_reference", "id": ids["/v1/responses"]["item"]}]},
    ),
    ("/v1/responses/compact", lambda ids: {"previous_response_id": ids["/v1/responses"]["id"]}),
    (
        "/v1/responses/input_tokens",
        lambda ids: {"previous_response_id": ids["/v1/responses"]["id"]},
    ),
    ("/v1/responses/input_tokens", lambda ids: {"conversation": ids["/v1/conversations"]["id"]}),
    ("/v1/batches", lambda ids: {"input_file_id": ids["/v1/files"]["id"]}),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "make_fields"), REFERENCES)
def test_hole_69_ids_of_another_key_in_a_body_do_not_exist(
    server: HostileServer, path: str, make_fields: Any, streamed: bool
) -> None:
    objects = create_objects(server)
    fields = make_fields(objects) | ({"stream": True} if streamed and path[-1] == "s" else {})
    for key in (OTHER, ADMIN):
        response = server.send("POST", path, key=key, json={**SAMPLES[path], **fields})
        assert response.status_code in (400, 404)
    assert server.send("POST", path, key=USER, json={**SAMPLES[path], **fields}).status_code == 200


def test_hole_69_lists_contain_no_objects_of_another_key(server: HostileServer) -> None:
    create_objects(server)
    for path in ("/v1/chat/completions", "/v1/files", "/v1/batches"):
        for key in (OTHER, ADMIN):
            assert server.send("GET", path, key=key).json()["data"] == []
        assert server.send("GET", path, key=USER).json()["data"]


# Routes that must not exist

FORBIDDEN_WORDS = re.compile(
    r"exec|job|log|file|upload|pull|delete|copy|create|blob|push|worker|register|config|weights|"
    r"abort|pause|sleep|profile|debug|shell|eval|lora|slots|invocations|score|redirect|prompts"
)


# paths with such a word, and where they are attacked
REVIEWED_PATHS = {
    "/v1/files": "tests/http/test_files.py",  # rows of the store, never a path
    "/v1/score": "tests/http/test_rerank.py",  # of texts
    **dict.fromkeys(
        ("/api/pull", "/api/create", "/api/copy", "/api/delete", "/api/blobs"),
        "tests/http/test_ollama_models.py",  # with an admin key, and never a path
    ),
}


def test_hole_71_no_route_runs_jobs_or_reads_files(server: HostileServer) -> None:
    """A new path with one of these words needs a look at this file, and a test."""
    for route in server.routes:
        if not route.path.startswith(tuple(REVIEWED_PATHS)):
            assert not FORBIDDEN_WORDS.search(route.path), route.path
    assert all((ROOT / path).exists() for path in REVIEWED_PATHS.values())


# every route that downloads, changes, deletes or loads models
MODEL_ROUTES = {
    ("POST", "/admin/models/load"),
    ("POST", "/admin/models/unload"),
    ("POST", "/admin/adapters/load"),  # of a directory of the server
    ("POST", "/admin/adapters/unload"),
    ("POST", "/api/pull"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("GET", "/api/blobs/{digest}"),
    ("POST", "/api/blobs/{digest}"),
}


def test_hole_73_models_are_changed_with_an_admin_key_only(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    """A new admin route needs a line in the table above."""
    routes = [route for route in server.routes if route.access == "admin"]
    assert {(route.method, route.path) for route in routes} == MODEL_ROUTES
    for route in routes:
        for headers in NO_ACCESS.values():
            assert attack(server, route, headers).status == 401
        assert attack(server, route, [("x-api-key", USER)]).status == 403
    count_cases(len(routes) * (len(NO_ACCESS) + 1))


def test_hole_73_loading_downloads_nothing(server: HostileServer) -> None:
    for name in ("hf.co/a/b", "https://example.com/m.gguf", "smollm2-135m", "ollama.com/library/x"):
        for action in ("load", "unload"):
            response = server.send(
                "POST", f"/admin/models/{action}", key=ADMIN, json={"model": name}
            )
            assert response.status_code == 404


@every_route
def test_hole_74_no_route_redirects(server: HostileServer, route: Route) -> None:
    for query in ("?next=//evil.example", "?url=http://evil.example", "?redirect=/docs", ""):
        for host in ("localhost", "127.0.0.1"):
            headers: Headers = [("host", host), ("x-api-key", ADMIN)]
            response = attack(server, route, headers, has_host=True, query=query)
            assert not 300 <= response.status < 400
            assert "location" not in response.headers
