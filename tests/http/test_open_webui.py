"""The requests that Open WebUI sends, as they were recorded, get the answers that it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.managed_models import serve_managed
from tests.support.ollama_api import check_end, read_lines

MODEL = "writer:latest"
TEXT = (Path(__file__).parent / "open_webui.yaml").read_text()
REQUESTS = msgspec.yaml.decode(TEXT.replace("MODEL", MODEL))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server on which the model `poet3` exists, so that the order of requests is no matter."""
    root = tmp_path_factory.mktemp("served") / "models"
    with (
        serve_managed(root) as server,
        httpx.Client(base_url=server.url, timeout=60) as opened,
    ):
        copied = opened.post("/api/copy", json={"source": MODEL, "destination": "poet3"})
        assert copied.status_code == 200
        yield opened


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_recorded_request_is_answered(client: httpx.Client, case: dict[str, Any]) -> None:
    body = case.get("body")
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    answer = client.request(case["method"], case["path"], content=content, headers=headers)
    assert answer.status_code == case.get("status", 200), answer.text
    if "has" not in case:
        assert answer.text == ""
        return
    is_streamed = answer.headers["content-type"] == "application/x-ndjson"
    shown = read_lines(answer)[-1] if is_streamed else answer.json()
    assert shown.keys() >= set(case["has"])
    if "eval_duration" in case["has"]:
        check_end(shown)  # its page divides by the durations


def test_copies_are_listed_until_they_are_deleted(client: httpx.Client) -> None:
    """Copying and deleting as its pages do; a second deletion finds nothing."""

    def list_names() -> list[str]:
        return [item["model"] for item in client.get("/api/tags").json()["models"]]

    body = {"model": "poet4:latest", "name": None}
    copied = client.post("/api/copy", json={"source": MODEL, "destination": "poet4:latest"})
    assert (copied.status_code, copied.content) == (200, b"")
    assert "poet4:latest" in list_names()
    deleted = client.request("DELETE", "/api/delete", json=body)
    assert (deleted.status_code, deleted.content) == (200, b"")
    assert "poet4:latest" not in list_names()
    again = client.request("DELETE", "/api/delete", json=body)
    assert (again.status_code, again.json().keys()) == (404, {"error"})
    unknown = client.post("/api/copy", json={"source": "none", "destination": "poet4:latest"})
    assert (unknown.status_code, unknown.json().keys()) == (404, {"error"})


def test_lists_join_by_the_name_of_a_model(client: httpx.Client) -> None:
    """Its list of models is made of `tags` and `ps`, joined by `model`."""
    client.post("/api/generate", json={"model": MODEL})
    tags = [item["model"] for item in client.get("/api/tags").json()["models"]]
    [loaded] = client.get("/api/ps").json()["models"]
    assert loaded["model"] in tags
    assert loaded["expires_at"]
