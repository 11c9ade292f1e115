"""Where vLLM is installed.

`dragoman engine install vllm` makes an environment of its own, whose record says that it is
complete. A program that has vLLM beside Dragoman needs none.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.engines.subprocess.interpreter import Interpreter

NAME = "vllm"
INSTALL_COMMAND = f"dragoman engine install {NAME}"
RECORD = "installed.json"  # written last


class InstalledEngine(Struct, frozen=True, kw_only=True):
    """The record of an environment that is complete."""

    version: str
    device: str
    python: str = ""


def find_interpreter(engines: Path) -> Interpreter | None:
    """Return the Python that has vLLM; None if there is none."""
    if read_record(engines / NAME) is not None:
        return Interpreter(python=str(get_python(engines / NAME)))
    if importlib.util.find_spec(NAME) is not None:
        return Interpreter(python=sys.executable)
    return None


def read_record(environment: Path) -> InstalledEngine | None:
    """Return the record of an environment; None if it is not complete."""
    try:
        record = msgspec.json.decode((environment / RECORD).read_bytes(), type=InstalledEngine)
    except (OSError, msgspec.DecodeError):
        return None
    return record if get_python(environment).exists() else None


def get_python(environment: Path) -> Path:
    return environment / "bin" / "python"
