"""Collects what the hostile tests show, for docs/reliability.md.

Tests are named `test_hole_<number>_…` or `test_fault_<number>_…`. With `--write-report`, the
result of each is written to `docs/parts/reliability/holes.json` or `faults.json`: the number of
cases, which is the number of parameters unless the test counts its cases itself, and how many
failed. Figures that a test adds under a name are written to `<name>.json`. Only what was run is
replaced, so parts can be run apart. `docs/generate.py` makes the page from these files.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.support.paths import ROOT, TESTS
from tests.support.yaml_files import read_yaml

HOSTILE = TESTS / "hostile"
RESULTS = ROOT / "docs" / "parts" / "reliability"
TEST_NAME = re.compile(r"test_(hole|fault)_(\d+)_\w+")
KINDS = {"hole": "holes", "fault": "faults"}
CASES, FIGURES = "cases", "figures"  # keys of the properties of a test


def read_entries(kind: str) -> dict[int, dict[str, Any]]:
    """Read the entries of holes.yaml or faults.yaml by number; a number may occur only once."""
    sections = read_yaml(HOSTILE / f"{KINDS[kind]}.yaml")
    entries: dict[int, dict[str, Any]] = {}
    for section in sections.values():
        for entry in section:
            assert entry["number"] not in entries, entry["number"]
            entries[entry["number"]] = entry
    return entries


@cache  # the source does not change during a session
def list_test_names(kind: str, heavy: bool = True) -> dict[int, set[str]]:
    """List the names of the tests in the source, by number; `heavy` ones only if asked."""
    names: dict[int, set[str]] = defaultdict(set)
    for path in HOSTILE.rglob("test_*.py"):
        if path.parent.name == "heavy" and not heavy:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match = TEST_NAME.fullmatch(getattr(node, "name", ""))
            if match is not None and match[1] == kind:
                names[int(match[2])].add(match[0])
    return names


def read_results(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


class ReportWriter:
    """A pytest plugin that writes the results at the end of the session."""

    def __init__(self) -> None:
        self._tests: dict[str, dict[str, int]] = {}
        self._figures: dict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call":
            for figures_name, figures in properties.get(FIGURES, {}).items():
                self._figures[figures_name] |= figures
        if TEST_NAME.fullmatch(name) and (report.when == "call" or report.failed):
            result = self._tests.setdefault(name, {CASES: 0, "failed": 0})
            result[CASES] += properties.get(CASES, 1) if report.when == "call" else 0
            result["failed"] += report.failed

    def pytest_sessionfinish(self) -> None:
        for kind, name in KINDS.items():
            _write(name, dict(self._list_results(kind)))
        for name, figures in self._figures.items():
            _write(name, read_results(name) | figures)

    def _list_results(self, kind: str) -> Iterator[tuple[str, dict[str, dict[str, int]]]]:
        """List the results by number: of this session, else those that were written before."""
        before = read_results(KINDS[kind])
        for number, names in sorted(list_test_names(kind).items()):
            known: dict[str, dict[str, int]] = before.get(str(number), {}) | self._tests
            results = {name: known[name] for name in sorted(names) if name in known}
            if results:
                yield str(number), results


def _write(name: str, results: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
