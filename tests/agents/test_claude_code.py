"""Claude Code, over messages, which it only streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.player import SPEECHES, Moves, Player
from tests.agents.stage import GREETING, TASK, Done, Stage
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

MOVES = Moves(
    look=("Bash", {"command": 'ls "$PWD"/*', "description": "Lists files"}),
    read=lambda note: ("Read", {"file_path": note}),
)
OFF = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}
# its prompt and its tools are more than the context of a small model
PLAIN = ("--bare", "--system-prompt", "Answer in one short sentence.", "--tools", "")


def claude(stage: Stage, server: RunningServer, model: str, task: str, *options: str) -> Done:
    ours = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }
    command = ["claude", "-p", task, "--output-format", "stream-json", "--verbose", *options]
    return stage.run(command, OFF | ours)


def lines(done: Done, kind: str) -> list[Any]:
    """What it reported of one kind."""
    said = [json.loads(line) for line in done.out.splitlines()]
    return [line for line in said if line["type"] == kind]


@pytest.mark.parametrize("speech", SPEECHES)
def test_a_tool_loop(stage: Stage, speech: str) -> None:
    player = Player(MOVES, SPEECHES[speech])
    with serve_scripted(player, name="qwen", chat_template=player.speech.template) as server:
        done = claude(stage, server, "qwen", TASK, "--allowedTools", "Bash", "Read")
    assert done.code == 0, done
    result = lines(done, "result")[0]
    assert stage.marker in result["result"]
    assert not result["is_error"]
    assert not result["permission_denials"]
    used = [
        block["name"]
        for line in lines(done, "assistant")
        for block in line["message"]["content"]
        if block["type"] == "tool_use"
    ]
    assert used == ["Bash", "Read"]
    player.check()
    assert not done.strayed


def test_a_turn_with_the_real_model(stage: Stage, real: RunningServer) -> None:
    done = claude(stage, real, MODEL, GREETING, *PLAIN)
    assert done.code == 0, done
    assert lines(done, "result")[0]["result"].strip()
