"""Fixtures of the tests with a real vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import RunningServer
from tests.support.vllm_model import VARIABLES, prepare_models, serve_vllm, write_adapter


@pytest.fixture(scope="session", autouse=True)
def _prepare(default_model: Path) -> None:
    os.environ.update(VARIABLES)
    prepare_models(default_model)


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "poet")


@pytest.fixture(scope="session")
def server(_prepare: None, adapter: Path) -> Iterator[RunningServer]:
    """Return a server that all tests share which do not harm it."""
    with serve_vllm(lora=(f"poet={adapter}",), engine_arg=("max_loras=2",)) as running:
        yield running
