"""The `ollama` package of npm manages models of a server with the default model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_clients import run_node_client
from tests.support.real_model import MODEL, serve

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def results(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("models") / MODEL / default_model.name
    path.parent.mkdir()
    os.symlink(default_model, path)
    client = Path(__file__).with_name("manage.mjs")
    with serve(path, context=512, slots=1) as server:
        return run_node_client(client, server.url, MODEL)


def test_models_are_listed_and_described(results: Any) -> None:
    [model] = results["list"]["models"]
    assert (model["name"], model["size"]) == (f"{MODEL}:latest", 98_362_432)
    assert results["show"]["model_info"]["general.architecture"] == "llama"
    [running] = results["ps"]["models"]
    assert running["context_length"] == 512


def test_models_are_pulled_copied_created_and_deleted(results: Any) -> None:
    assert results["pull"]["status"] == results["create"]["status"] == "success"
    for lines in ("pullLines", "createLines"):
        assert results[lines][-1]["status"] == "success"
    assert results["created"]["system"] == "You are a poet."
    assert results["chat"]["eval_count"] == 2
    names = {f"{MODEL}:latest", "copy:latest", "poet:latest", "poet:two"}
    assert set(results["names"]) == names
    assert results["left"] == [f"{MODEL}:latest"]


def test_errors_are_raised(results: Any) -> None:
    failed = {"unknown": 404, "unknownPull": 404, "push": 404, "badName": 400}
    for name, status in failed.items():
        assert results[name]["status"] == status, name
    assert "not found" in results["unknown"]["text"]
