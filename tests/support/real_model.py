"""The real default model behind a real server, what it answers, and whether that fits a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from tests.support.serving import RunningServer, parse_events, run_app

MODEL = "smollm2-135m"
CONSTRAINT_MODES = ("response_format", "required", "named")
COMPLETE_FINISH_REASONS = ("stop", "tool_calls")


@contextmanager
def serve(default_model: Path, **said: Any) -> Iterator[RunningServer]:
    kept = {"port": 0, "store": "sqlite://", "models_dir": str(default_model.parent.parent)}
    settings = config.load(kept | said)
    models = runtime.build_models(settings, MODEL)
    with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as made:
        made.run_coroutine(models.load(MODEL))
        yield made


# Asking


def make_tool(parameters: Any, name: str = "make", *, strict: bool = True) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def make_schema_fields(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    described = {"name": "answer", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def make_tool_fields(parameters: Any, way: str) -> dict[str, Any]:
    """A call that must be made, in one of the two ways of saying so."""
    named = {"type": "function", "function": {"name": "make"}}
    return {"tools": [make_tool(parameters)], "tool_choice": named if way == "named" else way}


def make_request(text: str, seed: int, **fields: Any) -> dict[str, Any]:
    """A request whose answer is the same each time."""
    said = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return said | {"temperature": 1, "seed": seed, "max_tokens": 160} | fields


class HasUrl(Protocol):
    """A server in this process or another."""

    @property
    def url(self) -> str: ...


@dataclass
class Answer:
    """One choice of an answer; calls are names with their arguments."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = ""
    tokens: list[Any] = field(default_factory=list)  # entries of its logprobs
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether it came to an end by itself."""
        return self.finish in COMPLETE_FINISH_REASONS

    def add_message(self, said: dict[str, Any]) -> None:
        self.content += said.get("content") or ""
        self.reasoning += said.get("reasoning_content") or ""
        for call in said.get("tool_calls") or ():
            function = call["function"]
            at = call.get("index", len(self.calls))
            if at == len(self.calls):
                assert call["id"]
                self.calls.append((function["name"], ""))
            name, arguments = self.calls[at]
            self.calls[at] = (name, arguments + function.get("arguments", ""))


def request_answers(
    server: HasUrl, body: dict[str, Any], *, streamed: bool = False
) -> list[Answer]:
    """Every choice of an answer, put together from a stream or taken whole."""
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
    found = [Answer() for _ in range(body.get("n", 1))]
    for part in parts:
        for choice in part["choices"]:
            one = found[choice["index"]]
            one.add(choice[key])
            one.finish = choice["finish_reason"] or one.finish
            one.tokens += (choice.get("logprobs") or {}).get("content") or []
    found[0].usage = parts[-1]["usage"]
    return found


def request_answer(server: HasUrl, body: dict[str, Any], *, streamed: bool = False) -> Answer:
    [found] = request_answers(server, body, streamed=streamed)
    return found


# Judging


def find_schema_error(text: str, schema: Any) -> str | None:
    """What is wrong with a text that should be JSON of a schema. Numbers are exact."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_reject_constant)
    except ValueError as error:
        return f"no JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    errors = Draft202012Validator(exact, format_checker=FORMATS).iter_errors(value)
    return next((error.message for error in errors), None)


def find_answer_error(found: Answer, schema: Any, way: str) -> str | None:
    """What is wrong with an answer that was asked for in one of the ways."""
    if way == "response_format":
        if found.calls:
            return "there are calls"
        return (
            find_schema_error(found.content, schema)
            if found.is_complete
            else _find_truncation_error(found)
        )
    if found.is_complete and found.content:
        return "there is text beside the calls"
    if found.is_complete and not found.calls:
        return "there is no call"
    if way == "named" and len(found.calls) > 1:
        return "there are several calls"
    whole = found.calls if found.is_complete else found.calls[:-1]
    for name, arguments in whole:
        said = "another tool" if name != "make" else find_schema_error(arguments, schema)
        if said is not None:
            return said
    return None if found.is_complete else _find_truncation_error(found)


def _find_truncation_error(found: Answer) -> str | None:
    """What is wrong with an answer that did not come to its end."""
    if found.finish != "length":
        return f"it ended as {found.finish!r}"
    spent = found.usage["completion_tokens"]
    return None if spent else "it was cut, but nothing was said"


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


FORMATS = FormatChecker()
HOST = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
DURATION = r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)"


def _make_pattern_check(pattern: str) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or re.fullmatch(pattern, value) is not None


def _make_parse_check(read: Callable[[str], Any], also: str) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, str):
            read(re.sub(r":60", ":59", value.upper()))  # a leap second
        return _make_pattern_check(also)(value)

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


# Thinking, and then calling or answering

# how thoughts and calls are written, and a template that writes them so
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
# turns that show a small model how short thoughts can be
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


def serve_reasoning_model(default_model: Path, manner: str) -> Any:
    """A server whose model thinks in one of the manners."""
    template = TEMPLATES / f"{REASONING_TEMPLATES[manner]}.jinja"
    return serve(default_model, context=2048, slots=1, chat_template=str(template))


def make_reasoning_request(seed: int, **fields: Any) -> dict[str, Any]:
    """A request for thoughts, and then for a call or JSON."""
    tools = [make_tool(parameters, name) for name, parameters in TOOL_SCHEMAS.items()]
    said = make_request(
        "Is it sunny in Paris?", seed, tools=tools, **make_schema_fields(REPORT_SCHEMA), **fields
    )
    return said | {"messages": [*EARLIER_TURNS, *said["messages"]]}


def find_report_error(found: Answer) -> str | None:
    """What is wrong with an answer that should be a call or JSON, after thoughts or none."""
    if not found.is_complete:
        return _find_truncation_error(found)
    if not found.calls:
        return (
            "no calls"
            if found.finish != "stop"
            else find_schema_error(found.content, REPORT_SCHEMA)
        )
    if found.finish != "tool_calls" or found.content:
        return "calls and something else"
    said = [find_schema_error(arguments, TOOL_SCHEMAS[name]) for name, arguments in found.calls]
    return next((one for one in said if one is not None), None)
