"""Readiness and `Retry-After` of a server with several models."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dragoman import config, runtime
from dragoman.http.server import make_app
from dragoman.models import residency
from dragoman.models.catalog import ModelCatalog
from dragoman.models.registry import ModelRegistry
from tests.support.fake_models import FakeEngine, FakeLoader, write_models
from tests.support.model_files import write_model_file
from tests.support.server_process import read_until, run_server
from tests.support.serving import RunningServer, make_chat, run_app, serve_scripted
from tests.support.upstream_servers import Answer, list_models, make_chat_frames, run_table

CHAT = "/v1/chat/completions"


@contextmanager
def serve_models(
    root: Path, default: str | None = "a", **settings: Any
) -> Iterator[tuple[RunningServer, FakeLoader]]:
    """Serve fake models; `default` is the one that the server is started for."""
    catalog = ModelCatalog(root, root / "models.yaml")
    catalog.refresh()
    loader = FakeLoader()
    options = config.load({"port": 0, "store": "sqlite://", **settings})
    if default is not None:
        source = catalog.resolve(default, paths=True)
        assert source is not None
        catalog.add(source)
    models = ModelRegistry(catalog, loader, runtime.make_policy(options))
    app = make_app(runtime.build_runtime(models, options), local=True)
    app.readiness.startup_model = default
    with run_app(app) as server:
        yield server, loader


def get_ready(server: RunningServer) -> tuple[int, str]:
    response = httpx.get(f"{server.url}/health/ready")
    body = response.json()
    return response.status_code, body["error"]["message"] if "error" in body else body["status"]


def load(server: RunningServer, name: str) -> None:
    server.run_coroutine(server.app.runtime.services.models.load(name))


def test_readiness_follows_the_startup_model_alone(tmp_path: Path) -> None:
    with serve_models(write_models(tmp_path)) as (server, loader):
        assert get_ready(server) == (503, "The model `a` is loading.")
        load(server, "a")
        load(server, "b")
        assert get_ready(server) == (200, "ready")
        loader.engines["b"].state = "restarting"
        assert get_ready(server) == (200, "ready")
        loader.engines["a"].state = "restarting"
        assert get_ready(server) == (503, "The engine of `a` is being restarted.")
        loader.engines["a"].state = "ready"
        assert get_ready(server) == (200, "ready")
        body = {"model": "a"}
        assert httpx.post(f"{server.url}/admin/models/unload", json=body).status_code == 200
        assert get_ready(server) == (200, "ready")  # it is loaded again on demand


def test_a_startup_model_that_is_unloaded_before_anybody_asks_is_loaded_on_demand(
    tmp_path: Path,
) -> None:
    routes: dict[str, Answer] = {"/v1/models": list_models("gpt"), CHAT: make_chat_frames()}
    options = ("--models-dir", str(tmp_path), "--store", "sqlite://")
    with (
        run_table(routes) as upstream,
        run_server("--upstream", upstream.url, *options) as (process, url),
    ):
        read_until(process, "Serving gpt")
        unload = httpx.post(f"{url}/admin/models/unload", json={"model": "gpt"})
        assert unload.status_code == 200
        assert httpx.get(f"{url}/health/ready").status_code == 200


def test_without_a_startup_model_the_default_one_decides(tmp_path: Path) -> None:
    with serve_models(write_models(tmp_path), default=None) as (server, loader):
        assert get_ready(server) == (200, "ready")
        load(server, "b")
        assert server.app.runtime.services.models.default_name == "b"
        loader.engines["b"].state = "restarting"
        assert get_ready(server) == (503, "The engine of `b` is being restarted.")


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 3_000_000_000, 900_000_000_000])
def test_retry_after_never_grows_while_a_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    root = write_models(tmp_path)
    write_model_file(root / "large.gguf", size=10)
    with (root / "large.gguf").open("r+b") as file:
        file.truncate(size + file.seek(0, 2))
    clock = itertools.count(1000, 7)  # seconds
    fake_time = SimpleNamespace(monotonic=lambda: next(clock), time=lambda: 0.0)
    with serve_models(root, load_wait=0) as (server, loader):
        monkeypatch.setattr(residency, "time", fake_time)
        gate = loader.gates["large"] = server.run_coroutine(make_event())

        def post() -> httpx.Response:
            return httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(model="large"))

        responses = [post() for _ in range(30)]
        assert {response.status_code for response in responses} == {503}
        assert {response.json()["error"]["code"] for response in responses} == {"model_loading"}
        waits = [int(response.headers["retry-after"]) for response in responses]
        assert waits == sorted(waits, reverse=True)
        assert waits[-1] == 1 or size > 10_000_000_000
        assert 1 <= waits[0] <= 60
        assert size < 1_000_000_000 or waits[0] > 5
        server.loop.call_soon_threadsafe(gate.set)
        load(server, "large")
        assert post().status_code == 200


async def make_event() -> asyncio.Event:
    return asyncio.Event()


class OwnAttributes(FakeEngine):
    """An engine of a program, whose attributes mean something else."""

    restarts = "often"

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = {"layers": 5}


def test_attributes_of_an_own_engine_do_not_matter() -> None:
    with serve_scripted(OwnAttributes()) as server:
        assert get_ready(server) == (200, "ready")
        assert httpx.get(f"{server.url}/metrics").status_code == 200
