"""Every schema of the corpus in every constraint mode, conditions, and three reasoning formats.

The model is far too small to satisfy any of this by itself, and answers at temperature 1. Every
complete answer must match. This takes about an hour; `make test-constraints` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grammar.test_real_model import CONDITIONS, check_condition, check_seeds
from tests.support.real_model import (
    CONSTRAINT_MODES,
    REASONING_TEMPLATES,
    find_answer_error,
    find_report_error,
    make_constrained_request,
    make_reasoning_variant,
    request_answer,
    serve,
    serve_reasoning_model,
)
from tests.support.schemas import SchemaCase, make_cases
from tests.support.serving import RunningServer

CASES = list(enumerate(make_cases()))


class FinishCounter:
    """Counts the finish reasons of the answers, by kind of request."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def add(self, kind: str, name: str, finish: str) -> None:
        self.counts.setdefault(kind, Counter())[finish] += 1
        print(f"{kind:28} {name:30} {finish}", flush=True)

    def print_summary(self) -> None:
        for kind, counts in self.counts.items():
            complete = counts.total() - counts["length"]
            print(f"{kind}: {complete} of {counts.total()} are complete: {dict(counts)}")


@pytest.fixture(scope="module")
def counter() -> Iterator[FinishCounter]:
    finish_counter = FinishCounter()
    yield finish_counter
    print()
    finish_counter.print_summary()


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=2048, slots=1) as running:
        yield running


@pytest.mark.parametrize("mode", CONSTRAINT_MODES)
@pytest.mark.parametrize(("index", "case"), CASES, ids=[case.name for _, case in CASES])
def test_complete_answers_match_the_schema(
    server: RunningServer, counter: FinishCounter, index: int, case: SchemaCase, mode: str
) -> None:
    """Every other request with a required call allows several calls."""
    schema, body = make_constrained_request(case, mode, index)
    if mode == "required" and index % 2:
        body["parallel_tool_calls"] = False
    whole, streamed = (request_answer(server, body, streamed=value) for value in (False, True))
    counter.add(mode, case.name, whole.finish)
    assert streamed == whole
    assert find_answer_error(whole, schema, mode) is None


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("seed", range(1, 10))
def test_answers_satisfy_conditions(server: RunningServer, name: str, seed: int) -> None:
    check_condition(server, name, seed)


@pytest.mark.parametrize("mode", CONSTRAINT_MODES)
def test_same_seed_gets_the_same_answer(server: RunningServer, mode: str) -> None:
    check_seeds(server, mode)


@pytest.fixture(scope="module", params=REASONING_TEMPLATES)
def reasoning_server(
    default_model: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[str, RunningServer]]:
    with serve_reasoning_model(default_model, request.param) as running:
        yield request.param, running


@pytest.mark.parametrize("seed", range(34))
def test_reasoning_is_followed_by_a_call_or_json(
    reasoning_server: tuple[str, RunningServer], counter: FinishCounter, seed: int
) -> None:
    """The prompt opens reasoning or not, there is a budget or not, and one call or several."""
    reasoning_format, server = reasoning_server
    body = make_reasoning_variant(seed, reasoning_format)
    whole, streamed = (request_answer(server, body, streamed=value) for value in (False, True))
    kind = "with reasoning" if whole.reasoning else "without reasoning"
    counter.add(f"{reasoning_format} {kind}", f"seed {seed}", whole.finish)
    assert streamed == whole
    assert find_report_error(whole) is None
