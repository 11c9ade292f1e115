"""The flags in the README's block about agents are flags that the agents have."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.agents.sandbox import BINARIES
from tests.support.doc_blocks import read_blocks
from tests.support.paths import ROOT


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_flags_in_the_readme_exist(agent: str) -> None:
    text = "".join(block.text for block in read_blocks(ROOT / "README.md"))
    [line] = re.findall(rf"^(?:\w+=\S+ )*{agent} (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    flags = set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", line))
    assert flags
    command = [str(BINARIES / agent), "--help"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for flag in flags:
        assert re.search(rf"(?<!\S){flag}[ ,=]", listed), flag
