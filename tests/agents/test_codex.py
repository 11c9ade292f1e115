"""Codex, over the Responses API, always streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.note_engine import MARKUPS, AgentTools, NoteEngine
from tests.agents.sandbox import GREETING, TASK, AgentResult, AgentSandbox
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

AGENT_TOOLS = AgentTools(
    list_files=("exec_command", {"cmd": "ls"}),
    read_file=lambda note: ("exec_command", {"cmd": f"cat {note}"}),
)
CONFIG = """
model = "%s"
model_provider = "dragoman"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
%s
[analytics]
enabled = false

[features]
%s

[model_providers.dragoman]
name = "Dragoman"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
REMOTE_FEATURES = ("plugins", "apps", "remote_plugin")  # features that reach other machines
# Its prompt and its tools exceed the context of a small model.
TOOL_FEATURES = (
    "goals",
    "image_generation",
    "multi_agent",
    "shell_tool",
    "unified_exec",
    "view_image",
)
SMALL_PROMPT = """
model_instructions_file = "%s"
include_environment_context = false
include_permissions_instructions = false
web_search = "disabled"
skills = { bundled = { enabled = false }, include_instructions = false }
"""


def run_codex(
    sandbox: AgentSandbox, server: RunningServer, model: str, task: str, *, plain: bool = False
) -> AgentResult:
    disabled = (*REMOTE_FEATURES, *(TOOL_FEATURES if plain else ()))
    features = "\n".join(f"{name} = false" for name in disabled)
    prompt = sandbox.write("prompt.md", "Answer in one short sentence.")
    values = (model, SMALL_PROMPT % prompt if plain else "", features, server.url)
    sandbox.write(".codex/config.toml", CONFIG % values)
    return sandbox.run(["codex", "exec", "--json", "--skip-git-repo-check", task], {})


def read_items(result: AgentResult, kind: str) -> list[Any]:
    """The finished items of one kind."""
    events = [json.loads(line) for line in result.output.splitlines()]
    completed = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in completed if item["type"] == kind]


@pytest.mark.parametrize("markup", MARKUPS)
def test_tool_loop(sandbox: AgentSandbox, markup: str) -> None:
    engine = NoteEngine(AGENT_TOOLS, MARKUPS[markup])
    with serve_scripted(engine, name="qwen", chat_template=engine.markup.template) as server:
        result = run_codex(sandbox, server, "qwen", TASK)
    assert result.exit_code == 0, result
    assert sandbox.marker in read_items(result, "agent_message")[-1]["text"]
    assert [item["exit_code"] for item in read_items(result, "command_execution")] == [0, 0]
    engine.check()
    assert not result.blocked_requests


def test_real_model(sandbox: AgentSandbox, real_server: RunningServer) -> None:
    result = run_codex(sandbox, real_server, MODEL, GREETING, plain=True)
    assert result.exit_code == 0, result
    assert read_items(result, "agent_message")[-1]["text"].strip()
