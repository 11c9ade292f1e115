"""The commands of docs/deploying.md that need Docker or systemd, as they are written.

They run with a Docker daemon of our own (`docker_daemon`), in a copy of the repository. Two things
differ from what a reader types: the host's port, since 8000 may be in use here, and the images of
Python and PostgreSQL, which are made from Debian's packages. systemd is the first process of a
container, in which the repository is mounted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.docker_daemon import DockerDaemon, start_daemon, wait_until
from tests.deploy.test_image import KEY, find_free_port
from tests.support.doc_blocks.blocks import DocBlock, list_blocks_of, run_blocks
from tests.support.repository import copy_repository
from tests.support.server_process import read_until

ANSWER_SECONDS = 180  # the first start downloads the model
MODEL = "smollm2-135m"


def find_block(text: str) -> DocBlock:
    [block] = [block for block in list_blocks_of("test-deploy") if text in block.text]
    return block


IMAGE, OWN_MODEL, COMPOSE, SERVICE, UPGRADE = map(
    find_block,
    ("docker build", "/models/big.gguf", "docker compose", "systemctl enable", "SIGUSR2"),
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerDaemon]:
    with start_daemon(tmp_path_factory.mktemp("docker")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("clone") / "dragoman")


class Shell:
    """Runs blocks in the repository, and asks the server that they start."""

    def __init__(self, daemon: DockerDaemon, repository: Path) -> None:
        self.daemon = daemon
        self.repository = repository
        self.port = find_free_port()
        self._environment = daemon.environment | {"DRAGOMAN_API_KEY": KEY}

    @contextmanager
    def run(self, block: str) -> Iterator[subprocess.Popen[str]]:
        """Run a block that ends with a server in the foreground."""
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self._move_port(block)],
            cwd=self.repository,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run_to_the_end(self, block: str) -> str:
        with self.run(block) as process:
            output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def _move_port(self, text: str) -> str:
        return text.replace("127.0.0.1:8000:8000", f"127.0.0.1:{self.port}:8000")

    def move_port_of(self, name: str) -> None:
        """Change the host's port in a file."""
        path = self.repository / name
        path.write_text(self._move_port(path.read_text(encoding="utf-8")))

    def is_ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/health/ready"
            return httpx.get(url, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def count_answer_tokens(self, key: str, model: str) -> int:
        """Wait for the server and return how many tokens its answer has."""
        wait_until(self.is_ready, ANSWER_SECONDS)
        url = f"http://127.0.0.1:{self.port}/v1/responses"
        body = {"model": model, "input": "Grüße!", "max_output_tokens": 16}
        assert httpx.post(url, json=body).status_code == 401
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["output_tokens"])


@pytest.fixture(scope="module")
def shell(daemon: DockerDaemon, repository: Path) -> Shell:
    return Shell(daemon, repository)


@run_blocks([IMAGE])
def test_image_is_built_and_serves(example: list[DocBlock], shell: Shell) -> None:
    [image] = example
    build, _, start = image.text.partition("docker run")
    shell.run_to_the_end(build)
    with shell.run(f"docker run{start}") as process:
        assert shell.count_answer_tokens(KEY, MODEL) in range(1, 17)
        [container] = shell.daemon.run("ps", "--quiet").split()
        wait_until(lambda: has_state(shell.daemon, container, "healthy"))
        written = shell.daemon.run("exec", container, "touch", "/opt/dragoman/x", check=False)
        assert "Read-only file system" in written
        assert shell.daemon.run("exec", container, "id", "-u") == "10001\n"
        shell.daemon.run("stop", container)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "Traceback" not in output


def has_state(daemon: DockerDaemon, container: str, state: str) -> bool:
    return daemon.run("inspect", "--format", "{{.State.Health.Status}}", container) == f"{state}\n"


@run_blocks([OWN_MODEL])
def test_image_serves_a_model_of_the_reader(
    example: list[DocBlock], shell: Shell, default_model: Path
) -> None:
    [own_model] = example
    (shell.repository / "models").mkdir()
    shutil.copy(default_model, shell.repository / "models" / "big.gguf")
    with shell.run(own_model.text) as process:
        assert shell.count_answer_tokens(KEY, "big") in range(1, 17)
        shell.daemon.run("stop", *shell.daemon.run("ps", "--quiet").split())
        output, _ = process.communicate()
    assert process.returncode == 0, output


@run_blocks([COMPOSE])
def test_compose_starts_the_server_with_postgresql(example: list[DocBlock], shell: Shell) -> None:
    [compose_block] = example
    shell.daemon.build_image("postgres", "postgres:17-bookworm")
    shell.move_port_of("deploy/compose.yaml")
    copy, _, start = compose_block.text.partition("\n")
    shell.run_to_the_end(copy)
    values = shell.repository / "deploy" / ".env"
    filled = re.sub(r"=$", f"={KEY}", values.read_text(), flags=re.MULTILINE)
    assert filled.count(KEY) == 2
    values.write_text(filled)
    assert "Up" in shell.run_to_the_end(start)
    assert shell.count_answer_tokens(KEY, MODEL) in range(1, 17)
    compose = ["compose", "-f", str(shell.repository / "deploy" / "compose.yaml")]
    query = "select count(*) from responses"
    database = ["exec", "-T", "postgres", "psql", "--tuples-only", "--username=dragoman"]
    rows = shell.daemon.run(*compose, *database, f"--command={query}")
    assert int(rows.strip()) == 1
    shell.daemon.run(*compose, "down", "--volumes")


@run_blocks([SERVICE, UPGRADE])
def test_service_is_installed_reloaded_and_upgraded(example: list[DocBlock], shell: Shell) -> None:
    service, upgrade = example
    machine = shell.daemon.start_systemd(shell.repository)

    def run_in_machine(block: str, awaited: str) -> None:
        """Run a block that ends with a look at the journal, until the journal says something."""
        command = ["docker", "exec", machine, "bash", "-euo", "pipefail", "-c", block]
        with subprocess.Popen(
            command,
            env=shell.daemon.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                read_until(process, awaited)
            finally:
                process.kill()

    def ask_systemd(name: str) -> str:
        command = ["systemctl", "show", "dragoman", "--property", name, "--value"]
        return shell.daemon.run("exec", machine, *command).strip()

    run_in_machine(service.text, f"Serving {MODEL}")
    assert ask_systemd("ActiveState") == "active"
    key = shell.daemon.run("exec", machine, "cat", "/etc/dragoman/environment").strip()
    chat = ["/opt/dragoman/bin/dragoman", "run", MODEL, "Hello!", "--set", "max_tokens=5"]
    assert shell.daemon.run("exec", "--env", key, machine, *chat).strip()
    shell.daemon.run("exec", machine, "systemctl", "reload", "dragoman")
    first = ask_systemd("MainPID")
    run_in_machine(upgrade.text, "a new process has taken over")
    wait_until(lambda: ask_systemd("MainPID") != first)
    assert ask_systemd("ActiveState") == "active"
    assert shell.daemon.run("exec", "--env", key, machine, *chat).strip()
    shell.daemon.run("exec", machine, "systemctl", "stop", "dragoman")
    assert ask_systemd("Result") == "success"
