"""Fixtures that every test file may use."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import config
from dragoman.models.pull import DEFAULT_ALIASES, ProgressBar, pull


def pytest_collection_finish() -> None:
    """Keep what collecting made out of garbage collections: it lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Return the file of the default model, downloaded if it is not in the user's cache."""
    progress = ProgressBar(sys.stderr)
    path = pull(DEFAULT_ALIASES[0], config.load({}).models_path, progress)
    progress.close()
    return path


@pytest.fixture(autouse=True)
def _isolate_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tests with the default settings, whatever the developer's environment sets."""
    for name in list(os.environ):
        if name.startswith(config.PREFIX) and name != f"{config.PREFIX}MODELS_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv(f"{config.PREFIX}STORE", "sqlite://")  # in memory


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo what a command that runs in this process does to logging: its output is closed later."""
    loggers = [logging.getLogger(), logging.getLogger("dragoman")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
