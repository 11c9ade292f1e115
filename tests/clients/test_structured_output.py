"""Common clients for typed answers, used as their documentation shows, with the real model.

The fields are bounded, so that a small model finishes them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.pet import Pet
from tests.support.paths import ROOT
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model

MESSAGES: Any = [{"role": "user", "content": "Invent a pet."}]
OPTIONS: dict[str, Any] = {"temperature": 1, "seed": 3, "max_tokens": 300}
SINGLE_CALL: Any = OPTIONS | {"parallel_tool_calls": False}


class Feed(BaseModel):
    """Feed a pet."""

    portions: int = Field(ge=1, le=3)
    food: Literal["fish", "meat"]


class Walk(BaseModel):
    """Walk a pet."""

    minutes: int = Field(ge=5, le=60)


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=2048, slots=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as openai_client:
        yield openai_client


# openai


def test_openai_parses_a_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, Pet)
    assert Pet.model_validate_json(message.content or "") == message.parsed


def test_openai_parses_strict_tools(client: OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Feed), openai.pydantic_function_tool(Walk)]
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        tools=tools,
        tool_choice="required",
        **SINGLE_CALL,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Feed | Walk)
    assert type(call.function.parsed_arguments).__name__ == call.function.name


def test_openai_parses_a_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS
    ) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS
    )
    assert isinstance(streamed.parsed, Pet)
    assert streamed.content == whole.choices[0].message.content
    assert events.count("content.done") == 1
    assert "content.delta" in events


def test_openai_parses_strict_tools_in_a_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Feed)],
        tool_choice={"type": "function", "function": {"name": "Feed"}},
        **OPTIONS,
    ) as stream:
        events = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Feed)
    assert "tool_calls.function.arguments.delta" in events
    assert events.count("tool_calls.function.arguments.done") == 1


def test_openai_raises_on_an_answer_that_was_cut(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS | {"max_tokens": 4}
        )


# pydantic-ai


async def run(server: RunningServer, output: Any) -> Any:
    url = f"{server.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as connection:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=connection))
        agent: Agent[None, Any] = Agent(model, output_type=output, retries=0)
        result = await agent.run("Invent a pet.", model_settings=SINGLE_CALL)
        return result.output


TWO_SCHEMAS: Any = NativeOutput([Feed, Walk])


@pytest.mark.parametrize(
    "output",
    [Pet, ToolOutput(Pet, name="pet", strict=True), NativeOutput(Pet), TWO_SCHEMAS],
    ids=["as usual", "a tool", "a schema", "two schemas"],
)
def test_pydantic_ai(server: RunningServer, output: Any) -> None:
    assert isinstance(
        asyncio.run(run(server, output)), Feed | Walk if output is TWO_SCHEMAS else Pet
    )


# instructor: from an environment of its own, which `make test` sets up

INSTRUCTOR_PYTHON = Path(sys.prefix) / "instructor" / "bin" / "python"


@pytest.mark.skipif(
    not INSTRUCTOR_PYTHON.exists(), reason="`make test` sets up instructor's environment"
)
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(server: RunningServer, mode: str) -> None:
    script = "tests.clients.instructor_pet"
    command = [str(INSTRUCTOR_PYTHON), "-m", script, f"{server.url}/v1", MODEL, mode]
    process = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    Pet.model_validate_json(process.stdout)
