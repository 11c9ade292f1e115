"""What a request demands of the real model, which could do none of it by itself.

All 200 schemas and a hundred trains of thought are in `tests/heavy`.
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

SCHEMAS = {case.name: case for case in make_cases()}
SAMPLE = (
    "optional-2",
    "map_of_values-0",
    "awkward_keys-1",
    "unicode_keys-2",
    "linked_list-0",
    "choice_of_objects-0",
    "root_choice-3",
    "enum_of_all_kinds-0",
    "multiples-2",
    "formats-0",
)
NAMES: dict[str, Any] = make_object({"name": CITY_SCHEMA, "age": make_integer(0, 120)})


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    # one place: in another, the last bits of a long prompt's numbers differ, and so may a choice
    with serve(default_model, context=2048, slots=1) as made:
        yield made


@pytest.fixture(scope="module", params=REASONING_TEMPLATES)
def thinking(
    default_model: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[str, RunningServer]]:
    with serve_reasoning_model(default_model, request.param) as made:
        yield request.param, made


def both(server: RunningServer, body: dict[str, Any]) -> Answer:
    """An answer that is the same in a stream and whole."""
    found = request_answer(server, body)
    assert request_answer(server, body, streamed=True) == found
    return found


def text_of(found: Answer) -> str:
    """What was asked for, as JSON."""
    return found.calls[0][1] if found.calls else found.content


# Schemas


@pytest.mark.parametrize("name", SAMPLE)
def test_what_ends_by_itself_fits(server: RunningServer, name: str) -> None:
    """As content, as a call that is required and as one that is named, in turns."""
    case, way = SCHEMAS[name], CONSTRAINT_MODES[SAMPLE.index(name) % len(CONSTRAINT_MODES)]
    schema = case.schema if way == "response_format" else case.parameters
    fields = (
        make_schema_fields(schema) if way == "response_format" else make_tool_fields(schema, way)
    )
    found = request_answer(server, make_request("Make something up.", 1, max_tokens=80, **fields))
    assert find_answer_error(found, schema, way) is None


def test_most_answers_end_by_themselves(server: RunningServer) -> None:
    schema = make_object({"it": make_array(NAMES, 1, 1)})
    asked = [
        make_request("Make something up.", seed, **make_schema_fields(schema)) for seed in range(3)
    ]
    found = [request_answer(server, body) for body in asked]
    assert [find_schema_error(one.content, schema) for one in found if one.is_complete] == [
        None
    ] * 3


@pytest.mark.parametrize("way", ["response_format", "named"])
def test_seeds_can_be_repeated(server: RunningServer, way: str) -> None:
    fields = make_schema_fields(NAMES) if way == "response_format" else make_tool_fields(NAMES, way)

    def said(seed: int) -> str:
        return text_of(
            request_answer(server, make_request("Who are you?", seed, max_tokens=40, **fields))
        )

    first = said(5)
    assert first == said(5)
    assert first != said(6)


def test_every_token_that_ends_an_answer_ends_a_constrained_one(server: RunningServer) -> None:
    """Of those, the native server would pick one by its looks, and the wrong one."""
    ends = engine_ends(server)
    assert len(ends) > 1
    for end in ends:
        body = make_request("Hello!", 1, regex="[A-Za-z ]+", logit_bias={str(end): 100})
        found = request_answer(server, body)
        assert found.finish == "stop"
        assert len(found.content.split()) <= 1


def engine_ends(server: RunningServer) -> list[int]:
    model = next(iter(server.app.runtime.services.models.list_loaded()))
    assert model.tokenizer is not None
    return sorted(model.tokenizer.eos_ids)


def test_free_text_beside_strict_tools_comes_to_its_end(server: RunningServer) -> None:
    body = make_request(
        "Say hello.", 1, temperature=0, tools=[make_tool(TOOL_SCHEMAS["weather"], "weather")]
    )
    assert request_answer(server, body).is_complete


# Ends


SPOKEN = make_object({"say": {"const": "Stop here, please."}})


@pytest.mark.parametrize("way", CONSTRAINT_MODES)
def test_a_stop_string_inside_json_does_not_cut_it(server: RunningServer, way: str) -> None:
    fields = (
        make_schema_fields(SPOKEN) if way == "response_format" else make_tool_fields(SPOKEN, way)
    )
    body = make_request("Speak.", 1, stop=["here", "ease."], **fields)
    if way == "required":
        body["parallel_tool_calls"] = False
    found = request_answer(server, body, streamed=way != "required")
    assert found.is_complete
    assert json.loads(text_of(found)) == {"say": "Stop here, please."}


@pytest.mark.parametrize("limit", [1, 17])
@pytest.mark.parametrize("way", CONSTRAINT_MODES)
def test_what_is_cut_says_so(server: RunningServer, way: str, limit: int) -> None:
    long = make_object({"text": {"type": "string", "minLength": 200}})
    fields = make_schema_fields(long) if way == "response_format" else make_tool_fields(long, way)
    body = make_request("Speak.", 1, max_tokens=limit, **fields)
    found = both(server, body) if limit > 1 else request_answer(server, body)
    assert found.finish == "length"
    assert found.usage["completion_tokens"] == limit
    assert find_schema_error(text_of(found), long) is not None


# Which tools


def test_one_call_where_only_one_may_be_made(server: RunningServer) -> None:
    fields = make_tool_fields(TOOL_SCHEMAS["weather"], "required") | {"parallel_tool_calls": False}
    for seed in range(2):
        found = request_answer(server, make_request("How is the weather?", seed, **fields))
        assert find_answer_error(found, TOOL_SCHEMAS["weather"], "named") is None
        assert found.finish == "tool_calls"


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(server: RunningServer, mode: str) -> None:
    tools = [make_tool(parameters, name) for name, parameters in TOOL_SCHEMAS.items()]
    for seed in range(2):
        body = make_request("Weather?", seed, max_tokens=48, tools=tools, parallel_tool_calls=False)
        found = request_answer(server, body | {"tool_choice": allowed(mode, "now")})
        assert {name for name, _ in found.calls} <= {"now"}
        assert found.calls or mode == "auto"


def test_no_tool_is_called_where_none_may_be(server: RunningServer) -> None:
    tools = [make_tool(TOOL_SCHEMAS["weather"], "weather")]
    body = make_request("How is the weather?", 1, max_tokens=24, tools=tools, tool_choice="none")
    found = both(server, body)
    assert found.content
    assert not found.calls
    plain = {key: value for key, value in body.items() if not key.startswith("tool")}
    assert request_answer(server, plain) == found


SPEECH = 'start: line line?\nline: "say \\"" /[^"\\n]{1,12}/ "\\"" LF\n%import common.LF'


@pytest.mark.parametrize("grammar", [SPEECH, PATCH])
def test_the_text_of_a_custom_tool_keeps_to_its_grammar(
    server: RunningServer, grammar: str
) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": grammar}
    body = {
        "model": MODEL,
        "input": "Speak.",
        "tools": [{"type": "custom", "name": "speak", "format": form}],
        "tool_choice": {"type": "custom", "name": "speak"},
        "max_output_tokens": 64,
    }
    said = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
    [call] = said["output"]
    whole, at = match_grammar(f"{HEADER}\n{grammar}", call["input"])
    assert at == len(call["input"].encode())
    assert whole or said["status"] == "incomplete"
    assert whole or grammar == PATCH


# What else a request may ask for


def test_logprobs_of_a_constrained_answer(server: RunningServer) -> None:
    fields = make_schema_fields(NAMES) | {"logprobs": True, "top_logprobs": 2}
    found = both(server, make_request("Who are you?", 1, **fields))
    assert "".join(entry["token"] for entry in found.tokens) == found.content
    assert all(entry["logprob"] <= 0 for entry in found.tokens)
    assert all(len(entry["top_logprobs"]) == 2 for entry in found.tokens)
    assert found.usage["completion_tokens"] - len(found.tokens) in (0, 1)  # the end has no text


def test_two_choices_of_one_schema(server: RunningServer) -> None:
    body = make_request("Who are you?", 1, n=2, **make_schema_fields(NAMES))
    found = request_answers(server, body)
    assert request_answers(server, body, streamed=True) == found
    assert [find_answer_error(one, NAMES, "response_format") for one in found] == [None, None]
    assert found[0].content != found[1].content


def test_usage_counts_what_was_written(server: RunningServer) -> None:
    plain = request_answer(server, make_request("Who are you?", 1, max_tokens=1)).usage
    body = make_request("Who are you?", 1, **make_schema_fields({"const": "I am nobody."}))
    usage = request_answer(server, body).usage
    assert usage["prompt_tokens"] == plain["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (
        request_answer(server, body | {"max_tokens": usage["completion_tokens"]}).finish == "stop"
    )
    assert (
        request_answer(server, body | {"max_tokens": usage["completion_tokens"] - 2}).finish
        == "length"
    )


def test_choices_and_patterns(server: RunningServer) -> None:
    found = both(server, make_request("Who are you?", 1, choice=["a stone", "a river"]))
    assert found.content in ("a stone", "a river")
    found = both(server, make_request("Who are you?", 1, regex="[a-f]{4}-[0-9]{2}"))
    assert len(found.content) == 7
    schema = make_enum("a", "b")
    assert (
        find_schema_error(both(server, make_request("Who?", 1, json_schema=schema)).content, schema)
        is None
    )


# Thinking


def test_thoughts_then_a_call_or_json(thinking: tuple[str, RunningServer]) -> None:
    manner, server = thinking
    found = request_answer(
        server, make_reasoning_request(3, parallel_tool_calls=False), streamed=True
    )
    assert found.is_complete
    assert find_report_error(found) is None
    if manner == "harmony":  # its thoughts cannot be ended for it
        return
    opened = {"thinking_budget": 4, "chat_template_kwargs": {"enable_thinking": True}}
    body = make_reasoning_request(4, **opened) | {"tools": None}
    found = request_answer(server, body)
    assert found.reasoning
    assert found.usage["completion_tokens_details"]["reasoning_tokens"] <= 6
    assert find_schema_error(found.content, REPORT_SCHEMA) is None
