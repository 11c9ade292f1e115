"""A real server with the default model: requests, answers, and checks against schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import httpx
from jsonschema import Draft202012Validator, FormatChecker

from dragoman import config, runtime
from dragoman.http.server import make_app
from tests.support.paths import TEMPLATES
from tests.support.schemas import SchemaCase
from tests.support.serving import RunningServer, parse_events, run_app

MODEL = "smollm2-135m"
CONSTRAINT_MODES = ("response_format", "required", "named")
COMPLETE_FINISH_REASONS = ("stop", "tool_calls")


@contextmanager
def serve(default_model: Path, **options: Any) -> Iterator[RunningServer]:
    defaults = {"port": 0, "store": "sqlite://", "models_dir": str(default_model.parent.parent)}
    defaults["threads"] = 1  # tests run on all cores; engines with more threads would collide
    settings = config.load(defaults | options)
    models = runtime.build_models(settings, MODEL)
    with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as server:
        server.run_coroutine(models.load(MODEL))
        yield server


# Requests


def make_tool(parameters: Any, name: str = "make", *, strict: bool = True) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def make_schema_fields(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    json_schema = {"name": "answer", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def make_tool_fields(parameters: Any, mode: str) -> dict[str, Any]:
    """Make the fields that force a call: of any tool (`required`), or of a `named` one."""
    named = {"type": "function", "function": {"name": "make"}}
    return {"tools": [make_tool(parameters)], "tool_choice": named if mode == "named" else mode}


def make_constrained_request(case: SchemaCase, mode: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """Make a request whose answer is constrained; return the schema of the answer, too."""
    if mode == "response_format":
        schema, fields = case.schema, make_schema_fields(case.schema)
    else:
        schema, fields = case.parameters, make_tool_fields(case.parameters, mode)
    return schema, make_request("Make something up.", seed, **fields)


def make_request(text: str, seed: int, **fields: Any) -> dict[str, Any]:
    """Make a request that gets the same answer each time."""
    request = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return request | {"temperature": 1, "seed": seed, "max_tokens": 160} | fields


class HasUrl(Protocol):
    """A server in this process or another."""

    @property
    def url(self) -> str: ...


@dataclass
class Answer:
    """One choice of an answer; calls are pairs of name and arguments."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = ""
    tokens: list[Any] = field(default_factory=list)  # entries of its logprobs
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the model ended it, not a limit."""
        return self.finish in COMPLETE_FINISH_REASONS

    def add_message(self, message: dict[str, Any]) -> None:
        """Add a whole message or the delta of a chunk."""
        self.content += message.get("content") or ""
        self.reasoning += message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or ():
            function = call["function"]
            index = call.get("index", len(self.calls))
            if index == len(self.calls):
                assert call["id"]
                self.calls.append((function["name"], ""))
            name, arguments = self.calls[index]
            self.calls[index] = (name, arguments + function.get("arguments", ""))


def request_answers(
    server: HasUrl, body: dict[str, Any], *, streamed: bool = False
) -> list[Answer]:
    """Request every choice of an answer, streamed or whole."""
    url = f"{server.url}/v1/chat/completions"
    if not streamed:
        response = httpx.post(url, json=body, timeout=300)
        assert response.status_code == 200, response.text
        parts, key = [response.json()], "message"
    else:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        response = httpx.post(url, json=body, timeout=300)
        assert response.status_code == 200, response.text
        parts, key = parse_events(response), "delta"
    answers = [Answer() for _ in range(body.get("n", 1))]
    for part in parts:
        for choice in part["choices"]:
            answer = answers[choice["index"]]
            answer.add_message(choice[key])
            answer.finish = choice["finish_reason"] or answer.finish
            answer.tokens += (choice.get("logprobs") or {}).get("content") or []
    answers[0].usage = parts[-1]["usage"]
    return answers


def request_answer(server: HasUrl, body: dict[str, Any], *, streamed: bool = False) -> Answer:
    [answer] = request_answers(server, body, streamed=streamed)
    return answer


# Checks


def find_schema_error(text: str, schema: Any) -> str | None:
    """Return why a text is not JSON of a schema; None if it is.

    Numbers are exact, and integers have no fraction.
    """
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_reject_constant)
    except ValueError as error:
        return f"not JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    errors = Draft202012Validator(exact, format_checker=FORMATS).iter_errors(value)
    return next((error.message for error in errors), None)


def find_answer_error(answer: Answer, schema: Any, mode: str) -> str | None:
    """Return why an answer violates the schema in one of the modes; None if it does not."""
    if mode == "response_format":
        if answer.calls:
            return "there are calls"
        if not answer.is_complete:
            return _find_truncation_error(answer)
        return find_schema_error(answer.content, schema)
    if answer.is_complete and answer.content:
        return "there is text beside the calls"
    if answer.is_complete and not answer.calls:
        return "there is no call"
    if mode == "named" and len(answer.calls) > 1:
        return "there are several calls"
    complete_calls = answer.calls if answer.is_complete else answer.calls[:-1]
    for name, arguments in complete_calls:
        error = "another tool" if name != "make" else find_schema_error(arguments, schema)
        if error is not None:
            return error
    return None if answer.is_complete else _find_truncation_error(answer)


def _find_truncation_error(answer: Answer) -> str | None:
    """Return why an incomplete answer is not a valid answer that reached its limit."""
    if answer.finish != "length":
        return f"the finish reason is {answer.finish!r}"
    tokens = answer.usage["completion_tokens"]
    return None if tokens else "the answer reached its limit without any tokens"


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


FORMATS = FormatChecker()
HOST = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
DURATION = r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)"


def _make_pattern_check(pattern: str) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or re.fullmatch(pattern, value) is not None


def _make_parse_check(parse: Callable[[str], object], pattern: str) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, str):
            parse(re.sub(r":60", ":59", value.upper()))  # a leap second
        return _make_pattern_check(pattern)(value)

    return check


CHECKS: Sequence[tuple[str, Callable[[object], bool]]] = (
    (
        "date-time",
        _make_parse_check(datetime.fromisoformat, r"(?i)[0-9-]{10}t[0-9:.]+(z|[+-]\d\d:\d\d)"),
    ),
    ("time", _make_parse_check(time.fromisoformat, r"(?i)[0-9:.]+(z|[+-]\d\d:\d\d)")),
    ("duration", _make_pattern_check(DURATION)),
    ("hostname", _make_pattern_check(rf"(?=.{{1,253}}$){HOST}(\.{HOST})*")),
)
for _name, _check in CHECKS:
    FORMATS.checks(_name, raises=ValueError)(_check)


# Reasoning, followed by a call or an answer

# reasoning formats, and the template that uses each of them
REASONING_TEMPLATES = {"think": "thinker", "mistral_think": "brackets", "harmony": "channels"}
CITY_SCHEMA = {"type": "string", "maxLength": 12}
REPORT_SCHEMA = {
    "type": "object",
    "properties": {"city": CITY_SCHEMA, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
TOOL_SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": CITY_SCHEMA,
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
EARLIER_CALL = {"name": "weather", "arguments": '{"city": "Rome"}'}
# turns that show a small model how short reasoning can be
EARLIER_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Is it sunny in Oslo?"},
    {
        "role": "assistant",
        "reasoning_content": "I know that.",
        "content": '{"city": "Oslo", "sunny": false}',
    },
    {"role": "user", "content": "Is it sunny in Rome?"},
    {
        "role": "assistant",
        "reasoning_content": "I must look.",
        "tool_calls": [{"id": "call00001", "type": "function", "function": EARLIER_CALL}],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
    {
        "role": "assistant",
        "reasoning_content": "Now I know.",
        "content": '{"city": "Rome", "sunny": true}',
    },
]


def serve_reasoning_model(
    default_model: Path, reasoning_format: str
) -> AbstractContextManager[RunningServer]:
    """Serve the model with a template that uses one of the reasoning formats."""
    template = TEMPLATES / f"{REASONING_TEMPLATES[reasoning_format]}.jinja"
    return serve(default_model, context=2048, slots=1, chat_template=str(template))


def make_reasoning_request(seed: int, **fields: Any) -> dict[str, Any]:
    """Make a request for reasoning, followed by a call or JSON."""
    tools = [make_tool(parameters, name) for name, parameters in TOOL_SCHEMAS.items()]
    fields |= {"tools": tools} | make_schema_fields(REPORT_SCHEMA)
    request = make_request("Is it sunny in Paris?", seed, **fields)
    return request | {"messages": [*EARLIER_TURNS, *request["messages"]]}


def make_reasoning_variant(seed: int, reasoning_format: str) -> dict[str, Any]:
    """Make such a request with or without opened reasoning, a budget, and several calls."""
    body = make_reasoning_request(seed, parallel_tool_calls=seed % 3 == 0)
    body["chat_template_kwargs"] = {"enable_thinking": True} if seed % 2 else {}
    if seed // 2 % 2 and reasoning_format != "harmony":  # its reasoning cannot be cut short
        body["thinking_budget"] = 8
    return body


def find_report_error(answer: Answer) -> str | None:
    """Return why an answer is neither calls nor JSON, with or without reasoning before it."""
    if not answer.is_complete:
        return _find_truncation_error(answer)
    if not answer.calls:
        if answer.finish != "stop":
            return "there is no call"
        return find_schema_error(answer.content, REPORT_SCHEMA)
    if answer.finish != "tool_calls" or answer.content:
        return "there are calls and something else"
    errors = [find_schema_error(arguments, TOOL_SCHEMAS[name]) for name, arguments in answer.calls]
    return next((error for error in errors if error is not None), None)
