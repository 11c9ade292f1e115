"""The Grafana dashboard asks only for metrics and labels that a server has after some traffic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import ROOT
from tests.support.serving import make_chat, serve_scripted

DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
_METRIC = re.compile(r"\b((?:dragoman|process)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"by \(([^)]*)\)")


def list_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        yield from [variable["definition"]] if variable["type"] == "query" else []


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each metric that a server has."""
    engine = ScriptedEngine(
        [Reply("fails", when="bad", raise_at=1), Reply("Hi!")], slots=2, context=99
    )
    with serve_scripted(engine) as server:
        # Scripted engines are not loaded; registries report the loads of others in this way.
        server.app.runtime.services.models.on_loaded("scripted", 1.0)
        for text in ("hi", "bad"):
            httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(text, verbosity="low"))
        page = httpx.get(f"{server.url}/metrics").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", list(list_queries()))
def test_query_uses_metrics_that_exist(query: str, labels: dict[str, set[str]]) -> None:
    metrics = _METRIC.findall(query)
    assert metrics
    for name, selector in metrics:
        assert name in labels, name
        used = {part.split("=")[0].rstrip("~!") for part in selector.split(",") if part}
        assert used <= labels[name], (name, used)
    for group in _GROUPING.findall(query):
        wanted = {label.strip() for label in group.split(",")}
        assert wanted <= set.union(*(labels[name] for name, _ in metrics)), query


def test_dashboard_is_well_formed() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    assert all(panel.get("targets") or panel["type"] == "row" for panel in panels)
