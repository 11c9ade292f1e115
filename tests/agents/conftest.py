"""Fixtures for the agents: a sandbox, and the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.sandbox import AgentSandbox
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer


@pytest.fixture
def sandbox(tmp_path: Path) -> AgentSandbox:
    return AgentSandbox(tmp_path)


@pytest.fixture(scope="session")
def real_server(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with the default model, greedy: so small a model rambles otherwise."""
    models_file_path = tmp_path_factory.mktemp("models") / "models.yaml"
    model_config = {"path": str(default_model), "defaults": {"temperature": 0}}
    models_file_path.write_text(json.dumps({MODEL: model_config}))
    with serve(
        default_model, slots=1, models_file=str(models_file_path), store="sqlite://"
    ) as server:
        yield server
