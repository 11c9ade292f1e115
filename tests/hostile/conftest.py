"""Options and fixtures of the hostile tests; `tests/support/reliability.py` writes their report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.reliability import CASES, FIGURES, ReportWriter

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-report",
        action="store_true",
        default=False,
        help="write the results to docs/parts/reliability",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # of pytest-xdist, which reports to its controller
    if config.getoption("--write-report", default=False) and not is_worker:
        config.pluginmanager.register(ReportWriter())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the hostile tests out of the fast ones: most of them start a server."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def count_cases(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """Set how many inputs a test tries; without it, a test is one case."""
    return lambda count: record_property(CASES, count)


@pytest.fixture
def add_figures(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add figures to a table of docs/reliability.md: `add_figures("soak", requests=5000)`."""
    properties = request.node.user_properties

    def add(table: str, **figures: Any) -> None:
        merged: dict[str, dict[str, Any]] = dict(properties).get(FIGURES, {})
        merged = {**merged, table: {**merged.get(table, {}), **figures}}
        properties[:] = [item for item in properties if item[0] != FIGURES]
        properties.append((FIGURES, merged))

    return add
