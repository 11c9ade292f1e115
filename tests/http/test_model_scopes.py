"""Admin keys that may use some models only: others do not exist for them, whatever they change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.managed_models import serve_managed

ALL, SMALL = "all-key-000000000000000", "small-key-0000000000000"
KEYS = f"""
entries:
  - {{name: all, key: {ALL}, admin: true}}
  - {{name: small, key: {SMALL}, admin: true, models: [small*]}}
"""
HIDDEN = "secret"  # an entry of models.yaml whose file is `large`


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def client(root: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client with the key for some models, of a server that has others, too."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with (
        serve_managed(root, ("small", "large", "large-2"), api_key_file=str(keys)) as server,
        httpx.Client(base_url=server.url, timeout=60) as opened,
    ):
        use_key(opened, ALL)
        for recipe in (
            {"model": HIDDEN, "from": "large", "system": "A secret."},
            {"model": "plans", "from": "small", "system": "Plans."},
        ):
            created = opened.post("/api/create", json=recipe | {"stream": False})
            assert created.status_code == 200, created.text
        use_key(opened, SMALL)
        yield opened


def use_key(client: httpx.Client, key: str) -> None:
    client.headers["authorization"] = f"Bearer {key}"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/copy", {"source": "small", "destination": HIDDEN}, 400),
        ("POST", "/api/copy", {"source": "small", "destination": f"{HIDDEN}:latest"}, 400),
        ("POST", "/api/copy", {"source": "small", "destination": HIDDEN.upper()}, 400),
        ("POST", "/api/copy", {"source": "small", "destination": f"library/{HIDDEN}"}, 400),
        ("POST", "/api/copy", {"source": "small", "destination": "large"}, 400),
        ("POST", "/api/copy", {"source": "small", "destination": "large:2"}, 400),
        ("POST", "/api/copy", {"source": HIDDEN, "destination": "small-copy"}, 404),
        ("POST", "/api/copy", {"source": "large", "destination": "small-copy"}, 404),
        ("POST", "/api/create", {"model": HIDDEN, "from": "small", "system": "x"}, 400),
        ("POST", "/api/create", {"model": "plans", "from": "small", "system": "x"}, 400),
        ("POST", "/api/create", {"model": "large:2", "from": "small", "system": "x"}, 400),
        ("POST", "/api/create", {"model": "small-new", "from": HIDDEN}, 404),
        ("DELETE", "/api/delete", {"model": HIDDEN}, 404),
        ("DELETE", "/api/delete", {"model": "large"}, 404),
        ("POST", "/api/pull", {"model": HIDDEN}, 404),
        ("POST", "/api/pull", {"model": "large", "stream": False}, 404),
        ("POST", "/api/show", {"model": HIDDEN}, 404),
        ("POST", "/api/generate", {"model": HIDDEN, "keep_alive": 0}, 404),
        ("POST", "/admin/models/load", {"model": HIDDEN}, 404),
        ("POST", "/admin/models/unload", {"model": "large"}, 404),
    ],
)
def test_models_of_others_are_neither_seen_nor_changed(
    client: httpx.Client, root: Path, method: str, path: str, body: dict[str, Any], status: int
) -> None:
    files = {file.name for file in root.rglob("*.gguf")}
    entries = (root / "models.yaml").read_text()
    answer = client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert "A secret." not in answer.text
    assert (root / "models.yaml").read_text() == entries
    assert {file.name for file in root.rglob("*.gguf")} == files
    use_key(client, ALL)
    shown = client.post("/api/show", json={"model": HIDDEN}).json()
    assert shown["system"] == "A secret."


def test_files_that_others_use_are_not_deleted_and_their_names_not_told(
    client: httpx.Client,
) -> None:
    answer = client.request("DELETE", "/api/delete", json={"model": "small"})
    assert answer.status_code == 400
    assert "other models" in answer.text
    assert "plans" not in answer.text
    use_key(client, ALL)
    answer = client.request("DELETE", "/api/delete", json={"model": "small"})
    assert (answer.status_code, "by plans: delete it first" in answer.text) == (400, True)


def test_own_names_are_made_replaced_and_deleted(client: httpx.Client) -> None:
    for _ in range(2):  # the second time, it is replaced
        body = {"source": "small", "destination": "small-copy"}
        assert client.post("/api/copy", json=body).status_code == 200
    names = [item["name"] for item in client.get("/api/tags").json()["models"]]
    assert sorted(names) == ["small-copy:latest", "small:latest"]
    body = {"model": "small-copy", "from": "small", "system": "Own."}
    lines = client.post("/api/create", json=body).text.splitlines()
    assert json.loads(lines[-1]) == {"status": "success"}
    deleted = client.request("DELETE", "/api/delete", json={"model": "small-copy"})
    assert deleted.status_code == 200
