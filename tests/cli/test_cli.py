"""Runs the command line as an operator does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import dragoman
from dragoman import config, runtime
from dragoman.cli.main import build_parser
from dragoman.models.loaders.engine import read_template
from dragoman.testing import ScriptedEngine
from tests.support.server_process import (
    DRAGOMAN,
    list_child_pids,
    list_listening_addresses,
    read_until,
    run_server,
)

pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRAGOMAN, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_flags_win_over_the_environment_and_the_defaults() -> None:
    environment = {"DRAGOMAN_PORT": "9", "DRAGOMAN_API_KEY": "a, b", "DRAGOMAN_ANY_MODEL": "true"}
    settings = config.load({"host": "::1", "port": None}, environment)
    assert (settings.host, settings.port) == ("::1", 9)
    assert settings.api_key == ("a", "b")
    assert settings.any_model is True
    assert settings.queue == config.Settings().queue
    assert config.load({"port": 7}, environment).port == 7


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "many"), ("ANY_MODEL", "perhaps"), ("DRAIN", "long")]
)
def test_invalid_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(config.SettingsError, match=f"DRAGOMAN_{name}"):
        config.load({}, {f"DRAGOMAN_{name}": value})


def test_list_shows_installed_models(default_model: Path, tmp_path: Path) -> None:
    listing = run("list", "--models-dir", str(default_model.parent.parent))
    assert listing.returncode == 0
    assert re.search(r"smollm2-135m +llama +Q4_1 +8192 +98 MB", listing.stdout)
    (tmp_path / "broken.gguf").write_bytes(b"GGUFnonsense")
    broken = run("list", "--models-dir", str(tmp_path))
    assert "broken:" in broken.stdout
    empty = run("list", "--models-dir", str(tmp_path / "new"))
    assert "dragoman pull" in empty.stdout


def test_pull_of_an_installed_model_prints_its_path(default_model: Path) -> None:
    result = run("pull", "smollm2-135m", "--models-dir", str(default_model.parent.parent))
    assert result.returncode == 0
    assert str(default_model) in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "no-such-model"], "no-such-model"),
        (["serve", "/no/such/file.gguf"], "file.gguf"),
        (["pull", "no-such-model"], "hf:owner/repo"),
        (["serve", "x", "--host", "0.0.0.0", "--models-dir", "{model}"], "API key"),
        (["serve", "--log-level", "loud"], "--log-level"),
        (["serve", "--lora", "poet", "{file}"], "NAME=PATH"),
    ],
)
def test_startup_error_is_one_line(
    arguments: list[str], message: str, default_model: Path, tmp_path: Path
) -> None:
    paths = {"model": str(tmp_path), "file": str(default_model)}
    if "0.0.0.0" in arguments:
        (tmp_path / "x.gguf").symlink_to(default_model)
    result = run(*(argument.format(**paths) for argument in arguments))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_broken_file_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all")
    result = run("serve", str(tmp_path / "bad.gguf"), "--port", "0")
    assert result.returncode == 1
    assert "GGUF" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "choice"),
    [("--engine", "llamacpp"), ("--format", "hermes_json"), ("--reasoning-format", "think")],
)
def test_unknown_name_is_rejected_at_startup_with_the_choices(
    default_model: Path, flag: str, choice: str
) -> None:
    result = run("serve", str(default_model), flag, "warp")
    assert result.returncode == 1
    assert "'warp'" in result.stderr
    assert choice in result.stderr


def test_serve_answers_and_stops_its_engine_on_sigterm(default_model: Path) -> None:
    with run_server(str(default_model), "--served-name", "tiny", "--context", "512") as (
        process,
        url,
    ):
        read_until(process, "Serving")
        assert httpx.get(f"{url}/health/ready").status_code == 200
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] <= 4
        children = list_child_pids(process.pid)
        assert children
        assert len(list_listening_addresses(process.pid, *children)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_unread_log_does_not_block_the_server(default_model: Path) -> None:
    with (
        run_server(str(default_model), "--context", "512") as (process, url),
        httpx.Client(base_url=url) as client,
    ):
        read_until(process, "Serving")
        for _ in range(1500):  # twice what a pipe holds
            assert client.get("/nowhere").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_parser_accepts_repeated_flags() -> None:
    parsed = build_parser().parse_args(["serve", "m", "--lora", "a=b", "--lora", "c=d"])
    assert parsed.lora == ["a=b", "c=d"]
    assert parsed.any_model is None


def test_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m dragoman formats"
    with subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_closed_output_is_not_an_error() -> None:
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m dragoman formats >&-"], capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["formats", "explain"])
def test_characters_outside_the_locale_are_escaped(command: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("→{{ messages[0].content }}", encoding="utf-8")
    more = [str(tmp_path / "t.jinja"), "--source"] if command == "explain" else []
    result = run(command, *more, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\\u" in result.stdout


def test_system_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Path("/dev/full").open("w") as full:
        full_disk = subprocess.run(
            [*DRAGOMAN, "formats"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    no_directory = run("list", "--models-dir", str(tmp_path / "file" / "models"))
    for result, message in ((full_disk, "No space left on device"), (no_directory, str(tmp_path))):
        assert result.returncode == 1
        assert result.stderr.startswith("dragoman: ")
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_aliases_of_a_setting_must_agree() -> None:
    with pytest.raises(runtime.StartupError, match="`format` and `tool_parser`"):
        dragoman.app(ScriptedEngine("x"), format="hermes_json", tool_parser="glm45")
    assert dragoman.app(
        ScriptedEngine("x"), format="glm45", tool_parser="glm45", reasoning_parser=None
    )


def test_byte_order_mark_of_a_template_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ 1 }}", encoding="utf-8-sig")
    assert read_template(tmp_path / "t.jinja") == "{{ 1 }}"
