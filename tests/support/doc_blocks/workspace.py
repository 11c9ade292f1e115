"""The machines on which a page is read: directories, commands, servers and services."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from tests.support.certificates import Authority
from tests.support.doc_blocks.blocks import IN_TERMINAL, DocBlock
from tests.support.loopback_services import serve_collector, serve_hub
from tests.support.media_files import make_image
from tests.support.paths import ROOT
from tests.support.pooling_models import RANK, write_encoder
from tests.support.safetensors_model import write_tokenizer
from tests.support.server_process import DRAGOMAN, read_until
from tests.support.terminal import CTRL_D, ask, open_terminal
from tests.support.vision_models import write_mlp_projector, write_text_model

LOOPBACK = "127.0.0.1"
ADDRESS = "127.0.0.1:8000"
UPSTREAM = "127.0.0.1:8080"
COLLECTOR = "http://localhost:4318"
BLOCK_SECONDS = 120
SHELL = ("bash", "-euo", "pipefail", "-c")
TRY_SERVER = f"{sys.executable} -m tests.support.doc_blocks.answered_command"
OTHER_SERVER = f"exec {sys.executable} -m tests.support.doc_blocks.other_servers"
DRY_TARGETS = ("check", "test", "format")
# what is installed is not installed again
MAKE = f"/usr/bin/make -C {ROOT} VENV={sys.prefix} -o {sys.prefix}/.serve"
SHIMS = {
    "dragoman": f"""#!/bin/sh
case "$SERVES$1" in
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
    "python": f"""#!/bin/sh
case "$2" in
  sglang.launch_server) {OTHER_SERVER} sglang "$@" ;;
  *) exec {sys.executable} "$@" ;;
esac
""",
} | {
    name: f'#!/bin/sh\n{OTHER_SERVER} {name} "$@"\n'
    for name in ("llama-server", "vllm", "lms", "ollama")
}
KEY = "a-key-of-the-other-machine"


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


class Machine(NamedTuple):
    """A home directory and a working directory."""

    home: Path
    directory: Path


class Workspace:
    """What the blocks of one page run in. Use it as a context manager."""

    def __init__(self, folder: Path, model: Path, blocks: Sequence[DocBlock]) -> None:
        self._folder, self._model, self._blocks = folder, model, blocks
        self._stack = ExitStack()
        self._machines: dict[str, Machine] = {}
        self._authority: Authority | None = None
        self._addresses: dict[str, str] = {}  # of the page, and where the servers really are
        shims = folder / "shims"
        shims.mkdir(parents=True)
        for name, script in SHIMS.items():
            (shims / name).write_text(script)
            (shims / name).chmod(0o755)
        local = self._get_machine(LOOPBACK)
        self.home, self.directory = local
        self.block_seconds = BLOCK_SECONDS
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{shims}:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(filter(None, (os.getenv("PYTHONPATH"), str(ROOT)))),
            "DRAGOMAN_THREADS": "1",  # tests run on all cores
            "PIP_NO_INDEX": "1",
            "LANG": "C.UTF-8",
        }

    def __enter__(self) -> Workspace:
        if any(" hf:" in block.text or "Qwen/" in block.text for block in self._blocks):
            tokenizer = write_tokenizer(self._model, self._folder / "tokenizer")
            files = {path.name: path.read_bytes() for path in tokenizer.iterdir()}
            hub = serve_hub(files | {"file.gguf": self._model.read_bytes()})
            self.environment |= self._stack.enter_context(hub)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # machines

    def _get_machine(self, host: str) -> Machine:
        """Return a machine, with a model under the names that the page gives it."""
        if host not in self._machines:
            folder = self._folder / "machines" / host
            machine = self._machines[host] = Machine(folder / "home", folder / "work")
            installed = machine.home / ".cache" / "dragoman" / "models"
            own = machine.directory / "path" / "to" / "model.gguf"
            names = [self._model.parent.name, *self._list_models(host)]
            paths = [installed / name / self._model.name for name in names]
            for path in (*paths, own, machine.directory / "model.gguf"):
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._model, path)
            self._write_files(machine)
        return self._machines[host]

    def _list_models(self, host: str) -> Iterator[str]:
        """List the installed models that the page serves on another machine."""
        for block in self._blocks:
            if host != LOOPBACK and (block.served_address or "").startswith(f"{host}:"):
                for words in block.commands:
                    yield from (word for word in words[1:2] if not word.startswith("-"))

    def _write_files(self, machine: Machine) -> None:
        """Write the reader's own files: models, keys, certificates."""
        text = "".join(block.text for block in self._blocks)
        for name, write in OWN_MODELS.items():
            if name in text:
                write(machine.directory / "path" / "to" / name)
        (machine.directory / "photo.jpg").write_bytes(make_image("JPEG"))
        for name in ("keys.txt", "gpu-box.key"):
            (machine.directory / name).write_text(f"{KEY}\n")
        if "ca.pem" in text:
            self._write_certificates(machine.directory)

    def _write_certificates(self, directory: Path) -> None:
        """Write certificates of the server and of a client, signed by the reader's authority."""
        if self._authority is None:
            self._authority = Authority(self._folder)
        os.link(self._authority.file, directory / "ca.pem")
        for name, issued in (("server", "localhost"), ("me", "reader")):
            cert, key = self._authority.issue(issued)
            cert.rename(directory / f"{name}.pem")
            key.rename(directory / f"{name}.key")

    # servers

    def serve(self, arguments: Sequence[str]) -> None:
        """Run a server for the whole page, and make it the one on the usual addresses."""
        command = [*DRAGOMAN, *arguments, "--port", "0"]
        address = self._stack.enter_context(self._run_server(command, self._machines[LOOPBACK]))
        self._addresses |= {ADDRESS: address, UPSTREAM: address}
        self.environment["DRAGOMAN_PORT"] = address.rpartition(":")[2]

    def start(self, block: DocBlock) -> None:
        """Run the server of a block until the end of the page, in the place of its address."""
        address = block.served_address
        assert address is not None
        host, _, port = address.partition(":")
        text = re.sub(rf"--port {port}\b", "--port 0", self._replace_addresses(block.text))
        command = [*SHELL, text]
        server = self._run_server(command, self._get_machine(host))
        self._addresses[address] = self._stack.enter_context(server)
        if address == ADDRESS:
            self.environment["DRAGOMAN_PORT"] = self._addresses[address].rpartition(":")[2]

    @contextmanager
    def _run_server(self, command: Sequence[str], machine: Machine) -> Iterator[str]:
        """Run a server on a machine, and yield its address when it is ready."""
        with subprocess.Popen(
            command,
            env=self.environment
            | {"HOME": str(machine.home), "SERVES": "1", "DRAGOMAN_PORT": "0"}
            | {"OLLAMA_HOST": f"{LOOPBACK}:0", "DOC_MODEL": str(self._model)},
            cwd=machine.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        ) as process:
            try:
                url = read_until(process, r"Listening on (\S+)")
                read_until(process, "Serving")
                yield url.partition("://")[2].replace("0.0.0.0", LOOPBACK)
            finally:
                kill_session(process)

    # blocks

    def run(self, block: DocBlock) -> str:
        """Run a block and return its output."""
        if block.marker == IN_TERMINAL:
            return self._chat(block)
        if COLLECTOR not in block.text:
            return self._execute(block)
        with serve_collector() as (endpoint, received):
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

    def _replace_addresses(self, text: str) -> str:
        documented = "|".join(map(re.escape, self._addresses))
        if not documented:
            return text
        return re.sub(rf"({documented})\b", lambda match: self._addresses[match[1]], text)

    def _execute(self, block: DocBlock) -> str:
        text = self._replace_addresses(block.text)
        if block.language == "python" and "dragoman.serve(" in text:
            return self._run_engine(text)
        command = [*SHELL, text]
        if block.language == "python":
            command = [sys.executable, "-c", text]
        with self.start_process(command, subprocess.PIPE) as process:
            try:
                output, _ = process.communicate(timeout=self.block_seconds)
            finally:  # also what the block has left behind
                kill_session(process)
        assert process.returncode == 0, f"{block}\n{text}\n{output}"
        for error in ("Traceback", "does not provide the extra"):
            assert error not in output, output
        return output

    def start_process(self, command: Sequence[str], output: int | IO[str]) -> subprocess.Popen[str]:
        """Start a command in the working directory, in a session of its own."""
        return subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def _run_engine(self, text: str) -> str:
        """Run a program that serves an engine of its own, until it listens."""
        command = [sys.executable, "-u", "-c", text]
        environment = self.environment | {"DRAGOMAN_PORT": "0"}
        return run_until_served(command, environment, self.directory)


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session, and all that are still in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_until_served(command: list[str], environment: Mapping[str, str], directory: Path) -> str:
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
