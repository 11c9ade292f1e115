"""docs/reliability.md covers every hole and every fault, with results of the tests that exist."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.reliability import KINDS, list_test_names, read_entries, read_results

COUNTS = {"hole": 96, "fault": 40}
ENTRIES = [(kind, entry) for kind in COUNTS for entry in read_entries(kind).values()]


def name_entry(value: Any) -> str:
    return value if isinstance(value, str) else str(value["number"])


@pytest.mark.parametrize("kind", COUNTS)
def test_every_number_occurs_once(kind: str) -> None:
    assert sorted(read_entries(kind)) == list(range(1, COUNTS[kind] + 1))


@pytest.mark.parametrize("kind", COUNTS)
def test_every_test_has_an_entry(kind: str) -> None:
    assert set(list_test_names(kind)) <= set(read_entries(kind))


@pytest.mark.parametrize(("kind", "entry"), ENTRIES, ids=name_entry)
def test_entry_has_tests_or_a_reason(kind: str, entry: dict[str, Any]) -> None:
    assert entry["tried"]
    assert ("answer" in entry) != ("reason" in entry)
    assert "reason" in entry or entry["number"] in list_test_names(kind)


@pytest.mark.parametrize(("kind", "entry"), ENTRIES, ids=name_entry)
def test_results_are_of_the_tests_that_exist_and_passed(kind: str, entry: dict[str, Any]) -> None:
    results = read_results(KINDS[kind]).get(str(entry["number"]), {})
    names, required = (
        list_test_names(kind, heavy).get(entry["number"], set()) for heavy in (True, False)
    )
    assert required <= set(results) <= names, "run `make test-hostile`"
    assert all(result["cases"] > 0 and not result["failed"] for result in results.values())


@pytest.mark.parametrize(("kind", "letter"), [("hole", ""), ("fault", "F")])
def test_page_has_a_row_for_every_number(kind: str, letter: str) -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    for number in range(1, COUNTS[kind] + 1):
        assert rows.count(f"{letter}{number}") == 1
