"""The blocks of a page: where they are, what they say, and the comments before them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (.*?) -->\s*$")
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\S*/)?dragoman\s+(.*)")
SERVES = re.compile(r"serves (?P<host>[\w.-]+):(?P<port>\d+)")
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

    @property
    def file(self) -> str | None:
        """The name of the file that the block is."""
        return self.marker.removeprefix("file: ") if self.marker.startswith("file: ") else None

    @property
    def served_address(self) -> str | None:
        """The address of the server that the block starts for those after it."""
        return self.marker.removeprefix("serves ") if SERVES.fullmatch(self.marker) else None

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
