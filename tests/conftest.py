"""Fixtures that every test file may use."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import HealthCheck, settings

from dragoman import config
from dragoman.http.network.process_memory import COLLECTOR_THRESHOLDS
from dragoman.models.pull import DEFAULT_ALIASES, ProgressBar, pull
from dragoman.prompt.template import filters
from tests.support.timing import freeze_objects

# Examples are the same in each run, and a slow machine fails none of them.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

MAX_TEST_SECONDS = 300  # beside other programs, too


def pytest_configure() -> None:
    """Load the usual certificates once: every HTTP client would spend 30 ms on them."""
    create, names = httpx.create_ssl_context, ("SSL_CERT_FILE", "SSL_CERT_DIR")
    contexts: dict[tuple[str | None, ...], ssl.SSLContext] = {}

    def create_ssl_context(
        verify: ssl.SSLContext | str | bool = True, cert: object = None, trust_env: bool = True
    ) -> ssl.SSLContext:
        if verify is not True or cert:
            return create(verify, cert, trust_env)  # type: ignore[arg-type]
        files = tuple(map(os.environ.get, names)) if trust_env else ()
        if files not in contexts:
            contexts[files] = create(trust_env=trust_env)
        return contexts[files]

    httpx._transports.default.create_ssl_context = create_ssl_context  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Do without garbage collections until all tests are known: what is made then is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        freeze_objects()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, with its fixtures, so that those after it run and are reported."""
    if "heavy" not in item.config.getini("norecursedirs"):  # the target allows tests of hours
        return (yield)

    def fail(*_: object) -> None:
        raise TimeoutError(f"the test runs for more than {MAX_TEST_SECONDS} seconds")

    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, MAX_TEST_SECONDS, 30)  # cleaning up may hang, too
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(scope="session")
def default_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the default model, downloaded if it is not in the user's cache.

    It is linked into a models directory of its own: the user may have other models and aliases.
    """
    progress = ProgressBar(sys.stderr)
    path = pull(DEFAULT_ALIASES[0], config.load({}).models_path, progress)
    progress.close()
    link = tmp_path_factory.mktemp("models") / path.parent.name / path.name
    link.parent.mkdir()
    try:
        link.hardlink_to(path)
    except OSError:  # another file system
        link.symlink_to(path)
    return link


@pytest.fixture(autouse=True)
def _isolate_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tests with the default settings, whatever the developer's environment sets."""
    for name in list(os.environ):
        if name.startswith(config.PREFIX) and name != f"{config.PREFIX}MODELS_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv(f"{config.PREFIX}STORE", "sqlite://")  # in memory


@pytest.fixture(autouse=True)
def _stop_template_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give templates one time for each test: some write it to the second into every prompt."""
    moment = datetime.datetime.now()
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: moment))
    monkeypatch.setattr(filters, "datetime", clock)


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo what a command that runs in this process does to logging: its output is closed later."""
    loggers = [logging.getLogger(), logging.getLogger("dragoman")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
