"""The fenced blocks of a Markdown page, and a place to run them in.

A comment on the line before a block says how it is tested:

    <!-- not run: REASON; TEST ... -->  it is checked, but not run; what the test does instead
    <!-- run by make test-install -->   another target runs it
    <!-- run in a terminal -->          it is a chat, in which a user types
    <!-- file: dragoman.yaml -->        its text becomes this file in the working directory
    <!-- serves this page -->           it starts the server that the blocks of the page use

Blocks of one page run in order in one working directory, as a reader runs them. The home directory
has the default model and nothing else; path/to/model.gguf is a file of the reader's own, as are
photo.jpg and the models of `OWN_MODELS`, which are small and random. Where a block uses the server
on port 8000, one is running, and it is also the one on port 8080 that another Dragoman is to stand
in front of; where it uses Hugging Face or an OTLP collector, a server on loopback stands there.
Files of settings are checked by `dragoman config`. `dragoman serve` and `make serve` in a block run
until they have answered a request. `make` runs in the repository; targets that run this very test
or change files are only a dry run. `pip` finds what is installed, and no index. `curl` fails if the
server answers with an error.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from dragoman.cli.main import parse_arguments
from tests.support.loopback_services import serve_collector, serve_hub
from tests.support.media_files import make_image
from tests.support.paths import ROOT
from tests.support.pooling_models import RANK, write_encoder
from tests.support.server_process import DRAGOMAN, read_until
from tests.support.terminal import CTRL_D, ask, open_terminal
from tests.support.vision_models import write_mlp_projector, write_text_model

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (.*?) -->\s*$")
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\S*/)?dragoman\s+(.*)")
ADDRESS = "127.0.0.1:8000"
UPSTREAM = "127.0.0.1:8080"
COLLECTOR = "http://localhost:4318"
IN_TERMINAL = "run in a terminal"
SERVES_PAGE = "serves this page"
# files of settings by their names, and the flag of `dragoman config` that reads them
SETTINGS_FILES = {
    "dragoman.yaml": "--config",
    "models.yaml": "--models-file",
    "preset.yaml": "--sampling-preset",
}
BLOCK_SECONDS = 120
TRY_SERVER = f"{sys.executable} -m tests.support.doc_blocks"
DRY_TARGETS = ("check", "test", "format")
# what is installed is not installed again
MAKE = f"/usr/bin/make -C {ROOT} VENV={sys.prefix} -o {sys.prefix}/.serve"
SHIMS = {
    "dragoman": f"""#!/bin/sh
case "$1" in
  serve) exec {TRY_SERVER} {shlex.join(DRAGOMAN)} "$@" ;;
  *) exec {shlex.join(DRAGOMAN)} "$@" ;;
esac
""",
    "make": f"""#!/bin/sh
case "$1" in
  serve) exec {TRY_SERVER} {MAKE} "$@" ;;
  {"|".join(DRY_TARGETS)}) exec {MAKE} --dry-run "$@" ;;
  *) exec {MAKE} "$@" ;;
esac
""",
    "pip": f'#!/bin/sh\nexec {sys.executable} -m pip --no-input "$@"\n',
    "curl": '#!/bin/sh\nexec /usr/bin/curl -sS --fail-with-body "$@"\n',
    "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
}


def write_reranker(path: Path) -> None:
    write_encoder(path, RANK)


def write_vision_model(path: Path) -> None:
    write_text_model(path)
    name = path.stem.rpartition("-")[0]  # without the quantization
    write_mlp_projector(path.with_name(f"mmproj-{name}-f16.gguf"))


OWN_MODELS = {
    "bge-reranker-v2-m3-Q8_0.gguf": write_reranker,
    "gemma-3-4b-it-Q4_K_M.gguf": write_vision_model,
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

    def __init__(self, folder: Path, model: Path, blocks: Sequence[DocBlock]) -> None:
        self.home, self.directory, shims = folder / "home", folder / "work", folder / "shims"
        for path in (self.directory, shims):
            path.mkdir(parents=True)
        installed = self.home / ".cache" / "dragoman" / "models" / model.parent.name
        installed.mkdir(parents=True)
        own = self.directory / "path" / "to" / "model.gguf"
        own.parent.mkdir(parents=True)
        for path in (installed / model.name, own):
            os.link(model, path)
        for name, write in OWN_MODELS.items():
            if any(name in block.text for block in blocks):
                write(own.with_name(name))
        (self.directory / "photo.jpg").write_bytes(make_image("JPEG"))
        self.model = model
        for name, script in SHIMS.items():
            (shims / name).write_text(script)
            (shims / name).chmod(0o755)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{shims}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "DRAGOMAN_THREADS": "1",  # tests run on all cores
            "PIP_NO_INDEX": "1",
            "LANG": "C.UTF-8",
        }

    @contextmanager
    def serve(self, arguments: Sequence[str]) -> Iterator[None]:
        """Run a server, and make it the one on the usual address."""
        with subprocess.Popen(
            [*DRAGOMAN, *arguments, "--port", "0"],
            env=self.environment,
            cwd=self.directory,
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
        if block.marker == IN_TERMINAL:
            return self._chat(block)
        with ExitStack() as stack:
            if " hf:" in block.text:
                hub = serve_hub({"file.gguf": self.model.read_bytes()})
                self.environment |= stack.enter_context(hub)
            if COLLECTOR not in block.text:
                return self._execute(block)
            endpoint, received = stack.enter_context(serve_collector())
            output = self._execute(block._replace(text=block.text.replace(COLLECTOR, endpoint)))
        assert {path for path, _ in received} == {"/v1/traces"}, output
        assert b"gen_ai.usage.input_tokens" in b"".join(body for _, body in received)
        return output

    def _chat(self, block: DocBlock) -> str:
        """Run the command in a terminal, and type what the page says."""
        [words] = block.commands
        with open_terminal(*words, **self.environment) as terminal:
            terminal.until(">>>")
            ask(terminal, "/help", "/stats")
            ask(terminal, "/set temperature 0.2", "temperature")
            ask(terminal, "/set max_tokens 5", "max_tokens")
            ask(terminal, "Hello!", r"\n\S")
            ask(terminal, "/stats", r"\d tokens/s|tokens per second")
            terminal.type(CTRL_D)
        return terminal.raw

    def _execute(self, block: DocBlock) -> str:
        environment = dict(self.environment)
        address = f"127.0.0.1:{environment.get('DRAGOMAN_PORT', '8000')}"
        text = block.text.replace(ADDRESS, address).replace(UPSTREAM, address)
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
        for error in ("Traceback", "does not provide the extra"):
            assert error not in result.stdout, result.stdout
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
    """Run the command in the arguments until the server answers a request, then stop it."""
    command = sys.argv[1:]
    if "--port" in command:  # which may be in use
        command[command.index("--port") + 1] = "0"
    with subprocess.Popen(
        command,
        env=os.environ | {"DRAGOMAN_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            url = read_until(process, r"Listening on (\S+)").replace("0.0.0.0", "127.0.0.1")
            model = read_until(process, r"Serving (\S+)\.")
            print(request_answer(url, model, command[command.index("serve") :]))
        finally:
            process.terminate()
            process.communicate()


def request_answer(url: str, model: str, arguments: list[str]) -> str:
    """Request an answer of one token, as a client of a server with these arguments does."""
    settings = parse_arguments(arguments)
    headers = {}
    if settings.api_key:
        headers["authorization"] = f"Bearer {settings.api_key[0]}"
    if settings.allowed_host:
        headers["host"] = settings.allowed_host[0]
    response = httpx.post(
        f"{url}/v1/chat/completions",
        headers=headers,
        verify=ssl.create_default_context(cafile=settings.tls_cert),
        json={
            "model": model,
            "messages": [{"role": "user", "content": "Hello!"}],
            "max_tokens": 1,
        },
        timeout=BLOCK_SECONDS,
    )
    # the block says nothing about the keys in a file, so this client has none
    assert response.status_code == (401 if settings.api_key_file else 200), response.text
    return response.text


if __name__ == "__main__":
    main()
