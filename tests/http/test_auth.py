"""Keys over HTTP: scopes on every route, limits over all routes, owners, and what is recorded."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import dragoman
from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from dragoman.keys.digests import format_hash, make_key_owner
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Capabilities
from tests.support.faulty_engines import MinimalEngine
from tests.support.hostile_http import (
    ADMIN,
    HANDSHAKE,
    Headers,
    HostileServer,
    make_path,
    name_route,
    serve_hostile,
)
from tests.support.hostile_samples import SAMPLES, make_websocket_message
from tests.support.logs import collect_logs
from tests.support.serving import (
    make_chat,
    make_scripted_app,
    poll_until,
    run_app,
    serve_scripted,
)
from tests.support.timing import measures_time

ROUTES = make_scripted_app().router.routes
GUARDED = [route for route in ROUTES if route.access != "open"]
GROUPS = sorted({route.name.group for route in GUARDED} - {"admin"})
PATTERNS = {
    "paths": ["/v1/chat/*", "/tokenize", "/responses/{id}"],
    "methods": ["GET models", "POST /v1/responses"],
    "none": [],
}
REVOKED, EXPIRED = "key-of-nobody", "key-of-expired"
CHAT = "/v1/chat/completions"
TEXT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@contextmanager
def serve(engine: Any = "Hello there!", **options: Any) -> Iterator[HostileServer]:
    """Serve a scripted engine; every response is checked for its form and for leaks."""
    options = {"admin_key": (ADMIN,), "store": "sqlite://", **options}
    with serve_scripted(engine, **options) as running:
        server = HostileServer(running)
        with server.client:
            yield server
            server.check_alive()


def make_entries() -> list[dict[str, Any]]:
    """One key for each group of routes, and some others."""
    entries: list[dict[str, Any]] = [
        {"name": group, "key": f"key-of-{group}", "routes": [group]} for group in GROUPS
    ]
    entries += [
        {"name": name, "key": f"key-of-{name}", "routes": routes}
        for name, routes in PATTERNS.items()
    ]
    entries += [
        {"name": "all", "hash": format_hash("key-of-all")},
        {"name": "expired", "key": EXPIRED, "expires": "2020-01-01"},
        {"name": "boss", "key": "key-of-boss", "admin": True},
        {"name": "only-admin", "key": "key-of-only-admin", "admin": True, "routes": ["admin"]},
    ]
    return entries


def is_allowed(name: str, route: Route) -> bool:
    """Whether a key may use a route, by its name; the rules are written out once more here."""
    admin = route.access == "admin"
    match name:
        case "boss":
            return True
        case "only-admin":
            return route.path.startswith("/admin/")
        case "all":
            return not admin
        case "paths":
            return route.path.startswith("/v1/chat/") or route.path in (
                "/tokenize",
                "/v1/responses/{id}",
            )
        case "methods":
            is_list = route.path.startswith("/v1/models") and route.method == "GET"
            return is_list or (route.method, route.path) == ("POST", "/v1/responses")
        case _:
            return (
                not admin
                and re.fullmatch(rf"(/v\d+)?/{re.escape(name)}(/.*)?", route.path) is not None
            )


WAYS: dict[str, Callable[[str], Headers]] = {
    "bearer": lambda key: [("authorization", f"Bearer {key}")],
    "x-api-key": lambda key: [("x-api-key", key)],
    "both": lambda key: [("authorization", f"Bearer {key}"), ("x-api-key", key)],
}


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with serve(key_entries=make_entries()) as server:
        yield server


def get_status(server: HostileServer, route: Route, headers: Headers) -> int:
    if route.method == WEBSOCKET:
        own = [*HANDSHAKE.items(), *headers]
        return server.send_raw("GET", make_path(route), own).status
    return server.send(
        route.method, make_path(route), headers=dict(headers), allowed=(500,)
    ).status_code


@pytest.mark.parametrize("route", GUARDED, ids=name_route)
def test_every_route_is_in_exactly_the_scopes_that_name_it(
    server: HostileServer, route: Route
) -> None:
    names = [*GROUPS, *PATTERNS, "all", "boss", "only-admin"]
    for way, make_headers in WAYS.items():
        for name in names:
            status = get_status(server, route, make_headers(f"key-of-{name}"))
            refused = status in (401, 403)
            assert refused is not is_allowed(name, route), (way, name, status)
        for key in (EXPIRED, REVOKED):
            assert get_status(server, route, make_headers(key)) == 401, (way, key)


def test_the_matrix_has_allowed_and_refused_cases_for_every_route() -> None:
    names = [*GROUPS, *PATTERNS, "all", "boss", "only-admin"]
    for route in GUARDED:
        assert len({is_allowed(name, route) for name in names}) == 2


def test_a_scope_that_names_no_route_is_an_error_at_start(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"
    file.write_text(
        "keys:\n  entries:\n    - name: a\n      key: long-and-random-0123456789\n"
        "      routes: [chatt]\n"
    )
    with pytest.raises(Exception, match=r"dragoman.yaml:3: `routes`: .* Did you mean `chat`\?"):
        make_scripted_app(config=str(file))


def test_an_expired_key_is_told_so(server: HostileServer) -> None:
    answer = server.send("GET", "/v1/models", key=EXPIRED)
    assert answer.status_code == 401
    assert answer.json()["error"]["message"].startswith("This API key has expired.")


# Models


ADMIN_PATHS = {route.path for route in ROUTES if route.access == "admin"}
MODEL_PATHS = [
    path for path, body in SAMPLES.items() if "model" in body and path not in ADMIN_PATHS
]
MODEL_SCOPES = [(["script*"], True), (["SCRIPTED"], True), (["alias"], True), (["other-*"], False)]


@pytest.fixture(scope="module")
def scoped() -> Iterator[HostileServer]:
    entries = [
        {"name": f"n{number}", "key": f"models-{number}", "models": models}
        for number, (models, _) in enumerate(MODEL_SCOPES)
    ]
    engine = ScriptedEngine([Reply("Hello there!")], tokens=True)
    with serve(engine, served_name=["alias"], key_entries=entries) as server:
        yield server


@pytest.mark.parametrize("path", MODEL_PATHS)
@pytest.mark.parametrize("model", ["scripted", "alias"])
def test_a_model_out_of_scope_does_not_exist(scoped: HostileServer, path: str, model: str) -> None:
    for number, (_, allowed) in enumerate(MODEL_SCOPES):
        body = SAMPLES[path] | {"model": model}
        answer = scoped.send("POST", path, key=f"models-{number}", json=body)
        unknown = scoped.send("POST", path, key=f"models-{number}", json=body | {"model": "none"})
        assert (answer.status_code == 404) is not allowed
        assert unknown.status_code == 404
        if not allowed:
            expected = unknown.text.replace("`none`", f"`{model}`").replace("'none'", f"'{model}'")
            assert strip_ids(answer.text) == strip_ids(expected)
            assert "scripted" not in unknown.text


def strip_ids(text: str) -> str:
    return re.sub(r"req_\w+", "", text)


def test_a_list_of_models_has_those_of_the_scope(scoped: HostileServer) -> None:
    for number, (_, allowed) in enumerate(MODEL_SCOPES):
        for headers in ({}, {"anthropic-version": "2023-06-01"}):
            listed = scoped.send("GET", "/v1/models", key=f"models-{number}", headers=headers)
            assert [card["id"] for card in listed.json()["data"]] == ["scripted"] * allowed
        card = scoped.send("GET", "/v1/models/scripted", key=f"models-{number}")
        assert card.status_code == (200 if allowed else 404)


def test_an_unnamed_model_is_the_default_one_and_needs_the_scope_too(scoped: HostileServer) -> None:
    for path in ("/infill", "/tokenize", "/tokenizer_info"):
        body = {name: value for name, value in SAMPLES.get(path, {}).items() if name != "model"}
        method = "POST" if body else "GET"
        for number, (_, allowed) in enumerate(MODEL_SCOPES):
            answer = scoped.send(method, path, key=f"models-{number}", json=body or None)
            assert (answer.status_code == 404) is not allowed


# Limits


def make_limited(**limits: Any) -> dict[str, Any]:
    entries = [
        {"name": "ann", "key": "ann-key", "limits": limits},
        {"name": "bob", "key": "bob-key"},
    ]
    return {"key_entries": entries}


ANN, BOB = {"authorization": "Bearer ann-key"}, {"authorization": "Bearer bob-key"}


def test_requests_of_all_routes_and_ways_count_together() -> None:
    with serve(**make_limited(requests_per_minute=6)) as server:
        statuses = [
            server.send("GET", "/v1/models", headers=ANN).status_code,
            server.send(
                "POST", CHAT, headers={"x-api-key": "ann-key"}, json=make_chat()
            ).status_code,
            server.send("POST", CHAT, headers=ANN, json={"model": "scripted"}).status_code,
            server.send("GET", "/v1/nothing", headers=ANN).status_code,
            server.send_raw("GET", "/v1/responses", [*HANDSHAKE.items(), *ANN.items()]).status,
            server.send("POST", "/admin/models/load", headers=ANN, json={}).status_code,
            server.send("GET", "/health", headers=ANN).status_code,
            server.send("GET", "/v1/models").status_code,
        ]
        assert statuses == [200, 200, 400, 404, 101, 403, 200, 401]
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/messages"), ("PUT", "/x")):
            refusal = server.send(method, path, headers=ANN)
            assert refusal.status_code == 429
            assert 1 <= int(refusal.headers["retry-after"]) <= 10
            assert "6 requests per minute" in refusal.json()["error"]["message"]
        handshake = [*HANDSHAKE.items(), *ANN.items()]
        assert server.send_raw("GET", "/v1/responses", handshake).status == 429


def test_headers_say_what_is_left_as_openai_and_anthropic_write_it() -> None:
    with serve(**make_limited(requests_per_minute=60, tokens_per_minute=6000)) as server:
        answer = server.send("POST", CHAT, headers=ANN, json=make_chat(max_tokens=100))
        headers = {k: v for k, v in answer.headers.items() if k.startswith("x-ratelimit-")}
        assert headers["x-ratelimit-limit-requests"] == "60"
        assert headers["x-ratelimit-remaining-requests"] == "59"
        assert headers["x-ratelimit-limit-tokens"] == "6000"
        assert 5800 <= int(headers["x-ratelimit-remaining-tokens"]) <= 5900
        for name in ("requests", "tokens"):
            assert re.fullmatch(r"(\d+m)?[\d.]+m?s", headers[f"x-ratelimit-reset-{name}"])
        body = SAMPLES["/v1/messages"]
        answer = server.send("POST", "/v1/messages", headers=ANN, json=body)
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "60"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "58"
        reset = answer.headers["anthropic-ratelimit-tokens-reset"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset)
        assert "x-ratelimit-limit-requests" not in answer.headers
        streamed = server.send("POST", CHAT, headers=ANN, json=make_chat(stream=True))
        assert streamed.headers["x-ratelimit-limit-tokens"] == "6000"
        assert "x-ratelimit-limit-tokens" not in server.send("GET", "/health").headers


TOKEN_ROUTES = [
    (CHAT, {**make_chat("x" * 40), "max_tokens": 50}),
    (CHAT, {**make_chat("x" * 40), "max_tokens": 50, "stream": True}),
    ("/v1/completions", {"model": "scripted", "prompt": "x" * 40, "max_tokens": 50}),
    ("/v1/messages", {**make_chat("x" * 40), "max_tokens": 50}),
    ("/v1/responses", {"model": "scripted", "input": "x" * 40, "max_output_tokens": 50}),
    ("/v1/embeddings", {"model": "scripted", "input": "x" * 40}),
]


def get_used_tokens(server: HostileServer) -> int:
    page = server.client.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"}).text
    match = re.search(r'^dragoman_key_tokens_total\{key="ann"\} (\S+)$', page, re.MULTILINE)
    assert match
    return int(float(match[1]))


def wait_for_tokens(server: HostileServer, before: int) -> int:
    """Wait until a request is settled, and return how many tokens it used."""
    poll_until(lambda: get_used_tokens(server) > before)
    return get_used_tokens(server) - before


def serve_tokens(*replies: Reply, **limits: Any) -> Any:
    engine = ScriptedEngine([*replies, Reply("Hello there!")], tokens=True)
    return serve(engine, chat_template=TEXT_TEMPLATE, **make_limited(**limits))


def test_tokens_of_all_routes_count_together_and_as_used() -> None:
    with serve_tokens(tokens_per_minute=2**20) as server:
        before = 0
        for path, body in TOKEN_ROUTES:
            answer = server.send("POST", path, headers=ANN, json=body)
            assert answer.status_code == 200
            used = wait_for_tokens(server, before)
            before += used
            if not body.get("stream"):
                usage = answer.json()["usage"]
                names = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
                assert used == sum(usage.get(name, 0) for name in names), (path, usage)
            assert 40 <= used <= 60
        remaining = server.send("GET", "/v1/models", headers=ANN).headers[
            "x-ratelimit-remaining-tokens"
        ]
        assert int(remaining) >= 2**20 - before


@pytest.mark.parametrize(("path", "body"), TOKEN_ROUTES)
def test_every_route_that_uses_tokens_is_limited(path: str, body: dict[str, Any]) -> None:
    with serve_tokens(tokens_per_minute=60 if "embed" in path else 100) as server:
        for _ in range(8):
            answer = server.send("POST", path, headers=ANN, json=body)
            if answer.status_code != 200:
                break
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "tokens per minute" in answer.json()["error"]["message"]
        assert server.send("POST", path, headers=BOB, json=body).status_code == 200


def test_invalid_requests_use_no_tokens() -> None:
    with serve_tokens(tokens_per_minute=100) as server:
        for _ in range(5):
            chat = make_chat("x" * 40, max_tokens=50, temperature=-3)
            assert server.send("POST", CHAT, headers=ANN, json=chat).status_code == 400
        chat = make_chat("x" * 40, max_tokens=50)
        assert server.send("POST", CHAT, headers=ANN, json=chat).status_code == 200
        assert get_used_tokens(server) <= 60


def test_a_request_that_never_fits_says_so_and_is_not_retried() -> None:
    with serve_tokens(tokens_per_minute=100) as server:
        answer = server.send("POST", CHAT, headers=ANN, json=make_chat("x" * 40, max_tokens=90))
        assert answer.status_code == 429
        assert answer.headers["x-should-retry"] == "false"
        assert "Limit its answers to 60 tokens in all" in answer.json()["error"]["message"]
        for limit, status in ((31, 429), (30, 200)):
            chat = make_chat("x" * 40, max_tokens=limit, n=2)
            assert server.send("POST", CHAT, headers=ANN, json=chat).status_code == status


def test_concurrent_requests_count_streams_websockets_and_background() -> None:
    engine = ScriptedEngine([Reply("One, two", when="hang", hang_at=2), Reply("Hello there!")])
    with serve(engine, **make_limited(concurrent_requests=1)) as server:

        def is_refused() -> bool:
            answer = server.send("POST", CHAT, headers=ANN, json=make_chat())
            assert answer.status_code in (200, 429)
            return answer.status_code == 429

        assert not is_refused()
        with server.client.stream(
            "POST", CHAT, headers=ANN, json=make_chat("hang", stream=True)
        ) as stream:
            frames = stream.iter_lines()  # held: httpx closes the stream with its iterator
            next(frames)
            assert is_refused()
            assert server.send("POST", CHAT, headers=BOB, json=make_chat()).status_code == 200
        poll_until(lambda: not is_refused())
        background = {"model": "scripted", "input": "hang", "background": True}
        started = server.send("POST", "/v1/responses", headers=ANN, json=background)
        assert started.status_code == 200
        assert is_refused()
        again = server.send("POST", "/v1/responses", headers=ANN, json=background)
        assert again.status_code == 429
        path = f"/v1/responses/{started.json()['id']}"
        assert server.send("GET", path, headers=ANN).json()["status"] != "completed"
        assert server.send("POST", f"{path}/cancel", headers=ANN).status_code == 200
        poll_until(lambda: not is_refused())
        url = server.url.replace("http", "ws") + "/v1/responses"
        with connect(url, additional_headers=ANN) as websocket:
            assert not is_refused()  # an idle WebSocket is no request
            message = make_websocket_message({"model": "scripted", "input": "hang"})
            websocket.send(json.dumps(message))
            json.loads(websocket.recv(timeout=20))
            assert is_refused()
        poll_until(lambda: not is_refused())


def test_messages_on_a_websocket_count_one_by_one() -> None:
    with serve_tokens(requests_per_minute=4, tokens_per_minute=1000) as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        with connect(url, additional_headers=ANN) as websocket:

            def create(**fields: Any) -> Any:
                body = {"model": "scripted", "input": "Hi", "max_output_tokens": 50, **fields}
                websocket.send(json.dumps(make_websocket_message(body)))
                while True:
                    event = json.loads(websocket.recv(timeout=20))
                    if event["type"] in ("response.completed", "error"):
                        return event

            assert create()["type"] == "response.completed"
            assert create(temperature=-1)["status"] == 400  # counts as a request
            refusal = create(max_output_tokens=5000)
            assert (refusal["status"], refusal["error"]["code"]) == (429, "rate_limit_exceeded")
            assert create()["status"] == 429  # the handshake was the first of four
            assert server.send("GET", "/v1/models", headers=ANN).status_code == 429


def test_media_is_limited_per_request() -> None:
    data = base64.b64encode(bytes(900)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    parts = {
        CHAT: image,
        "/v1/messages": {"type": "image", "source": source},
        "/tokenize": image,
        "/v1/messages/count_tokens": {"type": "image", "source": source},
    }
    with serve_tokens(media_bytes=1000) as server:
        for path, part in parts.items():
            for count, status in ((1, 400), (2, 413)):  # this model takes no images at all
                messages = [{"role": "user", "content": [part] * count}]
                body = make_chat(messages=messages, max_tokens=5)
                answer = server.send("POST", path, headers=ANN, json=body)
                assert answer.status_code == status, answer.text
            assert "1,000 bytes" in answer.json()["error"]["message"]
            assert server.send("POST", path, headers=BOB, json=body).status_code == 400


# Owners


def store_response(server: HostileServer, key: str) -> str:
    body = {"model": "scripted", "input": "Hi"}
    response: str = server.send("POST", "/v1/responses", key=key, json=body).json()["id"]
    return response


def has_response(server: HostileServer, key: str, response: str) -> bool:
    status = server.send("GET", f"/v1/responses/{response}", key=key).status_code
    assert status in (200, 404)
    return status == 200


def test_data_belongs_to_the_name_and_survives_a_new_key(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/state.db"
    plain = {"store": store, "api_key": ("old-plain-key",)}
    with serve(**plain) as server:
        of_plain = store_response(server, "old-plain-key")
    owner = make_key_owner(b"old-plain-key")
    ann = {"name": "ann", "hash": [format_hash("ann-1"), format_hash("ann-2")]}
    bob = {"name": "bob", "hash": format_hash("bob-1")}
    moved = {"name": "moved", "hash": format_hash("moved-1"), "owner": owner}
    with serve(**plain, key_entries=[ann, bob]) as server:
        assert has_response(server, "old-plain-key", of_plain)
        of_ann = store_response(server, "ann-1")
        assert has_response(server, "ann-2", of_ann)
        assert not has_response(server, "bob-1", of_ann)
        assert not has_response(server, "old-plain-key", of_ann)
    rotated = [{"name": "ann", "hash": format_hash("ann-3")}, bob, moved]
    with serve(store=store, key_entries=rotated) as server:
        assert has_response(server, "ann-3", of_ann)
        assert has_response(server, "moved-1", of_plain)
        assert not has_response(server, "moved-1", of_ann)
        assert server.send("GET", f"/v1/responses/{of_ann}", key="ann-1").status_code == 401


# Changes


def write_config(file: Path, entries: list[dict[str, Any]]) -> None:
    """Write dragoman.yaml as editors do: under another name, and then renamed."""
    other = file.with_suffix(".new")
    other.write_text(json.dumps({"keys": {"entries": entries}}))  # JSON is YAML
    other.rename(file)


@measures_time
def test_a_removed_key_is_refused_within_two_seconds_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"
    ann, bob = {"name": "ann", "key": "ann-key"}, {"name": "bob", "key": "bob-key"}
    write_config(file, [ann, bob])
    engine = ScriptedEngine([Reply("One, two", when="hang", hang_at=2), Reply("Hello there!")])
    with serve(engine, config=str(file)) as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        chat = make_chat("hang", stream=True)
        with (
            connect(url, additional_headers=ANN) as websocket,
            server.client.stream("POST", CHAT, headers=ANN, json=chat) as stream,
        ):
            frames = stream.iter_lines()
            next(frames)
            write_config(file, [bob])
            started = time.monotonic()
            while server.send("GET", "/v1/models", headers=ANN).status_code != 401:
                assert time.monotonic() - started < 2
            assert server.send("GET", "/v1/models", headers=BOB).status_code == 200
            websocket.send(json.dumps(make_websocket_message({"model": "scripted", "input": "a"})))
            error = json.loads(websocket.recv(timeout=20))
            assert (error["type"], error["status"]) == ("error", 401)
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            # An answer that has begun goes on, here until its client leaves.
            assert server.running.get_gate().running == 1


@pytest.mark.slow
def test_a_broken_file_keeps_the_keys_and_is_logged_once(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"
    write_config(file, [{"name": "ann", "key": "ann-key"}])
    with serve(config=str(file)) as server, collect_logs() as logs:
        for number, broken in enumerate(("keys: [", "keys:\n  entries:\n    - nmae: ann-key\n")):
            file.write_text(broken)
            while len([line for line in logs.lines if "stay as they were" in line]) <= number:
                assert server.send("GET", "/v1/models", headers=ANN).status_code == 200
        errors = logs.wait_for("stay as they were", 2)
        assert f"{file}:" in errors[0]
        assert f"{file}:3: there is no option `nmae`. Did you mean `name`?" in errors[1]
        write_config(file, [{"name": "bob", "key": "bob-key"}])
        poll_until(lambda: server.send("GET", "/v1/models", headers=ANN).status_code == 401)
        assert server.send("GET", "/v1/models", headers=BOB).status_code == 200
        assert len([line for line in logs.lines if "stay as they were" in line]) == 2
        write_config(file, [])  # a server that needed a key still needs one
        poll_until(lambda: server.send("GET", "/v1/models", headers=BOB).status_code == 401)


# Records


def test_admin_actions_and_refusals_are_in_the_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    entries = [
        {"name": "ann", "key": "ann-key", "limits": {"requests_per_minute": 2}},
        {"name": "boss", "key": "boss-key", "admin": True},
    ]
    with serve(key_entries=entries, audit_log=str(file)) as server:
        body = {"model": "scripted"}
        server.send("POST", "/admin/models/load", key="boss-key", json=body)
        server.send("POST", "/admin/models/unload", key="boss-key", json={"model": "none"})
        server.send("POST", "/admin/models/load", key="ann-key", json=body)
        server.send("GET", "/v1/models", key="ann-key")
        server.send("GET", "/v1/models", key="ann-key")
        server.send("GET", "/v1/secret-canary", key="wrong-canary")
        server.send("GET", "/v1/models", headers={"host": "canary.example"})
    events = [json.loads(line) for line in file.read_text().splitlines()]
    shown = [
        (e["event"], e.get("key"), e["method"], e["route"], e.get("model"), e["status"])
        for e in events
    ]
    assert shown == [
        ("admin", "boss", "POST", "/admin/models/load", "scripted", 200),
        ("admin", "boss", "POST", "/admin/models/unload", "none", 404),
        ("refusal", "ann", "POST", "/admin/models/load", None, 403),
        ("refusal", "ann", "GET", "/v1/models", None, 429),
        ("refusal", None, "GET", "none", None, 401),
        ("refusal", None, "GET", "/v1/models", None, 403),
    ]
    assert all(event["address"] == "127.0.0.1" and event["request_id"] for event in events)
    assert not re.search(r"canary|\w+-key", file.read_text())


class FaultyAdapterEngine(MinimalEngine):
    """An engine that fails to load adapters."""

    capabilities = Capabilities()

    async def load_adapter(self, name: str, path: str) -> None:
        raise ZeroDivisionError


def test_an_admin_action_that_fails_is_in_the_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    app = dragoman.app(
        FaultyAdapterEngine(), name="m", port=0, admin_key="boss", audit_log=str(file)
    )
    with run_app(app) as server:
        answer = httpx.post(
            f"{server.url}/admin/adapters/load",
            json={"lora_name": "a", "lora_path": "/a"},
            headers={"authorization": "Bearer boss"},
        )
    assert answer.status_code == 500
    [event] = [json.loads(line) for line in file.read_text().splitlines()]
    assert (event["event"], event["route"], event["status"]) == (
        "admin",
        "/admin/adapters/load",
        500,
    )


@pytest.mark.parametrize(
    ("key", "named", "shows_model"),
    [
        ("ann-key", {"ann"}, True),
        ("plain-key", set(), True),
        ("other-key", {"other"}, False),
        ("watch-key", {"ann", "bob", "other", "watch", "boss"}, True),
        ("boss-key", {"ann", "bob", "other", "watch", "boss"}, True),
    ],
)
def test_metrics_show_no_other_key_and_no_model_out_of_scope(
    key: str, named: set[str], shows_model: bool
) -> None:
    entries = [
        {"name": "ann", "key": "ann-key"},
        {"name": "bob", "key": "bob-key"},
        {"name": "other", "key": "other-key", "models": ["none-*"]},
        {"name": "watch", "key": "watch-key", "routes": ["GET metrics"]},
        {"name": "boss", "key": "boss-key", "admin": True},
    ]
    with serve(key_entries=entries, api_key=("plain-key",)) as server:
        assert server.send("POST", CHAT, headers=BOB, json=make_chat()).status_code == 200
        page = server.send("GET", "/metrics", key=key).text
    assert set(re.findall(r'[{,]key="([^"]+)"', page)) == named
    assert ('model="scripted"' in page) is shows_model
    assert "dragoman_succeeded_total" in page
    assert "process_resident_memory_bytes" in page


def test_names_of_keys_are_in_the_log_and_bound_the_metrics() -> None:
    with serve(**make_limited(requests_per_minute=2), api_key=("plain-1",)) as server:
        with collect_logs("json") as logs:
            statuses = [server.send("GET", "/v1/models", headers=ANN).status_code for _ in range(3)]
            assert statuses == [200, 200, 429]
            assert logs.wait_for_event("/v1/models")["key"] == "ann"
        server.send("GET", "/v1/models", key="plain-1")
        for number in range(20):
            server.send("GET", "/v1/models", key=f"wrong-{number}")
        page = server.send("GET", "/metrics", key=ADMIN).text
        rows = re.findall(r'^dragoman_key_(\w+)\{key="(\w+)"\} (\S+)$', page, re.MULTILINE)
        assert {(metric, key): float(value) for metric, key, value in rows} == {
            ("requests_total", "ann"): 2,
            ("requests_total", "bob"): 0,
            ("refusals_total", "ann"): 1,
            ("refusals_total", "bob"): 0,
            ("tokens_total", "ann"): 0,
            ("tokens_total", "bob"): 0,
            ("requests_running", "ann"): 0,
            ("requests_running", "bob"): 0,
        }


def test_a_key_that_is_removed_while_its_body_arrives_gets_401(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    stays, leaves = "key-that-stays", "key-that-leaves"
    entry = "- {{name: {0}, key: key-that-{0}}}\n"
    file.write_text("entries:\n" + entry.format("stays") + entry.format("leaves"))
    body = json.dumps(make_chat()).encode()
    with serve_hostile("Hello!", api_key_file=str(file), admin_key=(ADMIN,)) as server:
        send: list[bool] = []

        def send_slowly() -> Iterator[bytes]:
            yield body[:5]
            other = file.with_suffix(".new")
            other.write_text("entries:\n" + entry.format("stays"))
            other.rename(file)
            poll_until(lambda: server.send("GET", "/v1/models", key=leaves).status_code == 401)
            send.append(True)
            yield body[5:]

        headers = [("authorization", f"Bearer {leaves}"), ("content-type", "application/json")]
        answer = server.send_raw("POST", CHAT, headers, send_slowly())
        assert send == [True]
        assert answer.status == 401
        assert b"no longer valid" in answer.body
        assert server.send("POST", CHAT, key=stays, json=make_chat()).status_code == 200
