"""Loaded into the vendor's pytest: has things planted before a test, notes what became of it."""

from __future__ import annotations

import functools
import json
import os
import socket
from io import BufferedRWPair

import pytest


@functools.cache
def door() -> BufferedRWPair:
    port = int(os.environ["DRAGOMAN_SEEDING"])
    with socket.create_connection(("127.0.0.1", port)) as made:
        return made.makefile("rwb")  # which keeps it open


def pytest_runtest_setup(item: pytest.Item) -> None:
    door().write(b"\n")
    door().flush()
    if not door().readline():
        pytest.exit("What the tests need could not be planted.", 2)


def pytest_unconfigure() -> None:
    door().close()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        why = str(report.longrepr).splitlines()[-1:] if report.outcome == "failed" else []
        line = json.dumps([report.nodeid, report.outcome, "".join(why)])
        with open(os.environ["DRAGOMAN_RESULTS"], "a", encoding="utf-8") as results:
            results.write(line + "\n")
