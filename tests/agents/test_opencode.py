"""opencode, over chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.note_engine import MARKUPS, AgentTools, NoteEngine
from tests.agents.sandbox import GREETING, TASK, AgentResult, AgentSandbox
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

AGENT_TOOLS = AgentTools(
    list_files=("bash", {"command": "ls", "description": "Lists files"}),
    read_file=lambda note: ("read", {"filePath": note}),
)
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
# Its prompt and its tools exceed the context of a small model.
SMALL_PROMPT = {"build": {"prompt": "Answer in one short sentence.", "tools": {"*": False}}}
# When less than this is left, it compacts the conversation.
SMALL, LARGE = {"context": 8192, "output": 256}, {"context": 100_000, "output": 256}
# It requests the plugin kit, whatever is configured.
ALWAYS_REQUESTED = {"CONNECT registry.npmjs.org:443 HTTP/1.1"}


def run_opencode(
    sandbox: AgentSandbox, server: RunningServer, model: str, task: str, *, plain: bool = False
) -> AgentResult:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Dragoman",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
        "models": {model: {"name": model, "limit": SMALL if plain else LARGE}},
    }
    config: dict[str, Any] = {
        "model": f"dragoman/{model}",
        "small_model": f"dragoman/{model}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"dragoman": provider},
    }
    if plain:
        config["agent"] = SMALL_PROMPT
    sandbox.write(".config/opencode/opencode.json", json.dumps(config))
    return sandbox.run(["opencode", "run", "--pure", "--format", "json", task], QUIET)


def read_parts(result: AgentResult, kind: str) -> list[Any]:
    """The parts of the events of one type."""
    events = [json.loads(line) for line in result.output.splitlines()]
    return [event["part"] for event in events if event["type"] == kind]


@pytest.mark.parametrize("markup", MARKUPS)
def test_tool_loop(sandbox: AgentSandbox, markup: str) -> None:
    engine = NoteEngine(AGENT_TOOLS, MARKUPS[markup])
    with serve_scripted(engine, name="qwen", chat_template=engine.markup.template) as server:
        result = run_opencode(sandbox, server, "qwen", TASK)
    assert result.exit_code == 0, result
    assert sandbox.marker in read_parts(result, "text")[-1]["text"]
    assert [part["tool"] for part in read_parts(result, "tool_use")] == ["bash", "read"]
    assert [part["reason"] for part in read_parts(result, "step_finish")] == ["tool-calls"] * 2 + [
        "stop"
    ]
    engine.check()
    assert set(result.blocked_requests) <= ALWAYS_REQUESTED


def test_real_model(sandbox: AgentSandbox, real_server: RunningServer) -> None:
    result = run_opencode(sandbox, real_server, MODEL, GREETING, plain=True)
    assert result.exit_code == 0, result
    assert read_parts(result, "text")[-1]["text"].strip()
    assert read_parts(result, "step_finish")[-1]["reason"] in ("stop", "length")
