"""Chat, Responses, Messages and Ollama's API give the same answer from the same engine.

Each API is used through its vendor's own client, whole and as a stream that the client adds up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from ollama import Client as Ollama
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import serve_scripted

pytestmark = pytest.mark.slow

REASONING_TEMPLATE = TEMPLATES / "thinker.jinja"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
PARIS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 😀", "days": 2}}\n</tool_call>'
)
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
REASONING = "<think>\nIs it 雨 there?\n</think>\n\n"
OUTPUTS = {
    "text": "It is raining.\n\nTake an umbrella.",
    "nothing": "",
    "reasoning": f"{REASONING}It is.",
    "call": PARIS,
    "prose": f"Let me look.\n{PARIS}",
    "both": f"{REASONING}Let me look. {PARIS}",
    "parallel": f"{REASONING}{PARIS}\n{NOW}",
    "broken": "<tool_call>\nI am not sure.\n</tool_call>",
}
CUTS = (1, 7, "words")


@dataclass
class Clients:
    """The vendors' own clients of one server."""

    openai: OpenAI
    anthropic: Anthropic
    ollama: Ollama


@dataclass
class Answer:
    """An answer as a client received it, whatever the API."""

    text: str
    reasoning: str
    calls: list[tuple[str, Any]]
    finish: str
    usage: tuple[int, int]


@pytest.fixture(scope="module", params=CUTS, ids=str)
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    with connect_clients(request.param, REASONING_TEMPLATE) as clients:
        yield clients


@pytest.fixture(scope="module", params=CUTS, ids=str)
def clients_without_switch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clients]:
    """Clients of a model whose reasoning is its own choice: Ollama turns it on by default."""
    source = REASONING_TEMPLATE.read_text()
    start, end = source.index("    {%- if enable_thinking"), source.rindex("{%- endif %}")
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(source[:start] + source[end:])
    with connect_clients(request.param, path) as clients:
        yield clients


@contextmanager
def connect_clients(cut: Any, template: Path) -> Iterator[Clients]:
    script = [Reply(text, when=f"#{name}#", chunks=cut) for name, text in OUTPUTS.items()]
    with serve_scripted(
        ScriptedEngine(script, tokens=True), chat_template=template, recall=False
    ) as server:
        openai_client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        anthropic_client = Anthropic(base_url=server.url, api_key="x", max_retries=0)
        with openai_client, anthropic_client, closing(Ollama(server.url)) as ollama_client:
            yield Clients(openai_client, anthropic_client, ollama_client)


def make_question(name: str) -> str:
    return f"#{name}#"


def ask_chat(clients: Clients, name: str, streamed: bool, **options: Any) -> Answer:
    client = clients.openai
    tools: Any = [
        {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now"}},
    ]
    body: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": make_question(name)}],
        "tools": tools,
        **options,
    }
    if streamed:
        stream_options: Any = {"include_usage": True}
        with client.chat.completions.stream(**body, stream_options=stream_options) as stream:
            answer: Any = stream.get_final_completion()
    else:
        answer = client.chat.completions.create(**body)
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    extra_fields = choice.message.model_extra or {}
    return Answer(
        choice.message.content or "",
        extra_fields.get("reasoning_content") or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        {"stop": "end", "tool_calls": "calls", "length": "length"}[choice.finish_reason],
        (answer.usage.prompt_tokens, answer.usage.completion_tokens),
    )


def ask_responses(clients: Clients, name: str, streamed: bool, **options: Any) -> Answer:
    client = clients.openai
    if "max_tokens" in options:
        options = {"max_output_tokens": options["max_tokens"]}
    tools: Any = [
        {"type": "function", "name": "weather", "parameters": SCHEMA},
        {"type": "function", "name": "now"},
    ]
    body: Any = {"model": "scripted", "input": make_question(name), "tools": tools, **options}
    if streamed:
        ends = ("response.completed", "response.incomplete")
        events = client.responses.create(**body, stream=True)
        (answer,) = [event.response for event in events if event.type in ends]
    else:
        answer = client.responses.create(**body)
    calls = [item for item in answer.output if item.type == "function_call"]
    reasoning_items = [item for item in answer.output if item.type == "reasoning"]
    finish = "calls" if calls and answer.status == "completed" else "end"
    return Answer(
        answer.output_text,
        "".join(part.text for item in reasoning_items for part in item.content),
        [(call.name, json.loads(call.arguments)) for call in calls],
        "length" if answer.status == "incomplete" else finish,
        (answer.usage.input_tokens, answer.usage.output_tokens),
    )


def ask_messages(clients: Clients, name: str, streamed: bool, **options: Any) -> Answer:
    client = clients.anthropic
    tools: Any = [
        {"name": "weather", "input_schema": SCHEMA},
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    body: Any = {
        "model": "scripted",
        "max_tokens": options.get("max_tokens", 1000),
        "messages": [{"role": "user", "content": make_question(name)}],
        "tools": tools,
        "thinking": {"type": "adaptive"},
    }
    if streamed:
        with client.messages.stream(**body) as stream:
            answer: Any = stream.get_final_message()
    else:
        answer = client.messages.create(**body)
    blocks: dict[str, list[Any]] = {"text": [], "thinking": [], "tool_use": []}
    for block in answer.content:
        blocks[block.type].append(block)
    reasons = {"end_turn": "end", "tool_use": "calls", "max_tokens": "length"}
    return Answer(
        "".join(block.text for block in blocks["text"]),
        "".join(block.thinking for block in blocks["thinking"]),
        [(block.name, block.input) for block in blocks["tool_use"]],
        reasons[answer.stop_reason],
        (answer.usage.input_tokens, answer.usage.output_tokens),
    )


def ask_ollama(clients: Clients, name: str, streamed: bool, **options: Any) -> Answer:
    body: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": make_question(name)}],
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "now"}},
        ],
        "options": {"num_predict": options.get("max_tokens", -1)},
    }
    if streamed:
        lines: Any = list(clients.ollama.chat(**body, stream=True))
    else:
        lines = [clients.ollama.chat(**body)]
    last, replies = lines[-1], [line.message for line in lines]
    calls = [call.function for reply in replies for call in reply.tool_calls or ()]
    return Answer(
        "".join(reply.content for reply in replies),
        "".join(reply.thinking or "" for reply in replies),
        [(call.name, call.arguments) for call in calls],
        "calls" if calls and last.done_reason == "stop" else FINISHES[last.done_reason],
        (last.prompt_eval_count, last.eval_count),
    )


FINISHES = {"stop": "end", "length": "length"}
APIS: dict[str, Callable[..., Answer]] = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
}


def strip_texts(answer: Answer) -> Answer:
    """Strip the whitespace around texts, which some APIs drop."""
    answer.text, answer.reasoning = answer.text.strip(), answer.reasoning.strip()
    return answer


@pytest.mark.parametrize("name", OUTPUTS)
def test_all_apis_give_the_same_answer(clients: Clients, name: str) -> None:
    expected = strip_texts(ask_chat(clients, name, streamed=False))
    for api, ask in APIS.items():
        for streamed in (False, True):
            answer = strip_texts(ask(clients, name, streamed))
            if api != "chat":  # the prompts differ in their settings
                answer.usage = (expected.usage[0], answer.usage[1])
            assert answer == expected, (api, streamed)


@pytest.mark.parametrize("limit", [1, 20, 60])
@pytest.mark.parametrize("name", ["text", "both", "parallel"])
def test_all_apis_cut_answers_alike(clients: Clients, name: str, limit: int) -> None:
    expected = strip_texts(ask_responses(clients, name, streamed=False, max_tokens=limit))
    for ask in (ask_responses, ask_messages):
        for streamed in (False, True):
            answer = strip_texts(ask(clients, name, streamed, max_tokens=limit))
            assert (answer.text, answer.reasoning) == (expected.text, expected.reasoning)
            assert (answer.finish, answer.usage[1]) == (expected.finish, expected.usage[1])


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("limit", [5, 60, 1000])
def test_ollama_gives_the_same_answer(
    clients_without_switch: Clients, name: str, limit: int
) -> None:
    """Arguments that are cut off are the same object as in Messages."""
    clients = clients_without_switch
    expected = strip_texts(ask_messages(clients, name, streamed=False, max_tokens=limit))
    for ask in (ask_messages, ask_ollama, *([ask_responses] if limit == 1000 else [])):
        for streamed in (False, True):
            answer = strip_texts(ask(clients, name, streamed, max_tokens=limit))
            answer.usage = (expected.usage[0], answer.usage[1])  # they write tools differently
            assert answer == expected, (ask, streamed)


def test_ollama_gives_the_same_whole_answer_as_chat(clients_without_switch: Clients) -> None:
    for name in OUTPUTS:
        expected = strip_texts(ask_chat(clients_without_switch, name, streamed=False))
        for streamed in (False, True):
            answer = strip_texts(ask_ollama(clients_without_switch, name, streamed))
            assert answer == expected, (name, streamed)
