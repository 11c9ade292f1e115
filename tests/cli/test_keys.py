"""`dragoman keys`, and the warnings of `dragoman serve` about keys."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dragoman import config
from dragoman.cli.client.connect import choose_key
from dragoman.keys.digests import format_hash, make_key_owner
from dragoman.keys.entries import EntryOptions, LimitOptions
from dragoman.options import list_fields
from tests.support.command_line import run_command
from tests.support.model_files import write_model_file
from tests.support.paths import ROOT
from tests.support.server_process import DRAGOMAN
from tests.support.serving import make_scripted_app, run_app


@pytest.mark.parametrize("flags", [(), ("--admin",)])
def test_a_new_key_opens_the_server_that_has_its_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    import httpx

    result = run_command(capsys, "keys", "new", "alice", *flags)
    key, _, entry = result.out.partition("\n")
    assert result.code == 0
    assert "not stored" in result.err
    assert key not in entry
    file = tmp_path / "keys.yaml"
    file.write_text(entry)
    with run_app(make_scripted_app(api_key_file=str(file))) as server:

        def request(key: str, path: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(server.url + path, headers=headers).status_code

        assert request(key, "/v1/models") == 200
        assert request(key[:-1], "/v1/models") == 401
        load = httpx.post(f"{server.url}/admin/models/load", headers={"x-api-key": key}, json={})
        assert load.status_code == (400 if flags else 403)
    assert run_command(capsys, "keys", "new", "alice").out.partition("\n")[0] != key


def test_the_entry_of_a_key_has_its_digest_and_its_owner(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-canary-secret\n"))
    result = run_command(capsys, "keys", "hash", "bob")
    assert yaml.safe_load(result.out) == {
        "entries": [
            {
                "name": "bob",
                "hash": format_hash("sk-canary-secret"),
                "owner": make_key_owner(b"sk-canary-secret"),
            }
        ]
    }
    assert "can be guessed" in result.err
    assert "canary" not in result.out + result.err


@pytest.mark.parametrize(
    ("arguments", "text", "problem"),
    [
        (("hash", "bob"), "", "Send the key on standard input."),
        (("hash", "b b"), "key", "`name` must be at most 64"),
        (("hash", "bob"), "\udcff\n", "The key on standard input is not UTF-8 text."),
        (("make", "bob"), "", "invalid choice"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    text: str,
    problem: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    result = run_command(capsys, "keys", *arguments)
    assert result.code != 0
    assert problem in result.err


@pytest.mark.slow
def test_keys_on_the_command_line_and_weak_keys_draw_a_warning(tmp_path: Path) -> None:
    """The model is no model: the warnings come before it fails to load."""
    write_model_file(tmp_path / "models" / "good.gguf")
    command = [*DRAGOMAN, "serve", "good", "--port", "0", "--models-dir", str(tmp_path / "models")]
    command += ["--store", "sqlite://", "--api-key", "sk-canary", "--admin-key", "sk-canary-boss"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    warnings = re.findall(r"WARNING (--\S+) on the command line can be read by all", done.stderr)
    assert warnings == ["--api-key", "--admin-key"]
    assert "WARNING API keys that can be guessed: " in done.stderr
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.slow
def test_keys_of_the_environment_draw_no_warning_about_the_command_line(tmp_path: Path) -> None:
    write_model_file(tmp_path / "models" / "good.gguf")
    command = [*DRAGOMAN, "serve", "good", "--port", "0", "--models-dir", str(tmp_path / "models")]
    command += ["--store", "sqlite://"]
    environment = {"DRAGOMAN_API_KEY": "0123456789-abcdefghij-0123456789", "HOME": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "on the command line" not in done.stderr
    assert "guessed" not in done.stderr


def test_the_documentation_names_the_settings_that_change_while_the_server_runs() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = page.partition("### Changing keys")[2].partition("\n### ")[0]
    sentence = section.partition("change while the server runs:")[2].partition("\n\n")[0]
    fields = config.list_settings().values()
    live = {f.name for f in fields if f.setting.is_live and f.setting.group != "keys"}
    assert set(re.findall(r"`(\w+)`", sentence)) == live


def test_the_documentation_has_every_field_of_an_entry() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = page.partition("## Keys and limits")[2].partition("\n## ")[0]
    for name in (*list_fields(EntryOptions), *list_fields(LimitOptions)):
        assert f"`{name}`" in section, name


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("keys.txt", b"# mine\n\n  first  \nsecond\n", "first"),
        ("keys.yaml", b"entries: [{name: me, hash: 'sha256:00'}]\n", None),
        ("keys.txt", b"# none\n", None),
    ],
)
def test_commands_send_the_first_key_of_a_file(
    tmp_path: Path, name: str, content: bytes, key: str | None
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert choose_key(config.Settings(api_key_file=str(file)), admin=False) == key


def test_key_file_that_is_not_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.txt").write_bytes(b"caf\xe9")
    monkeypatch.setenv("DRAGOMAN_API_KEY_FILE", str(tmp_path / "keys.txt"))
    result = run_command(capsys, "ps", "--port", "9")
    assert result.code != 0
    assert result.err.endswith("it is not text in UTF-8.\n")
