"""Fixtures that every test file may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dragoman import config
from dragoman.models.pull import DEFAULT_ALIASES, ProgressBar, pull


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched if it is not in the user's cache yet."""
    bar = ProgressBar(sys.stderr)
    path = pull(DEFAULT_ALIASES[0], config.load({}).models_path, bar)
    bar.close()
    return path


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see the defaults, whatever the developer's shell says."""
    for name in list(os.environ):
        if name.startswith(config.PREFIX) and name != f"{config.PREFIX}MODELS_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv(f"{config.PREFIX}STORE", "sqlite://")  # nothing of a test is kept
