"""Loaded into the vendor's pytest: has objects created before each test, records its outcome."""

from __future__ import annotations

import functools
import json
import os
import socket
from io import BufferedRWPair

import pytest


@functools.cache
def connect() -> BufferedRWPair:
    port = int(os.environ["DRAGOMAN_SEEDING"])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return connection.makefile("rwb")  # keeps the socket open


def pytest_runtest_setup(item: pytest.Item) -> None:
    connect().write(b"\n")
    connect().flush()
    if not connect().readline():
        pytest.exit("The objects that the tests need could not be created.", 2)


def pytest_unconfigure() -> None:
    connect().close()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        error = str(report.longrepr).splitlines()[-1:] if report.outcome == "failed" else []
        line = json.dumps([report.nodeid, report.outcome, "".join(error)])
        with open(os.environ["DRAGOMAN_RESULTS"], "a", encoding="utf-8") as results:
            results.write(line + "\n")
