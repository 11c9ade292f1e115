"""Every schema of the corpus, in every way of asking for it, and three ways of thinking.

The model is far too small to do any of this by itself, and answers at temperature 1. What comes to
an end by itself must fit. This takes long; `make test-constraints` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_model import (
    CONSTRAINT_MODES,
    REASONING_TEMPLATES,
    find_answer_error,
    find_report_error,
    make_reasoning_request,
    make_request,
    make_schema_fields,
    make_tool_fields,
    request_answer,
    serve,
    serve_reasoning_model,
)
from tests.support.schemas import Case, corpus
from tests.support.serving import RunningServer

CASES = list(enumerate(corpus()))


class Tally:
    """What came of the requests of one kind."""

    def __init__(self) -> None:
        self.finishes: dict[str, Counter[str]] = {}

    def note(self, kind: str, name: str, finish: str) -> None:
        self.finishes.setdefault(kind, Counter())[finish] += 1
        print(f"{kind:28} {name:30} {finish}", flush=True)

    def tell(self) -> None:
        for kind, finishes in self.finishes.items():
            ended = finishes.total() - finishes["length"]
            print(f"{kind}: {ended} of {finishes.total()} ended by themselves: {dict(finishes)}")


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    made = Tally()
    yield made
    print()
    made.tell()


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=2048, slots=1) as made:
        yield made


@pytest.mark.parametrize("way", CONSTRAINT_MODES)
@pytest.mark.parametrize(("index", "case"), CASES, ids=[case.name for _, case in CASES])
def test_an_answer_that_ends_by_itself_fits(
    server: RunningServer, tally: Tally, index: int, case: Case, way: str
) -> None:
    """Every other required call may be followed by more of them."""
    if way == "response_format":
        schema, fields = case.schema, make_schema_fields(case.schema)
    else:
        schema, fields = case.parameters, make_tool_fields(case.parameters, way)
    if way == "required" and index % 2:
        fields["parallel_tool_calls"] = False
    body = make_request("Make something up.", index, **fields)
    whole, streamed = (request_answer(server, body, streamed=one) for one in (False, True))
    tally.note(way, case.name, whole.finish)
    assert streamed == whole
    assert find_answer_error(whole, schema, way) is None


@pytest.fixture(scope="module", params=REASONING_TEMPLATES)
def thinking(
    default_model: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[str, RunningServer]]:
    with serve_reasoning_model(default_model, request.param) as made:
        yield request.param, made


@pytest.mark.parametrize("seed", range(34))
def test_thoughts_are_followed_by_a_call_or_json(
    thinking: tuple[str, RunningServer], tally: Tally, seed: int
) -> None:
    """Thoughts that the prompt opened or not, with a budget or without, and one call or several."""
    manner, server = thinking
    body = make_reasoning_request(seed, parallel_tool_calls=seed % 3 == 0)
    body["chat_template_kwargs"] = {"enable_thinking": True} if seed % 2 else {}
    if seed // 2 % 2 and manner != "harmony":  # its thoughts cannot be ended for it
        body["thinking_budget"] = 8
    whole, streamed = (request_answer(server, body, streamed=one) for one in (False, True))
    thought = "after thoughts" if whole.reasoning else "at once"
    tally.note(f"{manner} {thought}", f"seed {seed}", whole.finish)
    assert streamed == whole
    assert find_report_error(whole) is None
