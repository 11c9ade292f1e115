"""`dragoman serve` in front of servers that are not up yet, or not any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from dragoman import config, runtime
from dragoman.errors import ModelBroken, Unavailable
from dragoman.http.server import make_app
from dragoman.models.registry import ModelEntry
from dragoman.runtime import startup_model
from dragoman.runtime.startup_model import load_startup_model
from tests.support.server_process import read_until, run_server
from tests.support.serving import QUIET, RunningServer, make_chat, run_app
from tests.support.upstream_servers import (
    Answer,
    TableServer,
    list_models,
    make_chat_frames,
    run_table,
    run_worker,
    write_tokenizer,
)

CHAT: dict[str, Answer] = {
    "/v1/models": list_models("gpt", "other"),
    "/v1/chat/completions": make_chat_frames({"content": "Hello"}),
}
PATH = "/v1/chat/completions"


class StartingServer(NamedTuple):
    """A server whose first model is being loaded."""

    running: RunningServer
    loading: concurrent.futures.Future[ModelEntry]

    def get_ready(self) -> httpx.Response:
        return httpx.get(f"{self.running.url}/health/ready")

    def chat(self, model: str) -> httpx.Response:
        return httpx.post(self.running.url + PATH, json=make_chat(model=model), timeout=60)


@contextmanager
def start_serving(
    directory: Path, url: str | None, model: str = "", **options: Any
) -> Iterator[StartingServer]:
    """Do what `dragoman serve --upstream URL MODEL` does, in this process."""
    defaults = {"port": 0, "store": "sqlite://", "models_dir": str(directory / "models")}
    settings = config.load(QUIET | defaults | {"upstream": url} | options)
    models = runtime.build_models(settings, model, may_wait=True)
    app = make_app(runtime.build_runtime(models, settings), local=True)
    app.readiness.startup_model = models.default_name
    with run_app(app) as server:
        work = load_startup_model(models, settings, may_wait=True)
        loading = asyncio.run_coroutine_threadsafe(work, server.loop)
        try:
            yield StartingServer(server, loading)
        finally:
            loading.cancel()


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_model, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(startup_model, "MAX_DELAY", 0.02)


def check_unavailable(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    assert int(response.headers["retry-after"]) >= 1
    assert "127.0.0.1" not in response.text


def test_waits_for_a_server_that_starts_later(tmp_path: Path) -> None:
    with (
        run_table(CHAT, is_up=False) as upstream,
        run_server(
            *("--upstream", upstream.url, "--models-dir", str(tmp_path), "--store", "sqlite://")
        ) as (process, url),
    ):
        read_until(process, f"waiting for the upstream server {upstream.url}")
        check_unavailable(httpx.get(f"{url}/health/ready"))
        check_unavailable(httpx.post(url + PATH, json=make_chat(model="gpt")))
        assert httpx.get(f"{url}/health/live").status_code == 200
        upstream.listen()
        read_until(process, "Serving gpt")
        assert httpx.get(f"{url}/health/ready").status_code == 200
        answer = httpx.post(url + PATH, json=make_chat(model="gpt")).json()
        assert answer["choices"][0]["message"]["content"] == "Hello"
        names = [row["id"] for row in httpx.get(f"{url}/v1/models").json()["data"]]
        assert names == ["gpt", "other"]


NOT_UP: dict[str, dict[str, Answer] | None] = {
    "refuses": None,
    "proxy without a server": {"/v1/models": (502, "<html>Bad Gateway</html>")},
    "proxy that gives up": {"/v1/models": (504, "")},
    "loads its model": {"/v1/models": (503, {"error": {"message": "Loading model"}})},
    "has no model": {"/v1/models": (200, {"object": "list", "data": []})},
    "loads behind its list": {
        "/v1/models": list_models("gpt", owner="llamacpp"),
        "/props": (503, {"error": {"message": "Loading model"}}),
    },
}


def make_down(case: str) -> TableServer:
    routes = NOT_UP[case]
    return TableServer(CHAT if routes is None else routes, is_up=routes is not None)


def bring_up(server: TableServer, case: str) -> None:
    if NOT_UP[case] is None:
        server.listen()
    else:
        server.routes = dict(CHAT)


@pytest.mark.parametrize(("case", "model"), [*((case, "") for case in NOT_UP), ("refuses", "gpt")])
def test_is_not_ready_until_the_server_is(case: str, model: str, tmp_path: Path) -> None:
    upstream = make_down(case)
    try:
        with start_serving(tmp_path, upstream.url, model) as server:
            check_unavailable(server.get_ready())
            check_unavailable(server.chat("gpt"))
            bring_up(upstream, case)
            assert server.loading.result(60).id == "gpt"
            assert server.get_ready().status_code == 200
            assert server.chat("gpt").status_code == 200
            assert server.chat("nothing").status_code == 404
    finally:
        upstream.close()


def test_another_tokenizer_is_refused_after_the_wait(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    with run_worker("vllm", model=str(directory)) as worker:
        worker.token_offset = 1
        with start_serving(tmp_path, worker.url) as server:
            with pytest.raises(ModelBroken, match="is not that of the model"):
                server.loading.result(60)
            check_failed(server.get_ready())


def check_failed(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert "tokenizer" in response.json()["error"]["message"]


def test_gives_up_after_the_time_of_the_operator(tmp_path: Path) -> None:
    with (
        run_table(CHAT, is_up=False) as upstream,
        start_serving(tmp_path, upstream.url, upstream_wait=0.05) as server,
        pytest.raises(Unavailable, match="cannot be reached"),
    ):
        server.loading.result(60)


def test_other_servers_serve_while_one_is_down(tmp_path: Path) -> None:
    with run_table(CHAT) as small, run_table(CHAT, is_up=False) as large:
        entries = {
            "large": {"upstream": large.url, "upstream_model": "gpt"},
            "small": {"upstream": small.url, "upstream_model": "gpt"},
        }
        with start_serving(tmp_path, None, "large", models=entries) as server:
            check_unavailable(server.get_ready())
            check_unavailable(server.chat("large"))
            assert server.chat("small").status_code == 200
            large.listen()
            server.loading.result(60)
            assert server.get_ready().status_code == 200
            assert server.chat("large").status_code == 200


def test_local_models_serve_while_the_server_is_down(tmp_path: Path) -> None:
    """A request without a name means a model of the server, which is not known yet."""
    routes = CHAT | {"/v1/models": list_models("gpt")}
    with run_table(CHAT) as other, run_table(routes, is_up=False) as upstream:
        entries = {"local": {"upstream": other.url, "upstream_model": "gpt"}}
        with start_serving(tmp_path, upstream.url, models=entries) as server:
            assert server.chat("local").status_code == 200
            check_unavailable(server.chat(""))
            check_unavailable(server.get_ready())
            upstream.listen()
            server.loading.result(60)
            assert server.chat("").json()["model"] == "gpt"
