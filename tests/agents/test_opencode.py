"""opencode, over chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agents.player import SPEECHES, Moves, Player
from tests.agents.stage import GREETING, TASK, Done, Stage
from tests.support.real_model import MODEL
from tests.support.serving import RunningServer, serve_scripted

MOVES = Moves(
    look=("bash", {"command": "ls", "description": "Lists files"}),
    read=lambda note: ("read", {"filePath": note}),
)
OFF = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
# its prompt and its tools are more than the context of a small model
PLAIN = {"build": {"prompt": "Answer in one short sentence.", "tools": {"*": False}}}
# when less than this is left it shortens what was said before
SMALL, LARGE = {"context": 8192, "output": 256}, {"context": 100_000, "output": 256}
# it asks for the kit that plugins are made of, whatever is set
ASKED_ANYWAY = {"CONNECT registry.npmjs.org:443 HTTP/1.1"}


def opencode(
    stage: Stage, server: RunningServer, model: str, task: str, *, plain: bool = False
) -> Done:
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
        config["agent"] = PLAIN
    stage.write(".config/opencode/opencode.json", json.dumps(config))
    return stage.run(["opencode", "run", "--pure", "--format", "json", task], OFF)


def parts(done: Done, kind: str) -> list[Any]:
    """What the events of one kind are about."""
    events = [json.loads(line) for line in done.out.splitlines()]
    return [event["part"] for event in events if event["type"] == kind]


@pytest.mark.parametrize("speech", SPEECHES)
def test_a_tool_loop(stage: Stage, speech: str) -> None:
    player = Player(MOVES, SPEECHES[speech])
    with serve_scripted(player, name="qwen", chat_template=player.speech.template) as server:
        done = opencode(stage, server, "qwen", TASK)
    assert done.code == 0, done
    assert stage.marker in parts(done, "text")[-1]["text"]
    assert [part["tool"] for part in parts(done, "tool_use")] == ["bash", "read"]
    assert [part["reason"] for part in parts(done, "step_finish")] == ["tool-calls"] * 2 + ["stop"]
    player.check()
    assert set(done.strayed) <= ASKED_ANYWAY


def test_a_turn_with_the_real_model(stage: Stage, real: RunningServer) -> None:
    done = opencode(stage, real, MODEL, GREETING, plain=True)
    assert done.code == 0, done
    assert parts(done, "text")[-1]["text"].strip()
    assert parts(done, "step_finish")[-1]["reason"] in ("stop", "length")
