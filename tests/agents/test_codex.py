"""Codex, over responses, which it only streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.player import SPEECHES, Moves, Player
from tests.agents.stage import GREETING, TASK, Done, Stage
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

MOVES = Moves(
    look=("exec_command", {"cmd": "ls"}),
    read=lambda note: ("exec_command", {"cmd": f"cat {note}"}),
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
REMOTE = ("plugins", "apps", "remote_plugin")  # what asks others
# its prompt and its tools are more than the context of a small model
TOOLS = ("goals", "image_generation", "multi_agent", "shell_tool", "unified_exec", "view_image")
PLAIN = """
model_instructions_file = "%s"
include_environment_context = false
include_permissions_instructions = false
web_search = "disabled"
skills = { bundled = { enabled = false }, include_instructions = false }
"""


def codex(
    stage: Stage, server: RunningServer, model: str, task: str, *, plain: bool = False
) -> Done:
    off = (*REMOTE, *(TOOLS if plain else ()))
    features = "\n".join(f"{name} = false" for name in off)
    prompt = stage.write("prompt.md", "Answer in one short sentence.")
    said = (model, PLAIN % prompt if plain else "", features, server.url)
    stage.write(".codex/config.toml", CONFIG % said)
    return stage.run(["codex", "exec", "--json", "--skip-git-repo-check", task], {})


def items(done: Done, kind: str) -> list[Any]:
    """The finished items of one kind."""
    events = [json.loads(line) for line in done.out.splitlines()]
    ended = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in ended if item["type"] == kind]


@pytest.mark.parametrize("speech", SPEECHES)
def test_a_tool_loop(stage: Stage, speech: str) -> None:
    player = Player(MOVES, SPEECHES[speech])
    with serve_scripted(player, name="qwen", chat_template=player.speech.template) as server:
        done = codex(stage, server, "qwen", TASK)
    assert done.code == 0, done
    assert stage.marker in items(done, "agent_message")[-1]["text"]
    assert [item["exit_code"] for item in items(done, "command_execution")] == [0, 0]
    player.check()
    assert not done.strayed


def test_a_turn_with_the_real_model(stage: Stage, real: RunningServer) -> None:
    done = codex(stage, real, MODEL, GREETING, plain=True)
    assert done.code == 0, done
    assert items(done, "agent_message")[-1]["text"].strip()
