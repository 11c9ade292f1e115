"""The command line, run as an operator runs it."""

from __future__ import annotations

import os
import pty
import re
import select
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
from dragoman.testing import ScriptedEngine
from tests.support.server_process import (
    DRAGOMAN,
    list_child_pids,
    list_listening_addresses,
    read_until,
    run_server,
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRAGOMAN, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_settings_come_from_flags_then_the_environment_then_defaults() -> None:
    outside = {"DRAGOMAN_PORT": "9", "DRAGOMAN_API_KEY": "a, b", "DRAGOMAN_ANY_MODEL": "true"}
    settings = config.load({"host": "::1", "port": None}, outside)
    assert (settings.host, settings.port) == ("::1", 9)
    assert settings.api_key == ("a", "b")
    assert settings.any_model is True
    assert settings.queue == config.Settings().queue
    assert config.load({"port": 7}, outside).port == 7


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "many"), ("ANY_MODEL", "perhaps"), ("DRAIN", "long")]
)
def test_a_setting_that_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(config.SettingsError, match=f"DRAGOMAN_{name}"):
        config.load({}, {f"DRAGOMAN_{name}": value})


def test_list_shows_what_is_there(default_model: Path, tmp_path: Path) -> None:
    shown = run("list", "--models-dir", str(default_model.parent.parent))
    assert shown.returncode == 0
    assert re.search(r"smollm2-135m +llama +Q4_1 +8192 +98 MB", shown.stdout)
    (tmp_path / "broken.gguf").write_bytes(b"GGUFnonsense")
    broken = run("list", "--models-dir", str(tmp_path))
    assert "broken:" in broken.stdout
    empty = run("list", "--models-dir", str(tmp_path / "new"))
    assert "dragoman pull" in empty.stdout


def test_pulling_what_is_there_is_quick_and_says_where(default_model: Path) -> None:
    done = run("pull", "smollm2-135m", "--models-dir", str(default_model.parent.parent))
    assert done.returncode == 0
    assert str(default_model) in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "no-such-model"], "no-such-model"),
        (["serve", "/no/such/file.gguf"], "file.gguf"),
        (["pull", "no-such-model"], "hf:owner/repo"),
        (["serve", "x", "--host", "0.0.0.0", "--models-dir", "{model}"], "API key"),
        (["serve", "--log-level", "loud"], "log level"),
        (["serve", "--lora", "poet", "{file}"], "NAME=PATH"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], says: str, default_model: Path, tmp_path: Path
) -> None:
    place = {"model": str(tmp_path), "file": str(default_model)}
    if "0.0.0.0" in arguments:
        (tmp_path / "x.gguf").symlink_to(default_model)
    done = run(*(one.format(**place) for one in arguments))
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_file_says_why_and_ends(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all")
    done = run("serve", str(tmp_path / "bad.gguf"), "--port", "0")
    assert done.returncode == 1
    assert "GGUF" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "choice"),
    [("--engine", "llamacpp"), ("--format", "hermes_json"), ("--reasoning-format", "think")],
)
def test_an_unknown_name_is_refused_at_startup_with_the_choices(
    default_model: Path, flag: str, choice: str
) -> None:
    done = run("serve", str(default_model), flag, "warp")
    assert done.returncode == 1
    assert "'warp'" in done.stderr
    assert choice in done.stderr


def test_serve_answers_and_ends_with_its_engine_on_sigterm(default_model: Path) -> None:
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


def test_a_log_that_nobody_reads_holds_nothing_up(default_model: Path) -> None:
    with (
        run_server(str(default_model), "--context", "512") as (process, url),
        httpx.Client(base_url=url) as client,
    ):
        read_until(process, "Serving")
        for _ in range(1500):  # twice what a pipe holds
            assert client.get("/nowhere").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [*DRAGOMAN, *arguments])  # noqa: S606
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def until(self, pattern: str) -> str:
        """What came since the last call, up to the pattern."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._handle], [], [], 1)[0]:
                self.seen += os.read(self._handle, 4096).decode(errors="replace")
        taken, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return taken

    def wait(self) -> int:
        try:
            while os.read(self._handle, 4096):
                pass
        except OSError:
            pass
        os.close(self._handle)
        return os.waitpid(self.pid, 0)[1]


def test_chat_streams_and_ctrl_c_stops_the_answer_only(default_model: Path) -> None:
    terminal = Terminal("chat", str(default_model), "--context", "2048", "--temperature", "0")
    terminal.until(">>> ")
    terminal.type("\x03")
    terminal.until(">>> ")
    terminal.type("Write a very long story about a fox, with many chapters.\n")
    terminal.until("chapters.")
    terminal.until(r"\w+ \w+ \w+")
    terminal.type("\x03")
    terminal.until(">>> ")
    terminal.type("Say hello.\n")
    terminal.until("hello.")
    terminal.until(r"\w+")
    terminal.until(">>> ")
    terminal.type("\x04")
    assert terminal.wait() == 0


def test_chat_reads_a_pipe_to_its_end(default_model: Path) -> None:
    done = subprocess.run(
        [*DRAGOMAN, "chat", str(default_model), "--context", "512", "--temperature", "0"],
        input="Say hello.\nSay it again.\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 4
    assert "Traceback" not in done.stderr


def test_the_parser_knows_its_commands() -> None:
    known = build_parser().parse_args(["serve", "m", "--lora", "a=b", "--lora", "c=d"])
    assert known.lora == ["a=b", "c=d"]
    assert known.any_model is None


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m dragoman formats"
    with subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", ["formats", "explain"])
def test_a_locale_without_our_letters_gets_their_numbers(command: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("→{{ messages[0].content }}", encoding="utf-8")
    more = [str(tmp_path / "t.jinja"), "--source"] if command == "explain" else []
    done = run(command, *more, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u" in done.stdout


def test_what_the_system_refuses_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Path("/dev/full").open("w") as full:
        unwritten = subprocess.run(
            [*DRAGOMAN, "formats"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    unmade = run("list", "--models-dir", str(tmp_path / "file" / "models"))
    for done, says in ((unwritten, "No space left on device"), (unmade, str(tmp_path))):
        assert done.returncode == 1
        assert done.stderr.startswith("dragoman: ")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_two_names_of_one_setting_must_agree() -> None:
    with pytest.raises(runtime.StartupError, match="`format` and `tool_parser`"):
        dragoman.app(ScriptedEngine("x"), format="hermes_json", tool_parser="glm45")
    assert dragoman.app(
        ScriptedEngine("x"), format="glm45", tool_parser="glm45", reasoning_parser=None
    )


def test_a_byte_order_mark_is_no_part_of_a_template_file(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ 1 }}", encoding="utf-8-sig")
    assert runtime.read_template(tmp_path / "t.jinja") == "{{ 1 }}"
