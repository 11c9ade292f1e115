"""Adapters of an engine that can change them while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import dragoman
from dragoman.errors import BadRequest
from dragoman.testing import ScriptedEngine
from dragoman.types import Capabilities
from tests.support.faulty_engines import MinimalEngine
from tests.support.serving import RunningServer, run_app


class AdapterEngine(MinimalEngine):
    """An engine that takes any adapter."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(lora=tuple(self.adapters))

    async def load_adapter(self, name: str, path: str) -> None:
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        if self.adapters.pop(name, None) is None:
            raise BadRequest(f"There is no adapter `{name}`.", param="lora_name")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_app(dragoman.app(AdapterEngine(), name="m", port=0, admin_key="boss")) as running:
        yield running


def post(server: RunningServer, path: str, **body: object) -> httpx.Response:
    headers = {"authorization": "Bearer boss"}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers)


def complete(server: RunningServer, lora: str) -> int:
    answer = post(server, "/v1/completions", model="m", prompt="Hi", lora=lora)
    assert answer.status_code == 200 or "poet" in answer.text, answer.text
    return answer.status_code


def test_an_adapter_is_known_while_it_is_loaded(server: RunningServer) -> None:
    assert complete(server, "poet") == 400
    loaded = post(server, "/admin/adapters/load", lora_name="poet", lora_path="/adapters/poet")
    assert loaded.status_code == 200, loaded.text
    assert loaded.json()["lora"] == ["poet"]
    assert complete(server, "poet") == 200
    unloaded = post(server, "/admin/adapters/unload", lora_name="poet", model="m")
    assert unloaded.status_code == 200, unloaded.text
    assert complete(server, "poet") == 400
    again = post(server, "/admin/adapters/unload", lora_name="poet")
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")


def test_an_engine_without_the_method_refuses() -> None:
    app = dragoman.app(ScriptedEngine("Hello"), name="m", port=0, admin_key="boss")
    with run_app(app) as running:
        answer = post(running, "/admin/adapters/load", lora_name="a", lora_path="/a")
        missing = post(running, "/admin/adapters/load", lora_name="a", lora_path="/a", model="x")
    assert answer.status_code == 400
    assert "adapters" in answer.json()["error"]["message"]
    assert missing.status_code == 404
