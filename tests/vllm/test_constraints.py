"""40 schemas, and three formats of reasoning with tools and a schema: no invalid answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.real_model import (
    CONSTRAINT_MODES,
    REASONING_TEMPLATES,
    find_answer_error,
    find_report_error,
    make_constrained_request,
    make_reasoning_variant,
    request_answer,
)
from tests.support.schemas import SchemaCase, make_cases
from tests.support.serving import RunningServer
from tests.support.vllm_model import use_template

CONCURRENT = 8
CASES = make_cases()[:: max(1, len(make_cases()) // 40)][:40]
SEEDS = range(8)


def check_schema(server: RunningServer, index: int, case: SchemaCase) -> str | None:
    """Return what is wrong with an answer, whole or streamed; None if nothing is."""
    mode = CONSTRAINT_MODES[index % len(CONSTRAINT_MODES)]
    schema, body = make_constrained_request(case, mode, index)
    streamed = request_answer(server, body, streamed=True)
    problem = find_answer_error(streamed, schema, mode)
    print(f"{mode:16} {case.name:30} {streamed.finish:11} {problem or 'valid'}", flush=True)
    return f"{case.name}: {problem}" if problem else None


def test_every_complete_answer_matches_its_schema(server: RunningServer) -> None:
    assert len(CASES) == 40
    with ThreadPoolExecutor(CONCURRENT) as pool:
        problems = pool.map(lambda entry: check_schema(server, *entry), enumerate(CASES))
        assert not [problem for problem in problems if problem is not None]


@pytest.mark.parametrize("reasoning_format", REASONING_TEMPLATES)
def test_reasoning_is_followed_by_a_call_or_json(
    server: RunningServer, reasoning_format: str
) -> None:
    def ask(seed: int) -> str | None:
        body = make_reasoning_variant(seed, reasoning_format)
        answer = request_answer(server, body, streamed=True)
        problem = find_report_error(answer)
        print(f"{reasoning_format:16} seed {seed} {answer.finish:11} {problem or 'valid'}")
        return problem

    with (
        use_template(server, REASONING_TEMPLATES[reasoning_format]),
        ThreadPoolExecutor(CONCURRENT) as pool,
    ):
        assert not [problem for problem in pool.map(ask, SEEDS) if problem is not None]
