"""Runs programs in JavaScript that use the `ollama` package of npm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

MODULES = ROOT / ".ollama-clients" / "node_modules"


def run_node_client(program: Path, url: str, model: str) -> Any:
    """Run a program against a server, and return what it prints."""
    run = subprocess.run(
        ["node", str(program), str(MODULES), url, model],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
