"""The wheel and the source distribution are complete, and what they install works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.server_process import read_until

SOURCE_FILES = sorted(
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src" / "dragoman").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
SDIST_FILES = ["Makefile", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"]
SDIST_FILES += ["pyproject.toml", "docs/flow.md", "docs/parts/formats.md", "deploy/Dockerfile"]
SDIST_FILES += ["deploy/compose.yaml", "deploy/dragoman.service", "tests/conftest.py"]

pytestmark = pytest.mark.slow


def build(project: Path, kind: str, folder: Path) -> Path:
    """Build a wheel or a source distribution as `pip` and `python -m build` do."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [file] = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, which must therefore be complete."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [project] = folder.iterdir()
    return build(project, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own, which sees our installed dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)]
    subprocess.run(command, check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # a path that a .pth file adds is not searched for .pth files, so our editable install is not
    # visible
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


@pytest.fixture
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(names) == SOURCE_FILES
    assert {"dragoman/py.typed", "dragoman/http/pages/docs.html"} <= set(names)


def test_sdist_has_the_sources_the_tests_and_the_docs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in SOURCE_FILES} <= names
    assert set(SDIST_FILES) <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


def test_default_engine_is_a_plain_dependency(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    plain = {re.split(r"[<>=;\[ ]", line)[0] for line in requirements if "extra ==" not in line}
    assert {"xllamacpp", "llguidance", "huggingface-hub", "pip"} <= plain
    # commands from older instructions still work
    assert {"llamacpp", "hub"} <= set(metadata.get_all("Provides-Extra") or [])


def test_supported_versions_of_python_are_declared(metadata: Message) -> None:
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in classifiers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty home directory, far from the source tree."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("DRAGOMAN_STORE")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_installed_command_uses_the_installed_package(environment: Path, home: Path) -> None:
    script = "import dragoman, dragoman.cli.main; print(dragoman.__file__)"
    command = [str(environment / "bin" / "python"), "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(output.strip()).is_relative_to(environment)
    version = subprocess.run(
        [str(environment / "bin" / "dragoman"), "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.fullmatch(r"dragoman \d+\.\d+\.\d+\S*\n", version)


@pytest.mark.real_model
def test_installed_server_answers(environment: Path, home: Path, default_model: Path) -> None:
    command = [str(environment / "bin" / "dragoman"), "serve", "--port", "0", "--threads", "1"]
    models = {"DRAGOMAN_MODELS_DIR": str(default_model.parent.parent)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **models},
    ) as process:
        try:
            url = read_until(process, r"Listening on (\S+)")
            read_until(process, "Serving smollm2-135m")
            assert "<html" in httpx.get(f"{url}/docs").text
            messages = [{"role": "user", "content": "Hello!"}]
            answer = httpx.post(
                f"{url}/v1/chat/completions",
                json={"model": "smollm2-135m", "messages": messages, "max_tokens": 5},
                timeout=60,
            )
            assert answer.json()["usage"]["completion_tokens"] in range(1, 6)
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            if process.poll() is None:
                process.kill()
    assert (home / ".local" / "state" / "dragoman" / "state.db").exists()
