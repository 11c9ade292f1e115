"""The blocks of a page: where they are, what they say, and the comments before them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (.*?) -->\s*$")
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\S*/)?dragoman\s+(.*)")
SERVES = re.compile(r"serves (?P<host>[\w.-]+):(?P<port>\d+)")
RUN_BY = re.compile(r"run by make (?P<target>[\w-]+)(?: on (?P<machines>\S+(?:, \S+)*))?")
IN_TERMINAL = "run in a terminal"
# the ports of servers whose command names none
DEFAULT_PORTS = {"dragoman": "8000", "llama-server": "8080", "ollama": "11434"}


class DocBlock(NamedTuple):
    """A fenced block: where it is, its language, its text, and the comment before it."""

    page: str
    line: int
    language: str
    text: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the block is."""
        return self.marker.removeprefix("file: ") if self.marker.startswith("file: ") else None

    @property
    def served_address(self) -> str | None:
        """The address of the server that the block starts for those after it."""
        return self.marker.removeprefix("serves ") if SERVES.fullmatch(self.marker) else None

    @property
    def target(self) -> str | None:
        """The target of `make` whose tests run the block."""
        match = RUN_BY.fullmatch(self.marker)
        return match["target"] if match else None

    @property
    def machines(self) -> list[str]:
        """The addresses of the machines on which the block is run, where there are several."""
        match = RUN_BY.fullmatch(self.marker)
        return match["machines"].split(", ") if match and match["machines"] else []

    @property
    def port(self) -> str | None:
        """The port that its command listens on."""
        port = re.search(r"--port (\d+)", self.text)
        return port[1] if port else DEFAULT_PORTS.get(self.text.split()[0])

    @property
    def commands(self) -> Iterator[list[str]]:
        """The command lines that run `dragoman`, without variables before and comments after."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if match := COMMAND.match(line):
                yield shlex.split(match[1].partition(" | ")[0], comments=True)


def list_blocks_of(target: str) -> list[DocBlock]:
    """List the blocks of all pages that a target of `make` runs."""
    return [block for page in PAGES for block in read_blocks(page) if block.target == target]


def run_blocks(*examples: Sequence[DocBlock]) -> pytest.MarkDecorator:
    """Run a test for each of these examples, in the parameter `example`.

    The name of the test names the blocks, by which `tests/test_doc_commands.py` finds it.
    """
    return pytest.mark.parametrize("example", examples, ids=name_blocks)


def name_blocks(blocks: Sequence[DocBlock]) -> str:
    return "+".join(map(str, blocks))


def read_blocks(page: Path) -> list[DocBlock]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        marker = MARKER.search(before[before.rstrip("\n").rfind("\n") + 1 :])
        content = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        blocks.append(
            DocBlock(
                str(page.relative_to(ROOT)),
                before.count("\n") + 1,
                match[2],
                content,
                marker[1] if marker else "",
            )
        )
    return blocks
