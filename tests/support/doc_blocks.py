"""The fenced blocks of a Markdown page, and a place to run them in.

A comment on the line before a block says how it is tested:

    <!-- not run: REASON -->            it is checked, but not run
    <!-- run by make test-install -->   another target runs it
    <!-- file: dragoman.yaml -->        its text becomes this file in the working directory

Blocks of one page run in order in one working directory, as a reader runs them. The home directory
has the default model and nothing else. Where a block uses the server on port 8000, one is running.
`dragoman serve` in a block runs until it serves; `curl` fails if the server answers with an error.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT
from tests.support.server_process import read_until

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (.*?) -->\s*$")
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\S*/)?dragoman\s+(.*)")
ADDRESS = "127.0.0.1:8000"
BLOCK_SECONDS = 120
SHIMS = {
    "dragoman": f"""#!/bin/sh
case "$1" in
  serve) exec {sys.executable} -m tests.support.doc_blocks "$@" ;;
  *) exec {sys.executable} -m dragoman "$@" ;;
esac
""",
    "curl": '#!/bin/sh\nexec /usr/bin/curl -sS --fail-with-body "$@"\n',
    "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
}


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


class Workspace:
    """A home directory and a working directory for the blocks of one page."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.home, self.directory, shims = folder / "home", folder / "work", folder / "shims"
        for path in (self.directory, shims):
            path.mkdir(parents=True)
        installed = self.home / ".cache" / "dragoman" / "models" / model.parent.name
        installed.mkdir(parents=True)
        os.link(model, installed / model.name)
        for name, script in SHIMS.items():
            (shims / name).write_text(script)
            (shims / name).chmod(0o755)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{shims}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "DRAGOMAN_THREADS": "1",  # tests run on all cores
            "LANG": "C.UTF-8",
        }

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Run a server, and make it the one on the usual address."""
        with subprocess.Popen(
            [sys.executable, "-m", "dragoman", "serve", "--port", "0"],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                url = read_until(process, r"Listening on (\S+)")
                read_until(process, "Serving")
                self.environment["DRAGOMAN_PORT"] = url.rpartition(":")[2]
                yield
            finally:
                process.kill()

    def run(self, block: DocBlock) -> str:
        """Run a block and return its output."""
        environment = dict(self.environment)
        text = block.text.replace(ADDRESS, f"127.0.0.1:{environment.get('DRAGOMAN_PORT', '8000')}")
        if block.language == "python" and "dragoman.serve(" in text:
            return self._run_engine(text)
        command = ["bash", "-euo", "pipefail", "-c", text]
        if block.language == "python":
            command = [sys.executable, "-c", text]
        result = subprocess.run(
            command,
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert result.returncode == 0, f"{block.page}:{block.line}\n{text}\n{result.stdout}"
        assert "Traceback" not in result.stdout, result.stdout
        return result.stdout

    def _run_engine(self, text: str) -> str:
        """Run a program that serves an engine of its own, until it listens."""
        command = [sys.executable, "-u", "-c", text]
        environment = self.environment | {"DRAGOMAN_PORT": "0"}
        return run_until_served(command, environment, self.directory)


def run_until_served(command: list[str], environment: dict[str, str], directory: Path) -> str:
    """Run a server until it prints its address, stop it, and return the address."""
    with subprocess.Popen(
        command,
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            return read_until(process, r"(http://127\.0\.0\.1:\d+)")
        finally:
            process.terminate()


def main() -> None:
    """Run `dragoman serve` until the model is loaded, then stop it."""
    command = [sys.executable, "-m", "dragoman", *sys.argv[1:]]
    environment = dict(os.environ) | {"DRAGOMAN_PORT": "0"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            print(read_until(process, r"Serving .*"))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
