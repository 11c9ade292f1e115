"""Fixtures for the agents: a place to work in, and the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.stage import Stage
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture(scope="session")
def real(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The default model behind a server, set to say the likeliest: so small, it rambles else."""
    names = tmp_path_factory.mktemp("models") / "models.yaml"
    chosen = {"path": str(default_model), "defaults": {"temperature": 0}}
    names.write_text(json.dumps({MODEL: chosen}))
    with serve(default_model, slots=1, models_file=str(names), store="sqlite://") as made:
        yield made
