"""What models read, as their files say it: nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import vision_models as models
from tests.support.command_line import run_command
from tests.support.vision_server import write_models

PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"


def test_commands_say_what_a_model_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_models(tmp_path)
    where = ("--models-dir", str(root))
    for name, modalities in (("eyes", "text, image"), ("ears", "text, audio"), ("text", "text")):
        shown = run_command(capsys, "show", name, *where)
        assert shown.code == 0, shown.err
        assert any(line.split()[1:] == modalities.split() for line in shown.out.splitlines()), name
    explained = run_command(capsys, "explain", "eyes", *where)
    lines = explained.out.splitlines()
    assert "reads       text, image" in lines
    assert f"            user: image as {PLACEHOLDER}" in lines
    assert f"            tool: image as {PLACEHOLDER}" in lines
    report = json.loads(run_command(capsys, "explain", "ears", "--json", *where).out)
    assert report["media"]["reads"] == ["text", "audio"]
    blind = run_command(capsys, "explain", "eyes", "--mmproj", "none", *where)
    assert "reads" not in blind.out


def test_projectors_are_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_models(tmp_path)
    listed = run_command(capsys, "list", "--json", "--models-dir", str(root))
    names = {entry["name"] for entry in json.loads(listed.out)}
    assert names == {"eyes", "ears", "text"}
    models.write_mlp_projector(root / "text/mmproj.gguf", models.Changes(without="mm.0.weight"))
    broken = run_command(capsys, "show", "text", "--models-dir", str(root))
    assert "mm.0.weight" in broken.out + broken.err


@pytest.mark.parametrize(
    ("parts", "modalities"),
    [
        ({}, "text"),
        ({"vision_config": {}}, "text, image"),
        ({"audio_config": {}}, "text, audio"),
        ({"thinker_config": {"vision_config": {}, "audio_config": {}}}, "text, image, audio"),
        ({"vision_config": None}, "text"),
    ],
)
def test_directories_say_what_their_encoders_read(
    parts: dict[str, Any], modalities: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sees"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Model"], **parts}))
    (folder / "model.safetensors").write_bytes(bytes(8))
    (folder / "chat_template.jinja").write_text(models.CHATML)
    shown = run_command(capsys, "show", str(folder), "--json")
    assert json.loads(shown.out)["modalities"] == modalities.split(", ")
    explained = run_command(capsys, "explain", str(folder), "--json")
    assert json.loads(explained.out)["media"]["reads"] == modalities.split(", ")
