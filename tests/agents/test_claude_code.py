"""Claude Code, over the Messages API, always streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.note_engine import MARKUPS, AgentTools, NoteEngine
from tests.agents.sandbox import GREETING, TASK, AgentResult, AgentSandbox
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

AGENT_TOOLS = AgentTools(
    list_files=("Bash", {"command": 'ls "$PWD"/*', "description": "Lists files"}),
    read_file=lambda note: ("Read", {"file_path": note}),
)
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}
# Its prompt and its tools exceed the context of a small model.
SMALL_PROMPT = ("--bare", "--system-prompt", "Answer in one short sentence.", "--tools", "")


def run_claude(
    sandbox: AgentSandbox, server: RunningServer, model: str, task: str, *options: str
) -> AgentResult:
    connection = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }
    command = ["claude", "-p", task, "--output-format", "stream-json", "--verbose", *options]
    return sandbox.run(command, QUIET | connection)


def read_events(result: AgentResult, kind: str) -> list[Any]:
    """The reported events of one type."""
    events = [json.loads(line) for line in result.output.splitlines()]
    return [event for event in events if event["type"] == kind]


@pytest.mark.parametrize("markup", MARKUPS)
def test_tool_loop(sandbox: AgentSandbox, markup: str) -> None:
    engine = NoteEngine(AGENT_TOOLS, MARKUPS[markup])
    with serve_scripted(engine, name="qwen", chat_template=engine.markup.template) as server:
        result = run_claude(sandbox, server, "qwen", TASK, "--allowedTools", "Bash", "Read")
    assert result.exit_code == 0, result
    final = read_events(result, "result")[0]
    assert sandbox.marker in final["result"]
    assert not final["is_error"]
    assert not final["permission_denials"]
    called_tools = [
        block["name"]
        for event in read_events(result, "assistant")
        for block in event["message"]["content"]
        if block["type"] == "tool_use"
    ]
    assert called_tools == ["Bash", "Read"]
    engine.check()
    assert not result.blocked_requests


def test_real_model(sandbox: AgentSandbox, real_server: RunningServer) -> None:
    result = run_claude(sandbox, real_server, MODEL, GREETING, *SMALL_PROMPT)
    assert result.exit_code == 0, result
    assert read_events(result, "result")[0]["result"].strip()
