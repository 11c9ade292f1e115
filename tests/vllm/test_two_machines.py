"""The commands of docs/deploying.md for two machines, as they are written.

The machines are name spaces with a network between them (`linked_machines`), a process on the CPU
takes the place of each of the sixteen GPUs, and a small model that of the directory the page names.
`make test-vllm` has installed vLLM and Ray, so the command that installs Ray finds it complete.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from dragoman.models.environments.install import CPU, detect_device
from tests.support.doc_blocks.blocks import DocBlock, list_blocks_of, run_blocks
from tests.support.doc_blocks.workspace import SHELL, Workspace, kill_session
from tests.support.linked_machines import LinkedMachine, run_machines
from tests.support.safetensors_model import write_small_directory
from tests.support.vllm_cpu_additions import RAY_VARIABLES, add_packages
from tests.support.vllm_model import ENGINES, VARIABLES, WARM_UP

pytestmark = pytest.mark.skipif(
    detect_device() != CPU, reason="the commands would replace the CPU build by that for CUDA"
)
FIRST, SECOND = "10.0.0.1", "10.0.0.2"
DIRECTORY = re.compile(r"dragoman serve \./(\S+)")
# ends only when it is stopped, or when a server of ours has answered
SERVES = re.compile(r"^(?:\S+/)?(?P<program>dragoman|vllm) serve ", re.MULTILINE)
SECONDS = 1500  # sixteen workers on two cores
# a worker may use any core
SETTINGS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "DRAGOMAN_HANG_TIMEOUT": "600",
}


def split_examples(blocks: Sequence[DocBlock]) -> list[list[DocBlock]]:
    """Split the blocks of a page: an example ends with those that serve, one on each machine."""
    examples: list[list[DocBlock]] = [[]]
    serving: set[str] = set()
    for block in blocks:
        serves = SERVES.search(block.text) is not None
        if serving and (not serves or serving & set(block.machines)):
            examples.append([])
            serving = set()
        examples[-1].append(block)
        if serves:
            serving |= set(block.machines)
    return examples


EXAMPLES = split_examples([block for block in list_blocks_of("test-vllm") if block.machines])


class Example:
    """Runs the blocks of an example on its machines."""

    def __init__(
        self, workspace: Workspace, machines: Mapping[str, LinkedMachine], stack: ExitStack
    ) -> None:
        self._workspace, self._machines, self._stack = workspace, machines, stack
        self._logs: list[Path] = []

    def start(self, block: DocBlock, address: str) -> subprocess.Popen[str]:
        log = self._workspace.directory / f"{len(self._logs)}.log"
        self._logs.append(log)
        output = self._stack.enter_context(log.open("w"))
        machine = self._machines[address]
        command = machine.make_command([*SHELL, block.text], self._workspace.directory)
        process = self._workspace.start_process(command, output)
        self._stack.callback(process.wait)
        self._stack.callback(kill_session, process)
        return process

    def wait(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end of a block and return its output."""
        log = self._logs
        code = process.wait(SECONDS)
        text = "\n".join(f"{path.read_text()[-4000:]}" for path in log)
        assert code == 0, text
        return text


@pytest.fixture
def machines() -> Iterator[Mapping[str, LinkedMachine]]:
    with run_machines(FIRST, SECOND) as machines:
        yield machines


@run_blocks(*EXAMPLES)
def test_commands_work_as_pasted(
    example: list[DocBlock],
    machines: Mapping[str, LinkedMachine],
    default_model: Path,
    tmp_path: Path,
) -> None:
    servers = []
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace(tmp_path / "workspace", default_model, example))
        (workspace.home / ".cache" / "dragoman" / "engines").symlink_to(ENGINES.resolve())
        workspace.environment |= VARIABLES | WARM_UP | SETTINGS | RAY_VARIABLES
        stack.enter_context(add_packages(ENGINES, tmp_path / "additions"))
        running = Example(workspace, machines, stack)
        for block in example:
            for name in DIRECTORY.findall(block.text):
                write_small_directory(default_model, workspace.directory / name)
            for address in block.machines:
                process = running.start(block, address)
                served = SERVES.search(block.text)
                if served is None:
                    running.wait(process)
                elif served["program"] == "dragoman":
                    servers.append(process)
        [server] = servers
        assert '"completion_tokens":1,' in running.wait(server)
