"""The install lines of the README work in an empty home, and the server that they install answers.

`make test-install` runs this for every Python from 3.11 on that is found here: on the path, under
`~/.pyenv/versions`, and in the list `PYTHONS` of the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.doc_blocks.blocks import read_blocks
from tests.support.paths import ROOT
from tests.support.repository import copy_repository
from tests.support.server_process import read_until

TOOLS = ROOT / ".install" / "bin"
VERSION = re.compile(r"Python (3\.(\d+)\.\S+)")


def find_pythons() -> dict[str, Path]:
    """Return one interpreter for each supported version."""
    paths = [Path(path) for path in os.environ.get("PYTHONS", "").split(":") if path]
    for folder in os.environ.get("PATH", "").split(":"):
        paths += sorted(Path(folder).glob("python3.[0-9][0-9]"))
    paths += sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    found: dict[str, Path] = {}
    for path in paths:
        run = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False)
        match = VERSION.match(run.stdout)
        if match and int(match[2]) >= 11:
            found.setdefault(f"3.{match[2]}", path)
    return dict(sorted(found.items()))


PYTHONS = find_pythons()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, with a copy of the repository beside it."""
    home, source = tmp_path / "home", tmp_path / "dragoman"
    home.mkdir()
    copy_repository(source)
    for name in list(os.environ):
        if name.startswith(("XDG_", "DRAGOMAN_", "PYTHON", "VIRTUAL_ENV", "PIPX_", "UV_TOOL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(source)
    yield home
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("tool", ["pip", "uv", "pipx"])
def test_install_lines_of_the_readme_work(
    tool: str, version: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(PYTHONS[version])
    monkeypatch.setenv("UV_PYTHON", str(PYTHONS[version]))
    monkeypatch.setenv("PIPX_DEFAULT_PYTHON", str(PYTHONS[version]))
    path = f"{folder}:{home}/.local/bin:{TOOLS}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    [block] = [block for block in read_install_blocks("README.md") if names_tool(block, tool)]
    subprocess.run(["bash", "-ec", block], check=True)
    command = home / ".local" / "bin" / "dragoman"
    if tool == "pip":
        command = Path(".venv/bin/dragoman").absolute()
    monkeypatch.chdir(home)  # the server starts anywhere
    assert count_answer_tokens(command) in range(1, 6)
    if tool == "pip":
        install_extras(command.parent, monkeypatch)


def install_extras(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the extras as docs/media.md says, and all others; import what they bring."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    [block] = read_install_blocks("docs/media.md")
    subprocess.run(["bash", "-ec", block], check=True)
    subprocess.run(["pip", "install", "dragoman[mcp,otel,postgres]"], check=True)
    modules = "PIL, soundfile, pypdf, mcp, opentelemetry.sdk, psycopg"
    subprocess.run([str(folder / "python"), "-c", f"import {modules}"], check=True)


def read_install_blocks(page: str) -> list[str]:
    blocks = read_blocks(ROOT / page)
    return [block.text for block in blocks if block.marker == "run by make test-install"]


def names_tool(block: str, tool: str) -> bool:
    return re.search(rf"^\S*\b{tool} .*install", block, flags=re.MULTILINE) is not None


def count_answer_tokens(command: Path) -> int:
    """Serve with the installed command; return how many tokens its answer to a question has."""
    with subprocess.Popen(
        [str(command), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            url = read_until(process, r"Listening on (\S+)")
            read_until(process, "Serving smollm2-135m")
            answer = httpx.post(
                f"{url}/v1/chat/completions",
                json={
                    "model": "smollm2-135m",
                    "messages": [{"role": "user", "content": "Hello!"}],
                    "max_tokens": 5,
                },
                timeout=60,
            )
            return int(answer.raise_for_status().json()["usage"]["completion_tokens"])
        finally:
            process.terminate()
