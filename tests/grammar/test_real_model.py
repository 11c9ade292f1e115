"""Constraints with the real model, which is too small to satisfy any of them by itself.

`tests/heavy` covers all 200 schemas and a hundred requests with reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.grammar.lark_builder import HEADER
from dragoman.testing.grammars import match_grammar
from tests.support.client_grammars import PATCH
from tests.support.real_model import (
    CITY_SCHEMA,
    CONSTRAINT_MODES,
    MODEL,
    REASONING_TEMPLATES,
    REPORT_SCHEMA,
    TOOL_SCHEMAS,
    Answer,
    find_answer_error,
    find_report_error,
    find_schema_error,
    make_reasoning_request,
    make_request,
    make_schema_fields,
    make_tool,
    make_tool_fields,
    request_answer,
    request_answers,
    serve,
    serve_reasoning_model,
)
from tests.support.schemas import make_array, make_cases, make_enum, make_integer, make_object
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model

SCHEMAS = {case.name: case for case in make_cases()}
# `make test-constraints` takes all schemas in all modes, and more seeds
SAMPLE = ("optional-2", "awkward_keys-1", "unicode_keys-2", "root_choice-3", "formats-0")
NAMES: dict[str, Any] = make_object({"name": CITY_SCHEMA, "age": make_integer(0, 120)})


COLOURS = {"enum": ["red", "green", "blue"]}
YEARS = make_integer(1, 9)
# what a parameter of a rule counts, and what a terminal excludes: engines must read it as we do
CONDITIONS: dict[str, Any] = {
    "number of properties": {
        "type": "object",
        "properties": {"a": YEARS, "b": YEARS},
        "additionalProperties": COLOURS,
        "required": ["b"],
        "maxProperties": 2,
    },
    "contains": {
        "type": "array",
        "items": {"enum": ["x", "y", 1]},
        "contains": {"const": 1},
        "minItems": 2,
        "maxItems": 4,
    },
    "uniqueItems": {"type": "array", "items": COLOURS, "uniqueItems": True, "minItems": 2},
    "not": {"type": "string", "not": {"pattern": "^[a-z]|e"}, "maxLength": 12},
    "oneOf": {
        "type": "object",
        "properties": {"radius": YEARS, "width": YEARS, "height": YEARS},
        "additionalProperties": False,
        "oneOf": [{"required": ["radius"]}, {"required": ["width", "height"]}],
    },
    "if": {
        "type": "object",
        "properties": {"kind": COLOURS, "n": YEARS},
        "required": ["kind"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"const": "red"}}},
        "then": {"required": ["n"]},
        "else": {"properties": {"n": False}},
    },
}


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    # one slot: another one may compute slightly different numbers and so choose another token
    with serve(default_model, context=2048, slots=1) as running:
        yield running


@pytest.fixture(scope="module", params=REASONING_TEMPLATES)
def reasoning_server(
    default_model: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[str, RunningServer]]:
    with serve_reasoning_model(default_model, request.param) as running:
        yield request.param, running


@pytest.mark.parametrize("name", CONDITIONS)
def test_answers_satisfy_conditions(server: RunningServer, name: str) -> None:
    check_condition(server, name, seed=0)


def check_condition(server: RunningServer, name: str, seed: int) -> None:
    schema = CONDITIONS[name]
    body = make_request("Make something up.", seed, **make_schema_fields(schema))
    answer = request_answer(server, body)
    assert find_answer_error(answer, schema, "response_format") is None
    assert answer.is_complete


def request_both(server: RunningServer, body: dict[str, Any]) -> Answer:
    """Request an answer whole and streamed, and check that both are the same."""
    answer = request_answer(server, body)
    assert request_answer(server, body, streamed=True) == answer
    return answer


def get_json(answer: Answer) -> str:
    """Return the arguments of the first call, or the content if there are no calls."""
    return answer.calls[0][1] if answer.calls else answer.content


def make_constraint_fields(schema: Any, mode: str) -> dict[str, Any]:
    if mode == "response_format":
        return make_schema_fields(schema)
    return make_tool_fields(schema, mode)


# Schemas


@pytest.mark.parametrize("name", SAMPLE)
def test_complete_answers_match_the_schema(server: RunningServer, name: str) -> None:
    """The modes alternate."""
    case, mode = SCHEMAS[name], CONSTRAINT_MODES[SAMPLE.index(name) % len(CONSTRAINT_MODES)]
    schema = case.schema if mode == "response_format" else case.parameters
    fields = make_constraint_fields(schema, mode)
    answer = request_answer(server, make_request("Make something up.", 1, max_tokens=80, **fields))
    assert find_answer_error(answer, schema, mode) is None


def test_most_answers_are_complete(server: RunningServer) -> None:
    schema = make_object({"it": make_array(NAMES, 1, 1)})
    bodies = [
        make_request("Make something up.", seed, **make_schema_fields(schema)) for seed in range(3)
    ]
    answers = [request_answer(server, body) for body in bodies]
    complete = [answer for answer in answers if answer.is_complete]
    assert [find_schema_error(answer.content, schema) for answer in complete] == [None] * 3


def test_same_seed_gets_the_same_answer(server: RunningServer) -> None:
    check_seeds(server, "response_format")


def check_seeds(server: RunningServer, mode: str) -> None:
    fields = make_constraint_fields(NAMES, mode)

    def request_json(seed: int) -> str:
        body = make_request("Who are you?", seed, max_tokens=40, **fields)
        return get_json(request_answer(server, body))

    first = request_json(5)
    assert first == request_json(5)
    assert first != request_json(6)


def test_every_end_token_ends_a_constrained_answer(server: RunningServer) -> None:
    """The native server would guess one of them by its text, and the wrong one."""
    end_tokens = list_end_tokens(server)
    assert len(end_tokens) > 1
    for token in end_tokens:
        body = make_request("Hello!", 1, regex="[A-Za-z ]+", logit_bias={str(token): 100})
        answer = request_answer(server, body)
        assert answer.finish == "stop"
        assert len(answer.content.split()) <= 1


def list_end_tokens(server: RunningServer) -> list[int]:
    model = next(iter(server.app.runtime.services.models.list_loaded()))
    assert model.tokenizer is not None
    return sorted(model.tokenizer.eos_ids)


def test_free_text_with_strict_tools_is_complete(server: RunningServer) -> None:
    body = make_request(
        "Say hello.", 1, temperature=0, tools=[make_tool(TOOL_SCHEMAS["weather"], "weather")]
    )
    assert request_answer(server, body).is_complete


# Finish reasons


FIXED_TEXT = make_object({"say": {"const": "Stop here, please."}})


@pytest.mark.parametrize("mode", CONSTRAINT_MODES)
def test_stop_string_inside_json_does_not_cut_it(server: RunningServer, mode: str) -> None:
    fields = make_constraint_fields(FIXED_TEXT, mode)
    body = make_request("Speak.", 1, stop=["here", "ease."], **fields)
    if mode == "required":
        body["parallel_tool_calls"] = False
    answer = request_answer(server, body, streamed=mode != "required")
    assert answer.is_complete
    assert json.loads(get_json(answer)) == {"say": "Stop here, please."}


@pytest.mark.parametrize("mode", CONSTRAINT_MODES)
def test_cut_answers_finish_with_length(server: RunningServer, mode: str) -> None:
    schema = make_object({"text": {"type": "string", "minLength": 200}})
    body = make_request("Speak.", 1, **make_constraint_fields(schema, mode))
    long = request_both(server, body | {"max_tokens": 17})
    # requests with a seed compute the prompt again without this
    short = request_answer(server, body | {"max_tokens": 1, "cache_prompt": True})
    for answer, limit in ((long, 17), (short, 1)):
        assert answer.finish == "length"
        assert answer.usage["completion_tokens"] == limit
        assert find_schema_error(get_json(answer), schema) is not None


# Tool choice


def test_without_parallel_tool_calls_there_is_one_call(server: RunningServer) -> None:
    fields = make_tool_fields(TOOL_SCHEMAS["weather"], "required") | {"parallel_tool_calls": False}
    fields["cache_prompt"] = True  # requests with a seed do without
    for seed in range(2):
        answer = request_answer(server, make_request("How is the weather?", seed, **fields))
        assert find_answer_error(answer, TOOL_SCHEMAS["weather"], "named") is None
        assert answer.finish == "tool_calls"


def make_allowed_tools(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(server: RunningServer, mode: str) -> None:
    tools = [make_tool(parameters, name) for name, parameters in TOOL_SCHEMAS.items()]
    for seed in range(2):
        body = make_request("Weather?", seed, max_tokens=48, tools=tools, parallel_tool_calls=False)
        body |= {"tool_choice": make_allowed_tools(mode, "now"), "cache_prompt": True}
        answer = request_answer(server, body)
        assert {name for name, _ in answer.calls} <= {"now"}
        assert answer.calls or mode == "auto"


def test_tool_choice_none_calls_no_tool(server: RunningServer) -> None:
    tools = [make_tool(TOOL_SCHEMAS["weather"], "weather")]
    body = make_request("How is the weather?", 1, max_tokens=24, tools=tools, tool_choice="none")
    answer = request_both(server, body)
    assert answer.content
    assert not answer.calls
    plain = {key: value for key, value in body.items() if not key.startswith("tool")}
    assert request_answer(server, plain) == answer


SAY_GRAMMAR = 'start: line line?\nline: "say \\"" /[^"\\n]{1,12}/ "\\"" LF\n%import common.LF'


@pytest.mark.parametrize("grammar", [SAY_GRAMMAR, PATCH])
def test_input_of_a_custom_tool_matches_its_grammar(server: RunningServer, grammar: str) -> None:
    tool_format = {"type": "grammar", "syntax": "lark", "definition": grammar}
    body = {
        "model": MODEL,
        "input": "Speak.",
        "tools": [{"type": "custom", "name": "speak", "format": tool_format}],
        "tool_choice": {"type": "custom", "name": "speak"},
        "max_output_tokens": 64,
        "temperature": 0,
    }
    response = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
    [call] = response["output"]
    is_complete, length = match_grammar(f"{HEADER}\n{grammar}", call["input"])
    assert length == len(call["input"].encode())
    assert is_complete or response["status"] == "incomplete"
    assert is_complete or grammar == PATCH


# Other fields


def test_logprobs_of_a_constrained_answer(server: RunningServer) -> None:
    fields = make_schema_fields(NAMES) | {"logprobs": True, "top_logprobs": 2}
    answer = request_both(server, make_request("Who are you?", 1, **fields))
    assert "".join(entry["token"] for entry in answer.tokens) == answer.content
    assert all(entry["logprob"] <= 0 for entry in answer.tokens)
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer.tokens)
    assert answer.usage["completion_tokens"] - len(answer.tokens) in (0, 1)  # the end has no text


def test_two_choices_match_one_schema(server: RunningServer) -> None:
    body = make_request("Who are you?", 1, n=2, **make_schema_fields(NAMES))
    answers = request_answers(server, body)
    assert request_answers(server, body, streamed=True) == answers
    errors = [find_answer_error(answer, NAMES, "response_format") for answer in answers]
    assert errors == [None, None]
    assert answers[0].content != answers[1].content


def test_usage_counts_every_token(server: RunningServer) -> None:
    plain = request_answer(server, make_request("Who are you?", 1, max_tokens=1)).usage
    body = make_request("Who are you?", 1, **make_schema_fields({"const": "I am nobody."}))
    usage = request_answer(server, body).usage
    assert usage["prompt_tokens"] == plain["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    needed = usage["completion_tokens"]
    assert request_answer(server, body | {"max_tokens": needed}).finish == "stop"
    assert request_answer(server, body | {"max_tokens": needed - 2}).finish == "length"


def test_choice_regex_and_json_schema_fields(server: RunningServer) -> None:
    answer = request_both(server, make_request("Who are you?", 1, choice=["a stone", "a river"]))
    assert answer.content in ("a stone", "a river")
    answer = request_both(server, make_request("Who are you?", 1, regex="[a-f]{4}-[0-9]{2}"))
    assert len(answer.content) == 7
    schema = make_enum("a", "b")
    answer = request_both(server, make_request("Who?", 1, json_schema=schema))
    assert find_schema_error(answer.content, schema) is None


# Reasoning


def test_reasoning_is_followed_by_a_call_or_json(
    reasoning_server: tuple[str, RunningServer],
) -> None:
    reasoning_format, server = reasoning_server
    for seed in range(3, 9):  # some end within the token limit, whatever the seeds give here
        body = make_reasoning_request(seed, parallel_tool_calls=False)
        answer = request_answer(server, body, streamed=True)
        assert find_report_error(answer) is None
        if answer.is_complete:
            break
    assert answer.is_complete
    if reasoning_format == "harmony":  # its reasoning cannot be cut short
        return
    options = {"thinking_budget": 4, "chat_template_kwargs": {"enable_thinking": True}}
    body = make_reasoning_request(4, **options) | {"tools": None}
    answer = request_answer(server, body)
    assert answer.reasoning
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] <= 6
    assert find_schema_error(answer.content, REPORT_SCHEMA) is None


@pytest.mark.parametrize("mode", ["required", "named"])
def test_the_same_call_is_not_made_again(server: RunningServer, mode: str) -> None:
    """Without that, the model makes this call thirteen times, up to the limit."""
    query = make_object({"query": {"type": "string"}})
    body = make_request("What is 2+2?", 1, temperature=0, max_tokens=300)
    body |= make_tool_fields(query, mode)
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
    [choice] = response["choices"]
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert len({json.dumps(json.loads(arguments)) for arguments in calls}) == len(calls)
    assert choice["finish_reason"] == ("stop" if mode == "named" else "tool_calls")
    assert not choice["message"]["content"]
