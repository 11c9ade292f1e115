"""Which hosts and pages may send requests to a server that everyone may use, and to others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from dragoman.http.router import Route
from tests.http.test_app import ADMIN_ROUTES, ROUTES, route_name, send_to
from tests.support.serving import RunningServer, make_chat, serve_scripted

EVERYWHERE = {"host": "0.0.0.0"}
OWN_NAME = socket.gethostname().lower()


def localize(server: RunningServer) -> RunningServer:
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    return server


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    """A server without keys, on all addresses."""
    with serve_scripted(**EVERYWHERE, allow_open=True, allowed_host=("models.example",)) as server:
        yield localize(server)


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[RunningServer]:
    """A server with keys, on all addresses."""
    with serve_scripted(**EVERYWHERE, api_key=("secret",)) as server:
        yield localize(server)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("192.168.1.5:8000", 200),
        ("[2001:db8::1]:8000", 200),
        ("localhost", 200),
        (OWN_NAME, 200),
        (f"{OWN_NAME.partition('.')[0]}.local:8000", 200),
        ("MODELS.example:443", 200),
        ("evil.example", 403),
        ("192.168.1.5.evil.example", 403),
        ("127.1", 403),  # no browser sends it
        ("a/?x=", 400),
    ],
)
def test_open_server_accepts_addresses_and_its_own_names(
    open_server: RunningServer, host: str, status: int
) -> None:
    for path in ("/v1/models", "/health"):
        assert httpx.get(open_server.url + path, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://192.168.1.5:3000", 200),  # the same host
        ("http://localhost:3000", 200),
        ("https://models.example", 200),
        ("http://192.168.1.6", 403),  # an address, but another machine
        ("https://evil.example", 403),
        ("null", 403),
        ("file://", 403),
    ],
)
def test_open_server_refuses_pages_of_other_sites(
    open_server: RunningServer, origin: str, status: int
) -> None:
    headers = {"host": "192.168.1.5:8000", "origin": origin}
    url = open_server.url
    assert httpx.get(f"{url}/v1/models", headers=headers).status_code == status
    chat = httpx.post(f"{url}/v1/chat/completions", headers=headers, json=make_chat())
    assert chat.status_code == status
    address = f"{url.replace('http', 'ws')}/v1/responses"
    host = {"Host": "192.168.1.5:8000"}
    if status == 403:
        with pytest.raises(InvalidStatus):
            connect(address, origin=Origin(origin), additional_headers=host)


@pytest.mark.parametrize("route", ROUTES, ids=route_name)
def test_no_route_of_an_open_server_answers_other_sites(
    open_server: RunningServer, route: Route
) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert send_to(open_server, route, headers=headers).status_code == 403


def test_key_protects_a_server_whatever_name_it_has(guarded_server: RunningServer) -> None:
    for host, key, status in (
        ("models.company.example", "secret", 200),
        ("models.company.example", "wrong", 401),
        ("a/?x=", "secret", 400),
    ):
        headers = {"host": host, "x-api-key": key, "origin": "https://chat.company.example"}
        response = httpx.get(f"{guarded_server.url}/v1/models", headers=headers)
        assert response.status_code == status


@pytest.mark.parametrize("options", [{"allow_open": True}, {"allowed_host": ("models.example",)}])
def test_admin_routes_need_a_key_once_others_are_let_in(options: dict[str, object]) -> None:
    with serve_scripted(**options) as server:
        for route in ADMIN_ROUTES:
            response = send_to(server, route, json={"model": "scripted"})
            assert response.status_code == 403
            assert "--admin-key" in response.text
