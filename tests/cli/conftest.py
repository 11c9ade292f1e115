"""Where the commands of these tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_files import write_model_file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, with one model in the models directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("DRAGOMAN_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("DRAGOMAN_PORT", "0")  # so that tests can run at the same time
    monkeypatch.setattr("dragoman.runtime.load", refuse_to_load)
    write_model_file(tmp_path / "models" / "good.gguf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "config.json").write_text("{}")
    (tmp_path / "malformed.jinja").write_text("{% if %}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    return tmp_path


async def refuse_to_load(*arguments: object) -> None:
    raise AssertionError("a model would be loaded")
