"""The install lines of the README work in an empty home, and the server that they install answers.

So do the lines of docs/gpu.md that replace the engine by a build from another package index. A
server on loopback takes the place of that index; it has the wheel that the ordinary index has.
`make test-install` runs this for every Python from 3.11 on that is found here: on the path, under
`~/.pyenv/versions`, and in the list `PYTHONS` of the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.install.package_index import PackageIndex, serve_index
from tests.support.doc_blocks.blocks import DocBlock, list_blocks_of, run_blocks
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


def find_tool(block: DocBlock) -> str:
    """Return the program that a block installs with."""
    [tool] = re.findall(r"^\S*\b(pip|pipx|uv) .*install\b", block.text, flags=re.MULTILINE)
    return str(tool)


def list_examples() -> list[list[DocBlock]]:
    """List the blocks that install from a copy, each with those that change such a command."""
    blocks = list_blocks_of("test-install")
    examples = [[block] for block in blocks if block.text.rstrip().endswith("install .")]
    for block in blocks:
        if [block] not in examples:
            tool = find_tool(block)
            next(example for example in examples if find_tool(example[0]) == tool).append(block)
    return examples


@pytest.mark.parametrize("version", PYTHONS)
@run_blocks(*list_examples())
def test_install_lines_work(
    example: list[DocBlock], version: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install, *changes = example
    tool = find_tool(install)
    folder = home / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(PYTHONS[version])
    monkeypatch.setenv("UV_PYTHON", str(PYTHONS[version]))
    monkeypatch.setenv("PIPX_DEFAULT_PYTHON", str(PYTHONS[version]))
    path = f"{folder}:{home}/.local/bin:{TOOLS}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    subprocess.run(["bash", "-ec", install.text], check=True)
    command = home / ".local" / "bin" / "dragoman"
    if tool == "pip":
        command = Path(".venv/bin/dragoman").absolute()
    monkeypatch.chdir(home)  # the server starts anywhere
    assert count_answer_tokens(command) in range(1, 6)
    for block in changes:
        if "--index-url" in block.text:
            replace_engine(block, command, home)
        else:
            install_extras(block, command.parent, monkeypatch)
        assert count_answer_tokens(command) in range(1, 6)


def replace_engine(block: DocBlock, command: Path, home: Path) -> None:
    """Replace the engine as docs/gpu.md says, and serve a file with it where the page does."""
    folder = command.resolve().parent
    [model] = home.glob(".cache/dragoman/models/*/*.gguf")
    (home / "model.gguf").symlink_to(model)
    wheels = home / "wheels"
    download = ["download", "--no-deps", "--dest", str(wheels), read_engine_version(folder)]
    if find_tool(block) == "pip":
        subprocess.run([str(folder / "pip"), *download], check=True)
    else:
        python = f"--python-version={read_version(folder)}"
        only = ["--only-binary=:all:", python]
        subprocess.run([sys.executable, "-m", "pip", *download, *only], check=True)
    shims = home / "shims"
    shims.mkdir()
    serve = f"{sys.executable} -m tests.support.doc_blocks.answered_command"
    paths = os.pathsep.join(sys.path)
    (shims / "dragoman").write_text(
        f'#!/bin/sh\nPYTHONPATH="{paths}" exec {serve} env -u PYTHONPATH {command} "$@"\n'
    )
    (shims / "dragoman").chmod(0o755)
    [url] = re.findall(r"https://\S+", block.text)
    index = PackageIndex(url, wheels, home)
    with serve_index(index) as variables:
        # no other index is asked
        environment = os.environ | variables | {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
        environment["PATH"] = f"{shims}:{folder}:{environment['PATH']}"
        subprocess.run(["bash", "-ec", block.text], env=environment, check=True)
    assert any(path.endswith(".whl") for path in index.requests), index.requests


def read_engine_version(folder: Path) -> str:
    """Return the requirement of the engine as it is installed."""
    program = "from importlib.metadata import version; print(version('xllamacpp'))"
    return f"xllamacpp=={run_python(folder, program)}"


def read_version(folder: Path) -> str:
    return run_python(folder, "import platform; print(platform.python_version())")


def run_python(folder: Path, program: str) -> str:
    command = [str(folder / "python"), "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install_extras(block: DocBlock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the extras as docs/media.md says, and all others; import what they bring."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    subprocess.run(["bash", "-ec", block.text], check=True)
    subprocess.run(["pip", "install", "dragoman[mcp,otel,postgres]"], check=True)
    modules = "PIL, soundfile, pypdf, mcp, opentelemetry.sdk, psycopg"
    subprocess.run([str(folder / "python"), "-c", f"import {modules}"], check=True)


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
