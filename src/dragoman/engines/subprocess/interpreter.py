"""The Python that runs an engine's process.

Usually it is the Python that runs the server. An engine whose packages clash with ours has an
environment of its own, whose Python then runs the child. That ignores the server's import path:
only the package `dragoman` is found, by its directory; what it imports must be installed there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from msgspec import Struct

PACKAGE = Path(__file__).resolve().parent.parent.parent
# The program of a child whose engine starts processes of its own. It has no module that those
# would import again.
START_CHILD = """
import importlib.util, json, os, sys
start = json.loads(sys.argv[1])
for name, value in start["variables"].items():
    os.environ.setdefault(name, value)
if start["package"]:
    spec = importlib.util.spec_from_file_location("dragoman", start["package"] + "/__init__.py")
    sys.modules["dragoman"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
sys.argv = [start["module"], start["parent"]]
importlib.import_module("dragoman.processes.child").end_group_with_process()
importlib.import_module(start["module"]).main()
"""


class Interpreter(Struct, frozen=True, kw_only=True):
    """A Python, and the environment variables that its libraries read; the operator's win."""

    python: str = sys.executable
    variables: dict[str, str] = {}

    @property
    def is_ours(self) -> bool:
        return self.python == sys.executable

    def make_command(self, module: str, parent: int) -> list[str]:
        """Return the command that runs `main` of a module of `dragoman` in a child."""
        if self.is_ours and not self.variables:
            return [self.python, "-m", module, str(parent)]
        start = {
            "module": module,
            "parent": str(parent),
            "variables": self.variables,
            "package": "" if self.is_ours else str(PACKAGE),
        }
        isolation = "-P" if self.is_ours else "-I"  # -I: without PYTHONPATH and user packages
        return [self.python, isolation, "-c", START_CHILD, json.dumps(start)]
